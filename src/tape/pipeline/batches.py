"""Appending batches exactly once, whatever is killed and repeated.

Tasks check their rows and *stage* them in the store, each under a name of its own. When all tasks are
done, the driver *seals* the batch: one row that names the producer, the batch and its stages. Then it
appends step by step, each step in the same transaction as the count of steps. A batch that comes again
finds its seal: what was sealed first is finished, what was staged again is thrown away. So the content of
a batch is decided once, even if the source would give another the second time.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from tape.base.clock import now_ms
from tape.errors import BatchOutOfOrder, PipelineInput, StoreBusy, StoreUnavailable
from tape.journal.appender import Appender, append
from tape.model.entry import Draft
from tape.pipeline.journal_batches import PATIENCE_S, PAUSE_S, ask_patiently
from tape.pipeline.options import journal_database, shown
from tape.store import Reader, Transaction
from tape.store.connection import DatabaseConnection

log = logging.getLogger(__name__)

T = TypeVar("T")

# Entries that are staged in one row and appended in one transaction: other writers wait that long only.
STEP_ENTRIES = 2_000
STEP_BYTES = 8 << 20
# A stage that no batch has asked for by now belongs to a task or driver that was killed.
FORGOTTEN_AFTER_MS = 24 * 3600 * 1000
# A stream repeats its last batch at most; a few more are kept for people to look at.
KEPT_BATCHES = 100
# Ids that are forgotten in one transaction.
FORGOTTEN_IDS = 10_000


class _Step(msgspec.Struct, array_like=True):
    """Drafts that go in together; with ids, those whose id `memory` knows are left out."""

    drafts: list[Draft]
    ids: list[str] = []
    memory: str = ""


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Step).decode


class Stage(msgspec.Struct, frozen=True):
    """What one task has handed over."""

    name: str
    steps: int
    entries: int


class Appended(msgspec.Struct, frozen=True):
    """A batch that is in the journal; `is_repeated` if it was before. Duplicates by id are not among the entries."""

    entries: int
    is_repeated: bool


def transact(store: str, operation: Callable[[Transaction], T]) -> T:
    """Run one operation on a journal's database in a transaction of its own; a busy database is waited for."""
    connection = _begun(store)
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


def _begun(store: str) -> DatabaseConnection:
    """A connection with a transaction begun: until here nothing was done, so it can be tried again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        connection = None
        try:
            connection = journal_database(store).connect()
            if not connection.has_table("tape_checkpoints"):
                raise PipelineInput(f"The database {shown(store)} is not up to date. Run: tape migrate --store …")
            connection.begin()
            return connection
        except (StoreBusy, StoreUnavailable) as error:
            if connection is not None:
                connection.close()
            if time.monotonic() > deadline:
                raise
            log.warning("the journal cannot be written to, trying again: %s", error)
            time.sleep(PAUSE_S)
        except BaseException:
            if connection is not None:
                connection.close()
            raise


def stage(store: str, drafts: Iterable[Draft]) -> Stage:
    """Hand over checked drafts. Nothing stays behind if the drafts cannot all be had."""
    return stage_known(store, ((draft, "") for draft in drafts), "")


def stage_known(store: str, drafts: Iterable[tuple[Draft, str]], memory: str) -> Stage:
    """Hand over checked drafts with their ids: of those that the memory of that name knows, none is appended again."""
    name, steps, entries, size = uuid.uuid4().hex, 0, 0, 0
    waiting: list[Draft] = []
    ids: list[str] = []

    def put() -> None:
        nonlocal steps, entries, size
        row = (name, steps, _pack(_Step(waiting, ids, memory)), now_ms())
        transact(store, lambda tx: tx.insert("tape_staged", ("stage", "step", "drafts", "ts_ms"), [row]))
        steps += 1
        entries += len(waiting)
        size = 0
        waiting.clear()
        ids.clear()

    try:
        for draft, row_id in drafts:
            waiting.append(draft)
            if memory:
                ids.append(row_id)
            size += len(draft.payload_json)
            if len(waiting) == STEP_ENTRIES or size >= STEP_BYTES:
                put()
        if waiting:
            put()
    except BaseException:
        if steps:
            discard(store, [name])
        raise
    return Stage(name, steps, entries)


def discard(store: str, stages: Sequence[str]) -> None:
    """Throw away what was staged."""
    if stages:
        transact(store, lambda tx: _discard(tx, stages))


def append_batch(store: str, producer: str, batch: str, stages: Sequence[Stage], *, number: int = -1) -> Appended:
    """Append what was staged, unless this batch of this producer already is. `number` orders a stream's batches."""
    seal, is_new = transact(store, lambda tx: _seal(tx, producer, batch, number, stages))
    while not seal.is_done:
        seal = transact(store, lambda tx: _append_step(tx, producer, batch))
    return Appended(seal.entries, is_repeated=not is_new)


def finish_batches(store: str, producer: str) -> int:
    """Append what is left of batches of a producer that was killed; how many there were."""
    rows = ask_patiently(
        store,
        lambda reader: reader.query("SELECT batch FROM tape_batches WHERE producer = ? AND is_done = 0", producer),
    )
    for (batch,) in rows:
        append_batch(store, producer, batch, [])
    return len(rows)


def find_batch(reader: Reader | Transaction, producer: str, batch: str) -> Appended | None:
    """A batch that is in the journal already, or None."""
    row = reader.one(
        "SELECT entries FROM tape_batches WHERE producer = ? AND batch = ? AND is_done = 1", producer, batch
    )
    return None if row is None else Appended(row[0], is_repeated=True)


def append_once(store: str, stages: Sequence[Stage]) -> Appended:
    """Append what was staged as a batch without a name; it cannot be repeated, so nothing remembers it."""
    batch = uuid.uuid4().hex
    appended = append_batch(store, "", batch, stages)
    transact(store, lambda tx: tx.execute("DELETE FROM tape_batches WHERE producer = '' AND batch = ?", batch))
    return appended


def last_number(reader: Reader | Transaction, producer: str) -> int | None:
    """The number of a producer's last batch; None if it has none yet."""
    row = reader.one("SELECT MAX(number) FROM tape_batches WHERE producer = ? AND number >= 0", producer)
    return None if row is None or row[0] is None else int(row[0])


class _Seal(msgspec.Struct, frozen=True):
    stages: list[Stage]
    steps: int
    is_done: bool
    entries: int


def _seal(tx: Transaction, producer: str, batch: str, number: int, stages: Sequence[Stage]) -> tuple[_Seal, bool]:
    now = now_ms()
    _forget_stages(tx, now - FORGOTTEN_AFTER_MS)
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


def _forget_stages(tx: Transaction, before_ms: int) -> None:
    """Drop what killed tasks left; while a sealed batch is unfinished, its stages may be among the old ones."""
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
            f"The producer {producer!r} has appended its batch {last} already, and now batch {number} comes that it"
            " never appended: it belongs to another checkpoint. Give the new stream a producer name of its own."
        )
    tx.execute(
        "DELETE FROM tape_batches WHERE producer = ? AND number >= 0 AND number < ?", producer, number - KEPT_BATCHES
    )


def _append_step(tx: Transaction, producer: str, batch: str) -> _Seal:
    """Append the next staged step of a batch and count it."""
    seal = _find(tx, producer, batch)
    assert seal is not None, "the batch was sealed"
    places = [(one.name, step) for one in seal.stages for step in range(one.steps)]
    if seal.is_done:
        return seal
    name, step = places[seal.steps]
    row = tx.one("SELECT drafts FROM tape_staged WHERE stage = ? AND step = ?", name, step)
    if row is None:
        raise PipelineInput(
            f"Step {step} of the stage {name} of batch {batch!r} of {producer!r} is gone from the store."
        )
    handed = _unpack(row[0])
    drafts = _unseen(tx, handed) if handed.memory else handed.drafts
    append(tx, drafts)
    steps, is_done = seal.steps + 1, seal.steps + 1 == len(places)
    entries = seal.entries - (len(handed.drafts) - len(drafts))
    tx.execute(
        "UPDATE tape_batches SET steps = ?, is_done = ?, entries = ?, ts_ms = ? WHERE producer = ? AND batch = ?",
        steps,
        int(is_done),
        entries,
        tx.enlist(Appender).ts_ms,
        producer,
        batch,
    )
    tx.execute("DELETE FROM tape_staged WHERE stage = ? AND step = ?", name, step)
    return _Seal(seal.stages, steps, is_done, entries)


def _unseen(tx: Transaction, step: _Step) -> list[Draft]:
    """The drafts whose ids are new to the memory, which knows them from now on; of equal ids the first."""
    condition, ids = tx.is_any("row_id", step.ids)
    rows = tx.query(f"SELECT row_id FROM tape_ingested WHERE producer = ? AND {condition}", step.memory, ids)
    known = {row[0] for row in rows}
    new: dict[str, Draft] = {}
    for draft, row_id in zip(step.drafts, step.ids, strict=True):
        if row_id not in known:
            new.setdefault(row_id, draft)
    now = now_ms()
    tx.insert("tape_ingested", ("producer", "row_id", "ts_ms"), [(step.memory, row_id, now) for row_id in new])
    return list(new.values())


def forget_ids(store: str, memory: str, before_ms: int) -> int:
    """Forget the ids that a memory has learnt before a time, some at a time; how many."""
    forgotten = 0
    while True:
        count = transact(store, lambda tx: _forget_some(tx, memory, before_ms))
        forgotten += count
        if count < FORGOTTEN_IDS:
            return forgotten


def _forget_some(tx: Transaction, memory: str, before_ms: int) -> int:
    return tx.execute(
        "DELETE FROM tape_ingested WHERE producer = ? AND row_id IN"
        " (SELECT row_id FROM tape_ingested WHERE producer = ? AND ts_ms < ? ORDER BY ts_ms LIMIT ?)",
        memory,
        memory,
        before_ms,
        FORGOTTEN_IDS,
    )


def _find(tx: Transaction, producer: str, batch: str) -> _Seal | None:
    row = tx.one(
        "SELECT stages, steps, is_done, entries FROM tape_batches WHERE producer = ? AND batch = ?", producer, batch
    )
    if row is None:
        return None
    return _Seal(msgspec.json.decode(row[0], type=list[Stage]), row[1], bool(row[2]), row[3])


def _discard(tx: Transaction, stages: Sequence[str]) -> None:
    if stages:
        condition, values = tx.is_any("stage", list(stages))
        tx.execute(f"DELETE FROM tape_staged WHERE {condition}", values)
