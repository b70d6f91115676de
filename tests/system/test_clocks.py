"""The clock of a running server jumps 30 hours ahead and back: its work goes on, also after a restart."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tape.base.clock import now_ms
from tape.client import AsyncTapeClient
from tape.store import open_database
from tests.engine.reactions.helpers import DONE, claim, matched, register, tasks, until
from tests.services import free_port

SERVE = "import sys; from tape.cli.main import main; sys.exit(main())"
REACTIONS = {
    "plain": {},
    "paced": {"rate_limit_per_s": 50},
    "debounced": {"debounce_ms": 50},
    "strict": {"strict_order": True},
}


def library() -> Path:
    """The library that fakes the time of a process."""
    spec = importlib.util.find_spec("libfaketime")
    found = spec and spec.origin and Path(spec.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
    if sys.platform != "linux" or not found or not found.exists():
        pytest.skip("libfaketime is not installed or does not work on this platform")
    return found


class Clock:
    """The wall clock of the servers of a test; their monotonic clock stays as it is."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set("+0")
        self.environment = os.environ | {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(offset)
        new.replace(self._file)


class FakedServer:
    """`tape serve` with a clock of its own."""

    def __init__(self, store: str, clock: Clock) -> None:
        self.port = free_port()
        self.url = f"tape://127.0.0.1:{self.port}"
        listen = ["--listen", f"127.0.0.1:{self.port}", "--http-listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", "--store", store, "--log-level", "warning", *listen],
            env=clock.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> FakedServer:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "Ctrl-C" in line:
                return self
        raise AssertionError(f"the server ended at once, exit {self._process.wait()}")

    def __exit__(self, *_: object) -> None:
        """kill -9: its leases stay."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


async def react(client: AsyncTapeClient, number: int) -> None:
    """Append an entry, and wait until each reaction has a task of it done."""
    await client.append(f"/tape/order/paid/{number}", {"n": number})
    await matched(client)
    for reaction_id in REACTIONS:

        async def is_done(reaction_id: str = reaction_id) -> bool:
            for task in await claim(client, reaction_id, lease_ms=5_000):
                await client.complete_task(task_id=task.task_id, owner="w")
            done = await tasks(client, reaction_id, DONE)
            return number in [task.source_global_seq for task in done]

        await until(is_done, f"a task of entry {number} of {reaction_id}", 60)


async def are_partitions_leased_ahead(store_url: str) -> bool:
    """Whether the leases of all matcher partitions expire more than 29 hours from now."""
    async with open_database(store_url) as database:
        row = await database.read(lambda reader: reader.one("SELECT min(expires_at_ms) FROM tape_reaction_lanes"))
    return row is not None and row[0] > now_ms() + 29 * 3_600_000


async def test_work_goes_on_after_the_clock_was_30_hours_ahead_and_after_a_restart(
    store_url: str, tmp_path: Path
) -> None:
    clock = Clock(tmp_path)
    with FakedServer(store_url, clock) as server:
        async with AsyncTapeClient(server.url) as client:
            for reaction_id, policy in REACTIONS.items():
                await register(client, reaction_id, **policy)
            await react(client, 1)
            clock.set("+30h")
            await react(client, 2)
            ahead = (await client.head()).ts_ms
            run = await client.begin_run(app_name="a", user_id="u", session_id="s", invocation_id="i", lease_owner="x")
            # A worker claims tasks, and is killed with the server.
            await client.append("/tape/order/paid/4", {"n": 4})
            await matched(client)
            for reaction_id in ("plain", "strict"):
                assert len(await claim(client, reaction_id, owner="killed")) == 1
            clock.set("+0")
            await client.append("/tape/order/paid/5", {"n": 5})
            assert (await client.head()).ts_ms >= ahead  # the journal's time never goes back
            recoverable = (await client.list_runs_to_recover()).runs
            assert [found.run_id for found in recoverable] == [run.run_id]
            await react(client, (await client.head()).global_seq + 1)
            clock.set("+30h")
            await react(client, (await client.head()).global_seq + 1)
            await until(lambda: are_partitions_leased_ahead(store_url), "a renewal of the partitions 30 hours ahead")
    clock.set("+0")
    with FakedServer(store_url, clock) as server:
        async with AsyncTapeClient(server.url) as client:
            await react(client, (await client.head()).global_seq + 1)
