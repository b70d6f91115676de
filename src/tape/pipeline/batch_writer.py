"""Appends batches to the journal exactly once, across restarts of tasks and drivers.

Tasks validate their rows and *stage* them in the store, each task under a unique name. When all tasks are done, the
driver *seals* the batch: one row that names the producer, the batch and its staged drafts. Then it appends them in
steps; each step and the number of finished steps are one transaction. A retried batch finds its seal: the driver
finishes what was sealed first and discards what was staged again. So the content of a batch is decided once, even if
the source returns other rows on the second attempt.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from tape.base import structs
from tape.base.clock import now_ms
from tape.base.retry import retry
from tape.errors import BatchOutOfOrder, PipelineInput
from tape.journal.appender import Appender
from tape.model.entry import Draft
from tape.pipeline.journal_reader import OUTAGE_TIMEOUT_S, STORE_RETRY, query_store
from tape.pipeline.options import journal_database, shown
from tape.store import Reader, Transaction
from tape.store.connection import DatabaseConnection

log = logging.getLogger(__name__)

T = TypeVar("T")

# Entries staged in one row and appended in one transaction. Other writers wait for one step at most.
STEP_ENTRIES = 2_000
STEP_BYTES = 8 << 20
# Staged drafts that no batch has used for this long belong to a task or driver that was killed.
STAGED_TTL_MS = 24 * 3600 * 1000
# A stream retries its last batch only; more are kept for diagnosis.
KEPT_BATCHES = 100
# Ids that one transaction deletes.
EXPIRED_IDS_PER_STEP = 10_000


class _Step(msgspec.Struct, array_like=True):
    """Drafts that are appended together; with ids, those whose id `dedup_scope` has seen are skipped."""

    drafts: list[Draft]
    ids: list[str] = []
    dedup_scope: str = ""


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Step).decode


class StagedDrafts(msgspec.Struct, frozen=True):
    """The drafts that one task has staged in the store."""

    name: str
    steps: int
    entries: int


class Appended(msgspec.Struct, frozen=True):
    """A batch in the journal; `is_repeated` if it was there before. `entries` does not count duplicates by id."""

    entries: int
    is_repeated: bool


def transact(store: str, operation: Callable[[Transaction], T]) -> T:
    """Run an operation in one transaction of a journal's database; retry its begin for up to 60 s."""
    connection = _begin(store)
    try:
        try:
            tx = Transaction(connection)
            result = operation(tx)
            connection.commit(tx.flush)
        except BaseException:
            connection.rollback()
            raise
        return result
    finally:
        connection.close()


def _begin(store: str) -> DatabaseConnection:
    """Open a connection and begin a transaction. Nothing was written yet, so both can be retried."""

    def begin() -> DatabaseConnection:
        connection = journal_database(store).connect()
        try:
            if not connection.has_table("tape_checkpoints"):
                raise PipelineInput(f"The database {shown(store)} is not up to date. Run: tape migrate --store …")
            connection.lift_time_limits()
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection

    return retry(
        begin,
        STORE_RETRY,
        deadline_s=OUTAGE_TIMEOUT_S,
        on_retry=lambda error, attempt, delay_s: log.warning("journal not writable, retrying: %s", error),
    )


def stage(store: str, drafts: Iterable[Draft]) -> StagedDrafts:
    """Stage validated drafts; if the iterable raises, what was staged is discarded."""
    return stage_unique(store, ((draft, "") for draft in drafts), "")


def stage_unique(store: str, drafts: Iterable[tuple[Draft, str]], dedup_scope: str) -> StagedDrafts:
    """Stage validated drafts with their ids; a draft whose id the scope has seen is not appended again."""
    name, steps, entries, size = uuid.uuid4().hex, 0, 0, 0
    pending: list[Draft] = []
    ids: list[str] = []

    def write_step() -> None:
        nonlocal steps, entries, size
        row = (name, steps, _pack(_Step(pending, ids, dedup_scope)), now_ms())
        transact(store, lambda tx: tx.insert("tape_staged", ("stage", "step", "drafts", "ts_ms"), [row]))
        steps += 1
        entries += len(pending)
        size = 0
        pending.clear()
        ids.clear()

    try:
        for draft, row_id in drafts:
            pending.append(draft)
            if dedup_scope:
                ids.append(row_id)
            size += len(draft.payload_json)
            if len(pending) == STEP_ENTRIES or size >= STEP_BYTES:
                write_step()
        if pending:
            write_step()
    except BaseException:
        if steps:
            discard(store, [name])
        raise
    return StagedDrafts(name, steps, entries)


def discard(store: str, stages: Sequence[str]) -> None:
    """Delete staged drafts by their names."""
    if stages:
        transact(store, lambda tx: _discard(tx, stages))


def append_batch(
    store: str, producer: str, batch: str, stages: Sequence[StagedDrafts], *, number: int = -1
) -> Appended:
    """Append staged drafts unless this batch of this producer was appended. `number` orders a stream's batches."""
    seal, is_new = transact(store, lambda tx: _seal(tx, producer, batch, number, stages))
    while not seal.is_done:
        seal = transact(store, lambda tx: _append_step(tx, producer, batch))
    return Appended(seal.entries, is_repeated=not is_new)


def finish_batches(store: str, producer: str) -> int:
    """Finish the sealed batches of a producer that was killed; return their number."""
    rows = query_store(
        store,
        lambda reader: reader.query("SELECT batch FROM tape_batches WHERE producer = ? AND is_done = 0", producer),
    )
    for (batch,) in rows:
        append_batch(store, producer, batch, [])
    return len(rows)


def find_batch(reader: Reader | Transaction, producer: str, batch: str) -> Appended | None:
    """Find a batch that was appended before."""
    row = reader.one(
        "SELECT entries FROM tape_batches WHERE producer = ? AND batch = ? AND is_done = 1", producer, batch
    )
    return None if row is None else Appended(row[0], is_repeated=True)


def append_once(store: str, stages: Sequence[StagedDrafts]) -> Appended:
    """Append staged drafts as an anonymous batch. It cannot be retried, so no record of it stays."""
    batch = uuid.uuid4().hex
    appended = append_batch(store, "", batch, stages)
    transact(store, lambda tx: tx.execute("DELETE FROM tape_batches WHERE producer = '' AND batch = ?", batch))
    return appended


def last_number(reader: Reader | Transaction, producer: str) -> int | None:
    """Return the number of a producer's last batch, or None."""
    row = reader.one("SELECT MAX(number) FROM tape_batches WHERE producer = ? AND number >= 0", producer)
    return None if row is None or row[0] is None else int(row[0])


class _Seal(msgspec.Struct, frozen=True):
    stages: list[StagedDrafts]
    steps: int
    is_done: bool
    entries: int


def _seal(
    tx: Transaction, producer: str, batch: str, number: int, stages: Sequence[StagedDrafts]
) -> tuple[_Seal, bool]:
    now = now_ms()
    _delete_abandoned(tx, now - STAGED_TTL_MS)
    found = _find(tx, producer, batch)
    if found is not None:
        sealed = {one.name for one in found.stages}
        _discard(tx, [one.name for one in stages if one.name not in sealed])
        return found, False
    if number >= 0:
        _check_order(tx, producer, number)
    entries = sum(one.entries for one in stages)
    row = (producer, batch, number, msgspec.json.encode(stages).decode(), 0, int(entries == 0), entries, now)
    tx.insert("tape_batches", ("producer", "batch", "number", "stages", "steps", "is_done", "entries", "ts_ms"), [row])
    return _Seal(list(stages), 0, entries == 0, entries), True


def _delete_abandoned(tx: Transaction, before_ms: int) -> None:
    """Delete drafts that killed tasks staged, unless an unfinished batch may still need them."""
    tx.execute(
        "DELETE FROM tape_staged WHERE ts_ms < ? AND stage NOT IN (SELECT stage FROM tape_staged WHERE ts_ms >= ?)"
        " AND NOT EXISTS (SELECT 1 FROM tape_batches WHERE is_done = 0)",
        before_ms,
        before_ms,
    )


def _check_order(tx: Transaction, producer: str, number: int) -> None:
    last = last_number(tx, producer)
    if last is not None and number <= last:
        raise BatchOutOfOrder(
            f"The producer {producer!r} has appended batch {last} already; batch {number} is older and was never"
            " appended, so it belongs to another checkpoint. Give the new stream a producer name of its own."
        )
    tx.execute(
        "DELETE FROM tape_batches WHERE producer = ? AND number >= 0 AND number < ?", producer, number - KEPT_BATCHES
    )


def _append_step(tx: Transaction, producer: str, batch: str) -> _Seal:
    """Append the next staged step of a batch and record it."""
    seal = _find(tx, producer, batch)
    assert seal is not None, "the batch was sealed"
    positions = [(one.name, step) for one in seal.stages for step in range(one.steps)]
    if seal.is_done:
        return seal
    name, step = positions[seal.steps]
    row = tx.one("SELECT drafts FROM tape_staged WHERE stage = ? AND step = ?", name, step)
    if row is None:
        raise PipelineInput(
            f"Step {step} of the staged drafts {name} of batch {batch!r} of {producer!r} is missing in the store."
        )
    staged = _unpack(row[0])
    drafts = _unseen(tx, staged) if staged.dedup_scope else staged.drafts
    appender = tx.enlist(Appender)
    good = appender.inherit_tenants(drafts)
    appender.share_runs(good)
    appender.number(good)
    steps, is_done = seal.steps + 1, seal.steps + 1 == len(positions)
    entries = seal.entries - (len(staged.drafts) - len(drafts))
    tx.execute(
        "UPDATE tape_batches SET steps = ?, is_done = ?, entries = ?, ts_ms = ? WHERE producer = ? AND batch = ?",
        steps,
        int(is_done),
        entries,
        appender.ts_ms,
        producer,
        batch,
    )
    tx.execute("DELETE FROM tape_staged WHERE stage = ? AND step = ?", name, step)
    return _Seal(seal.stages, steps, is_done, entries)


def _unseen(tx: Transaction, step: _Step) -> list[Draft]:
    """Return the drafts whose ids are new, the first of equal ids, and record these ids."""
    condition, ids = tx.is_any("row_id", step.ids)
    rows = tx.query(f"SELECT row_id FROM tape_ingested WHERE producer = ? AND {condition}", step.dedup_scope, ids)
    known = {row[0] for row in rows}
    new: dict[str, Draft] = {}
    for draft, row_id in zip(step.drafts, step.ids, strict=True):
        if row_id not in known:
            new.setdefault(row_id, draft)
    now = now_ms()
    tx.insert("tape_ingested", ("producer", "row_id", "ts_ms"), [(step.dedup_scope, row_id, now) for row_id in new])
    return list(new.values())


def expire_ids(store: str, dedup_scope: str, before_ms: int) -> int:
    """Delete the ids of a scope that were recorded before a time, 10,000 per transaction; return their number."""
    expired = 0
    while True:
        count = transact(store, lambda tx: _expire_some(tx, dedup_scope, before_ms))
        expired += count
        if count < EXPIRED_IDS_PER_STEP:
            return expired


def _expire_some(tx: Transaction, dedup_scope: str, before_ms: int) -> int:
    return tx.execute(
        "DELETE FROM tape_ingested WHERE producer = ? AND row_id IN"
        " (SELECT row_id FROM tape_ingested WHERE producer = ? AND ts_ms < ? ORDER BY ts_ms LIMIT ?)",
        dedup_scope,
        dedup_scope,
        before_ms,
        EXPIRED_IDS_PER_STEP,
    )


def _find(tx: Transaction, producer: str, batch: str) -> _Seal | None:
    row = tx.one(
        "SELECT stages, steps, is_done, entries FROM tape_batches WHERE producer = ? AND batch = ?", producer, batch
    )
    if row is None:
        return None
    return _Seal(structs.decode(row[0], list[StagedDrafts]), row[1], bool(row[2]), row[3])


def _discard(tx: Transaction, stages: Sequence[str]) -> None:
    if stages:
        condition, values = tx.is_any("stage", list(stages))
        tx.execute(f"DELETE FROM tape_staged WHERE {condition}", values)
