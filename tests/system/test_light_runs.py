"""Runs kept as a summary, and batches: whatever is killed, every message is handled, and begun once with dedup."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape.client import TapeClient
from tape.errors import TapeError
from tape.proto import tape_pb2 as pb
from tape.subscriptions.api_client import Control
from tests.broker_services import NatsServer
from tests.forked import Forked
from tests.services import ServerProcess, free_port, wait_for
from tests.system.test_subscriptions import PATH, TOKEN, Stream

MESSAGES = 90
MODULE = """
from pathlib import Path
import tape

LOG = Path(__file__).with_name("acts.log")

@tape.playbook("domain/ingest", idempotent=True)
def ingest(payload: dict) -> dict:
    found = payload.get("messages") or [payload["message"]]
    with LOG.open("a") as log:
        log.writelines(f"{each['data']['n']}\\n" for each in found)
    # Every seventh message has to come twice.
    acts = LOG.read_text().split()
    numbers = [each["data"]["n"] for each in found]
    return {"results": ["retry" if n % 7 == 0 and acts.count(str(n)) < 2 else "ok" for n in numbers]}
"""


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def document(stream: Stream, target: str, dispatch: dict[str, Any]) -> str:
    spec = {
        "source": "nats",
        "mode": "pull",
        "url": stream.url,
        "stream": stream.name,
        "consumer": "readers",
        "runtime": {"target": target, "batch": 20, "timeout_ms": 300},
        "dispatch": {"playbook": "domain/ingest", **dispatch},
        "dedup": {"enabled": True, "window_secs": 3_600},
        "spool": {"circuit": {"probe_after_ms": 500}},
    }
    return json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec})


def shared_entries(url: str) -> list[tuple[int, dict[str, Any]]]:
    """The run id and the payload of each entry that begins runs; none while the server is not there."""
    found = []
    with contextlib.suppress(TapeError), TapeClient(url) as client:
        head = client.head().global_seq
        for batch in client.follow_batches(subject_pattern="/tape/command/**"):
            found += [(int(entry.run_id), json.loads(entry.payload_json)) for entry in batch.entries]
            if batch.position >= head:
                break
    return found


def message_ids(url: str) -> dict[str, int]:
    """The run of each message; a message that has two is an error."""
    runs = [
        (part["message_id"], run_id + index + bool(payload.get("batch")))
        for run_id, payload in shared_entries(url)
        for index, part in enumerate(payload["runs"])
    ]
    twice = [name for name, number in Counter(name for name, _ in runs).items() if number > 1]
    assert not twice, f"begun twice: {twice}"
    return dict(runs)


@pytest.mark.parametrize(
    ("target", "dispatch"),
    [
        ("dedicated-pool", {"record": "summary"}),
        ("local", {"batch": {"max": 8, "linger_ms": 20}, "record": "summary"}),
        pytest.param("dedicated-pool", {"batch": {"max": 8, "linger_ms": 20}}, marks=pytest.mark.proof),
    ],
    ids=["summary, remote", "summary batch, in the server", "full batch, remote"],
)
def test_each_message_is_handled_whatever_is_killed_and_begun_once(
    store_url: str,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    dispatch: dict[str, Any],
) -> None:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
    (tmp_path / "ingesting.py").write_text(MODULE)
    acts = tmp_path / "acts.log"
    listen, http_listen = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with ServerProcess(store_url) as server:
        server.kill()
        server.start(listen, http_listen)
        arguments = ["worker", "-i", "ingesting", "--lease-ms", "2000", "-c", "2", "--url", server.url]
        worker = Forked(arguments, cwd=tmp_path)
        runtime: Forked | None = None
        try:
            control = Control(server.http_url, TOKEN)
            with TapeClient(server.url) as client:
                wait_for(lambda: client.list_resources("playbook").resources, "the worker's playbook")
            stream = Stream(nats_server)
            control.register_document(document(stream, target, dispatch))
            if target == "local":
                registration = control.register(PATH)
                control.act(int(registration["subscription_id"]), "activate")
            else:
                runtime = Forked(["subscription", "run", PATH, "--server", server.http_url, "--keep-active"])
            for step, victim in enumerate(random.Random(7).sample(["server", "worker", "runtime"], 3)):
                third = MESSAGES // 3
                stream.publish(range(step * third, (step + 1) * third))
                wait_for(lambda: len(message_ids(server.url)) > step * third, "runs to begin")  # noqa: B023
                if victim == "server":
                    server.kill()
                    server.start(listen, http_listen)
                elif victim == "worker":
                    worker.kill()
                    worker = Forked(arguments, cwd=tmp_path)
                elif runtime is not None:
                    runtime.kill()
                    runtime = Forked(["subscription", "run", PATH, "--server", server.http_url, "--keep-active"])
            wait_for(lambda: len(message_ids(server.url)) == MESSAGES, "every message to be begun")
            with TapeClient(server.url) as client:
                for name, run_id in message_ids(server.url).items():
                    wait_for(
                        lambda: client.get_run(str(run_id)).status == pb.RUN_STATUS_TERMINAL,  # noqa: B023
                        f"message {name} to be handled",
                    )
            wait_for(stream.is_empty, "every message to be acknowledged")
        finally:
            worker.kill()
            if runtime is not None:
                runtime.kill()
    seen = Counter(map(int, acts.read_text().split()))
    assert set(seen) == set(range(MESSAGES))
    if "batch" in dispatch:
        assert all(seen[n] >= 2 for n in range(0, MESSAGES, 7))
