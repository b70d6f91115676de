"""Slow proofs: workers and the server are killed at random; every step is confirmed once and not done after that."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tape.client import AsyncTapeClient
from tape.errors import TapeError
from tape.model.entry import Entry
from tape.proto import tape_pb2 as pb
from tests.forked import Forked
from tests.services import ServerProcess

EXECUTIONS, WORKERS, KILLS = 40, 2, 10

MODULE = """
import os, time
from pathlib import Path
import tape

LOG = os.open(Path(__file__).with_name("acts.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@tape.function
def act(tool_context=None) -> str:
    key = tape.idempotency_key(tool_context)
    os.write(LOG, f"{time.time_ns() // 1_000_000} {key}\\n".encode())
    time.sleep(0.02)
    return key
"""
PLAYBOOK = """
kind: Playbook
metadata: {path: proof/acts}
workflow:
  - {step: one, tool: {kind: python, function: act}}
  - {step: all, each: "[1, 2, 3]", concurrency: 2, tool: {kind: python, function: act}}
  - {step: last, tool: {kind: python, function: act}}
output: "{{ all }}"
"""


@pytest.mark.proof
async def test_no_confirmed_step_runs_again_when_any_worker_is_killed(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "proving.py").write_text(MODULE)
    rng = random.Random(7)
    with ServerProcess(store_url) as server:
        listen = server.url.removeprefix("tape://")
        command = [
            "worker",
            "-i",
            "proving",
            "--lease-ms",
            "1500",
            "-c",
            "4",
            "--url",
            server.url,
            "--log-level",
            "error",
        ]
        workers = [Forked(command, cwd=tmp_path) for _ in range(WORKERS)]
        try:
            async with AsyncTapeClient(server.url) as client:
                await client.register_resource(PLAYBOOK)
                wanted = [pb.Execution(path="proof/acts") for _ in range(EXECUTIONS)]
                runs = [each.execution_id for each in (await client.execute_many(wanted)).results]
                for number in range(KILLS):
                    await asyncio.sleep(rng.uniform(0.1, 1.5))
                    if number % 5 == 4:
                        server.kill()
                        server.start(listen)
                    else:
                        victim = rng.randrange(WORKERS)
                        workers[victim].kill()
                        workers[victim] = Forked(command, cwd=tmp_path)
                await _until_done(client, runs)
                entries = await _entries(client)
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
                worker.kill()
    confirmed = {entry.payload["idempotency_key"]: entry.ts_ms for entry in entries if entry.type == "effect.confirmed"}
    assert Counter(entry.type for entry in entries)["effect.confirmed"] == len(confirmed) == 5 * EXECUTIONS
    acts = [line.split() for line in (tmp_path / "acts.log").read_text().splitlines()]
    assert {key for _, key in acts} == set(confirmed)
    assert [(key, at) for at, key in acts if int(at) > confirmed[key]] == []


async def _until_done(client: AsyncTapeClient, runs: list[str]) -> None:
    deadline = time.monotonic() + 240
    left = list(runs)
    while left:
        assert time.monotonic() < deadline, f"{len(left)} runs are not done"
        try:
            states = [await client.get_run(each) for each in left]
        except TapeError:
            continue  # the server is on its way back
        assert not [each for each in states if each.status == pb.RUN_STATUS_FAILED]
        left = [each.run_id for each in states if each.status != pb.RUN_STATUS_TERMINAL]
        await asyncio.sleep(0.2)


async def _entries(client: AsyncTapeClient) -> list[Entry]:
    head = (await client.head()).global_seq
    found: list[Entry] = []
    async for entry in client.follow():
        found.append(entry)
        if entry.global_seq >= head:
            break
    return found
