"""`python -m tests.system.kill_rounds STORE`: kill a loaded server again and again, in slices, and count what is wrong.

Each slice has a store of its own. A server with its defaults, the witness included, is killed with `kill -9` at a
random moment under load and started again as it is; at the end `tape verify` compares store and witness.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import msgspec

from tape.client import AsyncTapeClient
from tape.errors import TapeError
from tape.model.entry import Draft
from tape.store import open_database
from tests.forked import tape
from tests.services import Postgres, ServerProcess

CALLERS = 24
BATCH_CALLERS = 4
MAX_BATCH = 40
# A healthy store goes on after some seconds, also on a loaded machine.
STANDSTILL_S = 120


class Load:
    """Callers that append without pause, one by one and in batches, and remember what was acknowledged.

    A reader follows them all the time and remembers what it got.
    """

    def __init__(self, url: str) -> None:
        self._client = AsyncTapeClient(url)
        self._ids = itertools.count()
        self.acknowledged: dict[int, int] = {}
        self.failures = 0
        self.followed: list[int] = []
        self.has_reader_ended = False
        self._grew = asyncio.Event()
        self._tasks = [asyncio.create_task(self._call(f"run-{n}")) for n in range(CALLERS)]
        self._tasks += [asyncio.create_task(self._call_batches(f"batch-{n}")) for n in range(BATCH_CALLERS)]
        self._tasks.append(asyncio.create_task(self._follow()))

    async def _call(self, run_id: str) -> None:
        while True:
            number = next(self._ids)
            try:
                global_seq = await self._client.append("/tape/load/sent", {"id": number}, run_id=run_id)
            except TapeError:
                self.failures += 1
            else:
                self.acknowledged[number] = global_seq
                self._grew.set()

    async def _call_batches(self, run_id: str) -> None:
        sizes = random.Random(run_id)
        while True:
            numbers = [next(self._ids) for _ in range(sizes.randint(2, MAX_BATCH))]
            drafts = [
                Draft(subject="/tape/load/sent", payload_json=f'{{"id": {number}}}', run_id=run_id)
                for number in numbers
            ]
            try:
                global_seqs = await self._client.append_many(drafts)
            except TapeError:
                self.failures += 1
            else:
                self.acknowledged |= dict(zip(numbers, global_seqs, strict=True))
                self._grew.set()

    async def _follow(self) -> None:
        try:
            async for entry in self._client.follow():
                self.followed.append(entry.global_seq)
                self._grew.set()
        except TapeError as error:
            sys.stderr.write(f"the reader ended: {error}\n")
            self.has_reader_ended = True

    async def until_followed(self, global_seq: int) -> None:
        """Wait until the reader has an entry."""
        async with asyncio.timeout(STANDSTILL_S):
            while not self.followed or self.followed[-1] < global_seq:
                self._grew.clear()
                await self._grew.wait()

    async def until_acknowledged(self, count: int) -> None:
        """Wait until so many entries are acknowledged in all."""
        async with asyncio.timeout(STANDSTILL_S):
            while len(self.acknowledged) < count:
                self._grew.clear()
                await self._grew.wait()

    async def stop(self) -> None:
        """End the callers and the reader."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()


@dataclass
class Totals:
    """What rounds found; everything but the first three must be 0."""

    rounds: int = 0
    acknowledged: int = 0
    slowest_s: float = 0.0  # from a kill to the next acknowledgement, the start of the server included
    lost: int = 0  # acknowledged, and not in the journal at the number that was acknowledged
    repeated: int = 0  # in the journal more than once
    misread: int = 0  # missed, repeated or out of order for the reader that ran all the time
    refused: int = 0  # starts
    stood_still: int = 0
    unverified: int = 0  # journals that `tape verify` does not confirm

    @property
    def has_failed(self) -> bool:
        """Whether anything is wrong."""
        wrong = (self.lost, self.repeated, self.misread, self.refused, self.stood_still, self.unverified)
        return any(wrong)

    def add(self, other: Totals) -> None:
        """Add the rounds of another slice."""
        slowest = max(self.slowest_s, other.slowest_s)
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        self.slowest_s = slowest

    def __str__(self) -> str:
        return ", ".join(
            f"{field.name.replace('_', ' ')} {round(getattr(self, field.name), 1):,}" for field in fields(self)
        )


async def run_rounds(store_url: str, kills: int, seed: int) -> Totals:
    """Kill a loaded server so many times, then compare what was acknowledged and read with the journal."""
    totals = Totals()
    moments = random.Random(seed)
    server = ServerProcess(store_url)
    listen = f"127.0.0.1:{_own_port()}"
    server.start(listen)
    load = Load(server.url)
    try:
        for _ in range(kills):
            await load.until_acknowledged(len(load.acknowledged) + moments.randint(1, 100))
            server.kill()
            killed = time.monotonic()
            try:
                # It must start again as it is: a witness that is ahead of the database would demand --accept-loss.
                await asyncio.to_thread(server.start, listen)
            except AssertionError as refusal:
                sys.stderr.write(f"{refusal}\n")
                totals.refused += 1
                break
            await load.until_acknowledged(len(load.acknowledged) + 1)
            totals.slowest_s = max(totals.slowest_s, time.monotonic() - killed)
            totals.rounds += 1
        else:
            await load.until_acknowledged(len(load.acknowledged) + 100)
            await load.until_followed(max(load.acknowledged.values()))
    except TimeoutError:
        totals.stood_still += 1
    finally:
        await load.stop()
        server.kill()
    totals.acknowledged = len(load.acknowledged)
    totals.misread = sum(found != wanted for wanted, found in enumerate(load.followed, 1)) + load.has_reader_ended
    totals.lost, totals.repeated = await compare(store_url, load.acknowledged)
    totals.unverified = int((await asyncio.to_thread(tape, "verify", "--store", store_url)).returncode != 0)
    return totals


def _own_port() -> int:
    """A port that no other test uses: while the server is down, one of them would answer our callers instead."""
    while True:
        port = random.SystemRandom().randrange(5_000, 10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def compare(store_url: str, acknowledged: dict[int, int]) -> tuple[int, int]:
    """How many acknowledged appends are not in the journal at their number, and how many are there again."""
    async with open_database(store_url) as database:
        rows = await database.read(
            lambda reader: reader.query("SELECT global_seq, payload_json FROM tape_journal ORDER BY global_seq")
        )
    found = [(msgspec.json.decode(payload)["id"], global_seq) for global_seq, payload in rows]
    lost = acknowledged.items() - dict(found).items()
    if lost:
        sys.stderr.write(f"acknowledged appends that are not at their global_seq: {sorted(lost)[:10]}\n")
    repeated = Counter(number for number, _ in found)
    return len(lost), repeated.total() - len(repeated)


@contextlib.contextmanager
def _sqlite_store() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tape-kills-") as folder:
        yield f"sqlite:{folder}/tape.db"


def main() -> None:
    """Run the slices; exits with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.kill_rounds", description=__doc__)
    parser.add_argument("store", choices=["sqlite", "postgres"])
    parser.add_argument("--rounds", type=int, default=1_000, help="kills in all (1000)")
    parser.add_argument("--slice", type=int, default=50, help="kills of one store, before it is compared (50)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first slice (1)")
    arguments = parser.parse_args()
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    totals, seed = Totals(), arguments.seed
    with contextlib.ExitStack() as stack:
        # Witnesses of PostgreSQL journals are there, apart from those of the user.
        os.environ["XDG_STATE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="tape-kills-state-"))
        open_store: Callable[[], contextlib.AbstractContextManager[str]] = _sqlite_store
        if arguments.store == "postgres":
            open_store = stack.enter_context(Postgres()).migrated_database
        while totals.rounds < arguments.rounds and not totals.has_failed:
            with open_store() as url:
                kills = min(arguments.slice, arguments.rounds - totals.rounds)
                totals.add(asyncio.run(run_rounds(url, kills, seed)))
            sys.stdout.write(f"{arguments.store}, seeds {arguments.seed} to {seed}: {totals}\n")
            sys.stdout.flush()
            seed += 1
    sys.exit(totals.has_failed)


if __name__ == "__main__":
    main()
