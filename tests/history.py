"""A journal with a past: entries at chosen times, written straight into the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tape.journal.appender import read_head
from tape.model.chain import TEXTS, canonical, link
from tape.model.checksum import checksum
from tape.model.entry import COLUMNS, Entry
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
        _insert(tx, rows)

    await database.write(write)


class TimedDraft(msgspec.Struct, frozen=True):
    """An entry of which a test says everything that matters."""

    ts_ms: int
    subject: str
    run_id: str
    tenant: str
    payload_json: str


async def write_timed(database: Database, entries: Sequence[TimedDraft]) -> None:
    """Append entries at their times, in the order given."""

    def write(tx: Transaction) -> None:
        first = read_head(tx).global_seq + 1
        rows = [
            (
                *(number, one.run_id, number, one.subject.split("/")[2], one.subject, one.payload_json),
                *(1, "", "", "", one.ts_ms, one.tenant, "", "", b""),
            )
            for number, one in enumerate(entries, first)
        ]
        _insert(tx, rows)

    await database.write(write)


def seal_all(tx: Transaction) -> None:
    """Give all entries new chain values and checksums, after a test has changed them."""
    rows = tx.query(f"SELECT {', '.join(COLUMNS)} FROM tape_journal ORDER BY global_seq")
    tx.execute("DELETE FROM tape_journal")
    tx.execute("UPDATE tape_head SET chain = anchor WHERE id = 1")
    _insert(tx, rows)


def _insert(tx: Transaction, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows of entries, each with its chain value and its checksum, and move the head."""
    chain = read_head(tx).chain
    chained = []
    for row in rows:
        entry = Entry(*row)
        texts = [getattr(entry, name) for name in TEXTS]
        chain = link(chain, canonical(entry.global_seq, entry.seq, entry.ts_ms, entry.schema_version, texts))
        fields = (*row[:-1], chain)
        chained.append((*fields, checksum(fields)))
    tx.insert("tape_journal", (*COLUMNS, "checksum"), chained)
    latest = max(row[10] for row in rows)
    tx.execute("UPDATE tape_head SET global_seq = ?, chain = ?, ts_ms = ? WHERE id = 1", rows[-1][0], chain, latest)
