"""Changes by SQL: what a script, an operator or an intruder with access to the database does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from tape.model.chain import canonical, link
from tape.model.checksum import checksum
from tape.model.entry import Entry
from tests.damage.truth import Truth


class Sql(Protocol):
    """A connection to the database of a case; parameters are `?`."""

    def __call__(self, sql: str, *params: Any) -> list[tuple[Any, ...]]: ...


SqlDamage = Callable[[Sql, Truth, random.Random], str]


def update_column(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """Another value in one column of an entry."""
    entry = chance.choice(truth.entries)
    changes: dict[str, Any] = {
        "payload_json": entry.payload_json.replace('"amount": ', '"amount": 1'),
        "subject": entry.subject + "9",
        "run_id": "run-x",
        "ts_ms": entry.ts_ms + 1,
        "schema_version": entry.schema_version + 1,
        "tenant": entry.tenant + "x",
        '"user"': entry.user + "x",
        "session": entry.session + "x",
        "kind": entry.kind + "x",
        "seq": entry.seq + 100_000,
        "trace_id": "0" * 32,
        "chain": bytes(32),
    }
    column = chance.choice(sorted(changes))
    sql(f"UPDATE tape_journal SET {column} = ? WHERE global_seq = ?", changes[column], entry.global_seq)
    return f"{column} of entry {entry.global_seq}"


def renumber_entry(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """An entry gets a number far ahead of the head."""
    entry, number = chance.choice(truth.entries), 4_000_000_000
    sql("UPDATE tape_journal SET global_seq = ? WHERE global_seq = ?", number, entry.global_seq)
    return f"entry {entry.global_seq} has the number {number}"


def delete_rows(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """One entry or a few are deleted."""
    first = chance.choice(truth.entries).global_seq
    last = min(first + chance.choice((0, 0, 3, 40)), truth.head)
    sql("DELETE FROM tape_journal WHERE global_seq BETWEEN ? AND ?", first, last)
    return f"entries {first} to {last}"


def swap_payloads(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """Two entries have each other's payload."""
    one, other = chance.sample(truth.entries, 2)
    for entry, payload in ((one, other.payload_json), (other, one.payload_json)):
        sql("UPDATE tape_journal SET payload_json = ? WHERE global_seq = ?", payload, entry.global_seq)
    return f"payloads of {one.global_seq} and {other.global_seq}"


def change_run_head(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """The last seq of a run is another, or is gone."""
    run = chance.choice(truth.entries)
    if chance.random() < 0.5:
        sql("DELETE FROM tape_run_heads WHERE run_id = ? AND tenant = ?", run.run_id, run.tenant)
        return f"head of {run.run_id!r} of {run.tenant!r} deleted"
    step = chance.choice((-5, -1, 3))
    sql("UPDATE tape_run_heads SET seq = seq + ? WHERE run_id = ? AND tenant = ?", step, run.run_id, run.tenant)
    return f"head of {run.run_id!r} of {run.tenant!r} moved by {step}"


def move_head_back(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """The head names an older entry; the entries after it are still there."""
    entry = truth.entries[-1 - chance.randint(1, 50)]
    _set_head(sql, entry)
    return f"to {entry.global_seq}"


def move_head_on(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """The head names a number that was never given out."""
    number = truth.head + chance.choice((1, 50, 5_000))
    sql("UPDATE tape_head SET global_seq = ? WHERE id = 1", number)
    return f"to {number}"


def drop_tail(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """The last entries are gone, and head and runs look as they were before them."""
    count = chance.randint(1, 50)
    kept, gone = truth.entries[:-count], truth.entries[-count:]
    sql("DELETE FROM tape_journal WHERE global_seq > ?", kept[-1].global_seq)
    _set_head(sql, kept[-1])
    for run_id, tenant in {(entry.run_id, entry.tenant) for entry in gone}:
        seq = max((entry.seq for entry in kept if (entry.run_id, entry.tenant) == (run_id, tenant)), default=0)
        sql("UPDATE tape_run_heads SET seq = ? WHERE run_id = ? AND tenant = ?", seq, run_id, tenant)
    return f"entries {gone[0].global_seq} to {gone[-1].global_seq}"


def rewrite_tail(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """An entry is altered, and the chain is computed again from there to the head."""
    index = len(truth.entries) - chance.randint(1, 50)
    altered = msgspec.structs.replace(
        truth.entries[index], payload_json=truth.entries[index].payload_json.replace('"amount": ', '"amount": 1')
    )
    before = truth.entries[index - 1].chain
    for entry in [altered, *truth.entries[index + 1 :]]:
        before = _chained(before, entry)
        rewritten = msgspec.structs.replace(entry, chain=before)
        row = (rewritten.payload_json, before, _checksum(rewritten), rewritten.global_seq)
        sql("UPDATE tape_journal SET payload_json = ?, chain = ?, checksum = ? WHERE global_seq = ?", *row)
    sql("UPDATE tape_head SET chain = ? WHERE id = 1", before)
    return f"entry {altered.global_seq} and the chain up to {truth.head}"


def forge_prune(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """The first entries are gone, as if retention had removed them."""
    first = truth.entries[chance.randint(1, len(truth.entries) // 2)]
    anchor = truth.entries[first.global_seq - 2].chain
    sql("DELETE FROM tape_journal WHERE global_seq < ?", first.global_seq)
    sql("UPDATE tape_head SET oldest = ?, anchor = ? WHERE id = 1", first.global_seq, anchor)
    return f"entries 1 to {first.global_seq - 1}"


def forge_epoch(sql: Sql, truth: Truth, chance: random.Random) -> str:
    """Entries are gone, as if a failover had lost them."""
    index = chance.randint(1, len(truth.entries) - 20)
    cut, resumed = truth.entries[index].global_seq, truth.entries[index + chance.randint(2, 15)].global_seq
    sql("DELETE FROM tape_journal WHERE global_seq > ? AND global_seq < ?", cut, resumed)
    row = (2, cut, resumed, resumed - 1, "failover", 0)
    sql("INSERT INTO tape_epochs (epoch, cut_after, resumes_at, last_known, cause, ts_ms) VALUES (?,?,?,?,?,?)", *row)
    sql("UPDATE tape_head SET epoch = 2 WHERE id = 1")
    return f"entries {cut + 1} to {resumed - 1}"


KINDS: dict[str, SqlDamage] = {
    "column updated": update_column,
    "entry renumbered": renumber_entry,
    "rows deleted": delete_rows,
    "payloads swapped": swap_payloads,
    "run head changed": change_run_head,
    "head moved on": move_head_on,
    "head moved back": move_head_back,
    "tail dropped": drop_tail,
    "tail rewritten": rewrite_tail,
    "prune forged": forge_prune,
    "epoch forged": forge_epoch,
}
# What leaves a journal that is consistent in itself: `verify` must name it, readers need not.
FORGERIES = frozenset({"head moved back", "tail dropped", "tail rewritten", "prune forged", "epoch forged"})


def _set_head(sql: Sql, entry: Entry) -> None:
    values = (entry.global_seq, entry.chain, entry.ts_ms)
    sql("UPDATE tape_head SET global_seq = ?, chain = ?, ts_ms = ? WHERE id = 1", *values)


def _chained(before: bytes, entry: Entry) -> bytes:
    texts: Sequence[str] = (
        *(entry.run_id, entry.kind, entry.subject, entry.payload_json, entry.trace_id, entry.span_id),
        *(entry.parent_span_id, entry.tenant, entry.user, entry.session),
    )
    return link(before, canonical(entry.global_seq, entry.seq, entry.ts_ms, entry.schema_version, texts))


def _checksum(entry: Entry) -> int:
    """The stored checksum of an entry, as an intruder computes it."""
    return checksum(msgspec.structs.astuple(entry))
