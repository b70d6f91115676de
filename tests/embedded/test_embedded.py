"""A store without a server: the same calls and the same file, one process at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tape
from tape import AsyncTapeClient, TapeClient
from tape.embedded import engine
from tape.errors import ClientClosed, RpcFailed, StoreHeld
from tape.proto import tape_pb2 as pb
from tests.embedded import programs
from tests.forked import Forked
from tests.forked import tape as run_tape
from tests.services import ServerProcess


@pytest.fixture
def file(migrated_file: Path, tmp_path: Path) -> Path:
    path = tmp_path / "agent.db"
    path.write_bytes(migrated_file.read_bytes())
    return path


@pytest.fixture
def url(file: Path) -> Iterator[str]:
    yield f"sqlite:{file}"
    assert not engine._engines, "a test has left its store open"


def begin(program: Callable[[], None], file: Path, **env: str) -> Forked:
    settings = {"STORE": f"sqlite:{file}", "CHARGES": str(file.parent / "charges"), **env}
    return Forked([], program=program, env={**os.environ, **settings}, cwd=file.parent)


def charges(file: Path) -> list[str]:
    return (file.parent / "charges").read_text().split()


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_durable_without_a_server_and_a_server_goes_on_with_its_file(
    url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHARGES", str(file.parent / "charges"))
    with tape.durable_run("shop", invocation_id="1", url=url) as run:
        assert run.decide(lambda: "go") == "go"
        assert programs.charge(5) == {"charged": 5}
    with ServerProcess(url) as server, TapeClient(server.url) as client:
        assert client.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL
        head = client.append("/tape/note/made/1", {})
    verified = run_tape("verify", "--store", url)
    assert verified.returncode == 0, verified.stdout
    with TapeClient(url) as client:
        assert client.head().global_seq == head


def test_a_store_in_memory_ends_with_its_last_client() -> None:
    with TapeClient("sqlite::memory:") as one, TapeClient("sqlite::memory:") as other:
        one.append("/tape/note/made/1", {})
        assert other.head().global_seq == 1
    with TapeClient("sqlite::memory:") as client:
        assert client.head().global_seq == 0


def test_errors_are_those_of_a_server(url: str) -> None:
    with TapeClient(url) as client:
        with pytest.raises(tape.TapeError, match="are reserved"):
            client.append("/tape/run/started/1", {})
        with pytest.raises(tape.TapeError, match="no such run"):
            client.get_run("nowhere")


def test_payloads_are_redacted_as_in_a_server(url: str) -> None:
    with TapeClient(url) as client:
        client.append("/tape/note/made/1", {"password": "hunter2hunter2"})
        entry = next(iter(client.follow()))
    assert "hunter2" not in entry.payload_json


def test_a_slow_reader_gets_every_entry_in_order(url: str) -> None:
    with TapeClient(url) as client:
        for start in range(0, 3_000, 500):
            client.append_many(
                [tape.Draft(subject="/tape/note/made/1", payload_json="{}")] * 500, request_id=str(start)
            )
        stream = client.subscribe_by_subject(subject_pattern="/tape/**")
        seen = []
        for entry in stream:
            seen.append(entry.global_seq)
            if len(seen) == 3_000:
                break
        stream.close()
    assert seen == list(range(1, 3_001))


def test_new_entries_reach_a_follower_and_a_watcher(url: str) -> None:
    with TapeClient(url) as client:
        client.append("/tape/note/made/1", {})
        entries = client.follow()
        assert next(entries).global_seq == 1
        client.write_value(namespace="n", key="k", value_json="1")
        assert next(entries).subject.startswith("/tape/value/changed")
        assert next(client.watch_value(namespace="n", key="k")).value.version == 1
        entries.close()


def test_a_deadline_ends_a_stream(url: str) -> None:
    with TapeClient(url) as client, pytest.raises(RpcFailed, match="DEADLINE_EXCEEDED"):
        list(client.subscribe_by_subject(subject_pattern="/tape/**", timeout=0.05))


def test_closing_a_client_ends_its_streams_and_its_calls(url: str) -> None:
    client = TapeClient(url)
    client.append("/tape/note/made/1", {})
    ended: list[Exception] = []
    reading = threading.Event()

    def read() -> None:
        try:
            for _ in client.follow():
                reading.set()
        except Exception as error:
            ended.append(error)

    with TapeClient(url) as other:
        thread = threading.Thread(target=read)
        thread.start()
        assert reading.wait(30)
        asyncio.run_coroutine_threadsafe(client._client.close(), client._loop).result()
        thread.join(30)
        assert [type(error) for error in ended] == [ClientClosed]
        with pytest.raises(ClientClosed):
            client.head()
        assert other.head().global_seq == 1
    client.close()


async def test_asyncio_clients_on_several_loops_and_threads_share_one_engine(url: str) -> None:
    def append_some(number: int) -> list[int]:
        with TapeClient(url) as client:
            return [client.append("/tape/note/made/1", {"thread": number}) for _ in range(20)]

    async with AsyncTapeClient(url) as client:
        with ThreadPoolExecutor(4) as threads:
            loop = asyncio.get_running_loop()
            results = await asyncio.gather(*(loop.run_in_executor(threads, append_some, n) for n in range(4)))
        seqs = await asyncio.gather(*(client.append("/tape/note/made/1", {}) for _ in range(20)))
        assert sorted([*seqs, *(seq for each in results for seq in each)]) == list(range(1, 101))
        assert seqs == sorted(seqs)


async def test_a_cancelled_call_leaves_the_client_usable(url: str) -> None:
    async with AsyncTapeClient(url) as client:
        await client.head()
        task = asyncio.create_task(client.append("/tape/note/made/1", {}))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await client.append("/tape/note/made/2", {}) in (1, 2)


async def test_reactions_are_matched_and_dispatched(url: str) -> None:
    async with AsyncTapeClient(url) as client:
        await client.register_reaction(
            reaction_id="r", subject_pattern="/tape/order/created/**", handler_kind=pb.HANDLER_KIND_TASK
        )
        seq = await client.append("/tape/order/created/1", {})
        requests: asyncio.Queue[pb.DispatchRequest | None] = asyncio.Queue()
        requests.put_nowait(pb.DispatchRequest(owner="w", reaction_ids=["r"], window=1))

        async def sent() -> AsyncIterator[pb.DispatchRequest]:
            while (request := await requests.get()) is not None:
                yield request

        seen = []
        async for reply in client.dispatch_tasks(sent()):
            for task in reply.tasks:
                seen.append(task.source_global_seq)
                requests.put_nowait(pb.DispatchRequest(completed=[task.task_id]))
                requests.put_nowait(None)
        assert seen == [seq]
        assert (await client.list_tasks(reaction_id="r")).tasks[0].status == pb.TASK_STATUS_DONE


# ── one process at a time ────────────────────────────────────────────────────────────────────────


def test_a_second_process_gets_an_error_that_names_file_holder_and_remedy(url: str, file: Path) -> None:
    other = begin(programs.holder, file)
    assert other.stdout is not None
    assert other.stdout.readline() == "open at 0\n"
    with TapeClient(url) as client:
        with pytest.raises(StoreHeld) as refused:
            client.head()
        for part in (str(file), f"pid {other.pid}", socket.gethostname(), f"tape serve --store sqlite:{file}"):
            assert part in str(refused.value)
        served = run_tape("serve", "--store", url, "--listen", "127.0.0.1:0", "--http-listen", "")
        assert served.returncode == 1
        assert f"pid {other.pid}" in served.stderr
        other.kill()
        assert client.head().global_seq == 0, "the lock ends with the process"


def test_a_running_server_is_named_with_its_address(url: str, file: Path) -> None:
    with ServerProcess(url) as server, ServerProcess(url) as second:
        with TapeClient(url) as client, pytest.raises(StoreHeld) as refused:
            client.head()
        assert second.url in str(refused.value)
        assert "tape serve with pid" in str(refused.value)
        server.terminate()
        second.terminate()
    with TapeClient(url) as client:
        assert client.head().global_seq == 0
    assert (file.parent / "agent.db-lock").stat().st_mode & 0o777 == 0o600


def test_a_forked_process_has_no_client_and_cannot_open_the_store(file: Path) -> None:
    lines = begin(programs.forked_client, file).finish().splitlines()
    assert [line.split()[0] for line in lines] == ["ForkedClient", "StoreHeld", "parent"], lines


def test_a_forked_process_does_not_keep_the_store_of_a_killed_parent(url: str, file: Path) -> None:
    parent = begin(programs.forker, file)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert parent.wait(30) == -signal.SIGKILL
        with TapeClient(url) as client:
            assert client.head().global_seq == 0
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_run_is_resumed_at_once_by_the_next_process(file: Path) -> None:
    killed = begin(programs.agent, file, DIE="1")
    assert killed.wait(60) == -signal.SIGKILL
    killed.kill()
    assert begin(programs.agent, file).finish() == "{'shipped': 'order-1'} resumed\n"
    assert charges(file) == ["7"], "a recorded effect is not performed again"


def test_a_run_parked_without_a_server_is_answered_and_finished_under_one(url: str, file: Path) -> None:
    begin(programs.agent, file, GATE="1").finish()
    with ServerProcess(url) as server, TapeClient(server.url) as client:
        (run,) = client.list_runs(app_name="shop").runs
        assert run.status == pb.RUN_STATUS_WAITING
        client.send_signal(run_id=run.run_id, gate_name="approve", resolution_json='{"approved": true}')
        printed = begin(programs.agent, file, GATE="1", URL=server.url).finish()
        assert printed == "answer {'approved': True}\n{'shipped': 'order-1'} resumed\n"
        assert client.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL
    assert charges(file) == ["7"]


def test_a_process_that_ends_without_closing_loses_nothing(url: str, file: Path) -> None:
    process = begin(programs.leaver, file)
    assert process.finish() == "20\n"
    assert process.wait() == 0
    with TapeClient(url) as client:
        assert client.head().global_seq == 20


# ── installation ─────────────────────────────────────────────────────────────────────────────────

WITHOUT = """
import sys
for name in {names!r}: sys.modules[name] = None
import tape
with tape.durable_run("a", url={url!r}) as run:
    run.decide(lambda: 1)
print("done")
"""


def run_without(names: tuple[str, ...], url: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(names=names, url=url)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def test_the_extra_embedded_needs_none_of_the_other_libraries_of_a_server(url: str) -> None:
    others = ("cryptography", "grpc_health", "grpc_reflection", "httptools", "jwt", "starlette", "uvicorn", "uvloop")
    done = run_without(others, url)
    assert done.stdout == "done\n", done.stderr


def test_without_the_extra_the_error_names_what_to_install(url: str) -> None:
    done = run_without(("apsw",), url)
    assert "pip install 'tape[embedded]'" in done.stderr


def test_a_cli_command_works_on_a_file(url: str) -> None:
    appended = run_tape("append", "/tape/note/made/1", "{}", "--url", url, "-o", "json")
    assert appended.stdout == '{"global_seq":1}\n'
    assert '"global_seq":1' in run_tape("tail", "--from", "start", "--no-follow", "--url", url, "-o", "json").stdout
