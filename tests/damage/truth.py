"""The truth: every acknowledged entry with all of its fields, written through a server and kept beside the journal."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tape.client import AsyncTapeClient
from tape.model.entry import Draft, Entry

RUNS = tuple(f"run-{number}" for number in range(6))
SUBJECTS = tuple(f"/tape/{('order', 'refund')[number % 2]}/paid/{number}" for number in range(8))
SESSION = ("acme", "ann", "s1")
# One payload in so many does not fit on a page.
LARGE_EVERY, LARGE_BYTES = 40, 9_000
WORDS = ["zebra", "amount", "invoice", "customer", "reminder", "parcel", "returned", "accepted", "carrier", "window"]


class Truth(msgspec.Struct, frozen=True):
    """All acknowledged entries of a journal, in order."""

    entries: list[Entry]

    @property
    def head(self) -> int:
        """The last number that was acknowledged."""
        return self.entries[-1].global_seq

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(msgspec.msgpack.encode(self))


def load_truth(path: Path) -> Truth:
    """Read it from a file."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Truth)


def draft(number: int) -> Draft:
    """The draft of an entry: the same for a number every time."""
    chance = random.Random(number)
    text = " ".join(chance.choices(WORDS, k=chance.randint(6, 30)))
    if number % LARGE_EVERY == 0:
        text = chance.randbytes(LARGE_BYTES // 2).hex()  # nothing that a database could compress
    tenant, user, session = SESSION if number % 3 == 0 else ("", "", "")
    return Draft(
        subject=chance.choice(SUBJECTS),
        run_id=chance.choice(RUNS),
        payload_json=json.dumps({"n": number, "text": text, "amount": chance.randint(1, 10_000)}),
        tenant=tenant,
        user=user,
        session=session,
    )


def markers() -> list[Draft]:
    """Entries that end every reader of a case: one at least for each run, each subject and the session."""
    tenant, user, session = SESSION
    return [
        Draft(
            subject=subject,
            run_id=RUNS[number % len(RUNS)],
            payload_json='{"marker": true}',
            **({} if number % 2 else {"tenant": tenant, "user": user, "session": session}),
        )
        for number, subject in enumerate(SUBJECTS)
    ]


async def append_entries(client: AsyncTapeClient, numbers: Sequence[int], batch: int = 10) -> dict[int, int]:
    """Append drafts in batches; returns the acknowledged global_seq of each."""
    acknowledged = {}
    for start in range(0, len(numbers), batch):
        some = numbers[start : start + batch]
        acknowledged |= dict(zip(some, await client.append_many([draft(each) for each in some]), strict=True))
    return acknowledged


async def read_truth(client: AsyncTapeClient, acknowledged: dict[int, int]) -> Truth:
    """Read all entries of an intact journal, and check that they are the acknowledged ones."""
    last = max(acknowledged.values())
    entries: list[Entry] = []
    async for entry in client.follow():
        entries.append(entry)
        if entry.global_seq >= last:
            break
    by_number = {entry.global_seq: entry for entry in entries}
    assert len(by_number) == len(entries) == last
    for number, global_seq in acknowledged.items():
        assert by_number[global_seq].payload_json == draft(number).payload_json
    return Truth(entries)
