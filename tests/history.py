"""A journal with a past: entries at chosen times, written straight into the database."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.journal.appender import read_head
from tape.model.entry import COLUMNS
from tape.store import Database, Transaction

Past = tuple[int, str, str, str, str, str]  # ts_ms, kind, verb, tenant, user, session


async def write_past(database: Database, past: Sequence[Past]) -> None:
    """Append entries at their times, the oldest first. The chain is not kept: tests do not verify these."""

    def write(tx: Transaction) -> None:
        head = read_head(tx)
        rows = [
            (
                head.global_seq + number,
                f"run-{number % 3}",
                head.global_seq + number,
                kind,
                f"/tape/{kind}/{verb}/x" if verb else f"/tape/{kind}",
                "{}",
                1,
                "",
                "",
                "",
                ts_ms,
                tenant,
                user,
                session,
                b"",
            )
            for number, (ts_ms, kind, verb, tenant, user, session) in enumerate(past, start=1)
        ]
        tx.insert("tape_journal", COLUMNS, rows)
        tx.execute("UPDATE tape_head SET global_seq = ?, ts_ms = ? WHERE id = 1", rows[-1][0], rows[-1][10])

    await database.write(write)


class TimedDraft(msgspec.Struct, frozen=True):
    """An entry of which a test says everything that matters."""

    ts_ms: int
    subject: str
    run_id: str
    tenant: str
    payload_json: str


async def write_timed(database: Database, entries: Sequence[TimedDraft]) -> None:
    """Append entries at their times, in the order given. The chain is not kept."""

    def write(tx: Transaction) -> None:
        first = read_head(tx).global_seq + 1
        rows = [
            (
                *(number, one.run_id, number, one.subject.split("/")[2], one.subject, one.payload_json),
                *(1, "", "", "", one.ts_ms, one.tenant, "", "", b""),
            )
            for number, one in enumerate(entries, first)
        ]
        tx.insert("tape_journal", COLUMNS, rows)
        latest = max(one.ts_ms for one in entries)
        tx.execute("UPDATE tape_head SET global_seq = ?, ts_ms = ? WHERE id = 1", rows[-1][0], latest)

    await database.write(write)
