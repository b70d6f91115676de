"""The registry of reactions. Each registration, change and deletion has a version number.

A new reaction gets one cursor per shard. The matcher compares the registry's version inside its own
transaction, so entries are never matched by an outdated registry.
"""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.base.ids import new_id
from tape.engine.reactions.reaction import COLUMNS, Reaction
from tape.engine.reactions.shards import partition_of
from tape.errors import InvalidReaction, NotFound, ShardsApart
from tape.journal.appender import Appender, read_head
from tape.journal.reader import checked_cursor
from tape.store import Reader, Transaction
from tape.store.records import load, load_all, store

# The channel on which servers notify each other of registry changes.
CHANNEL = "tape_reactions"
# Fields that a repeated registration keeps; all others are the definition.
_BOOKKEEPING = ("created_at_ms", "updated_at_ms", "version", "deleted")


def find(reader: Reader | Transaction, reaction_id: str) -> Reaction | None:
    """The reaction with that id, deleted or not, or None."""
    return load(Reaction, reader.one(f"SELECT {COLUMNS} FROM tape_reactions WHERE reaction_id = ?", reaction_id))


def get(reader: Reader | Transaction, reaction_id: str) -> Reaction:
    """The reaction with that id, deleted or not; NotFound if there never was one."""
    found = find(reader, reaction_id)
    if found is None:
        raise NotFound(f"no such reaction: {reaction_id!r}.")
    return found


def list_registered(reader: Reader | Transaction, subject_pattern: str = "") -> list[Reaction]:
    """List registered reactions, oldest first; with a pattern, only those with exactly this pattern."""
    condition = " AND subject_pattern = ?" if subject_pattern else ""
    rows = reader.query(
        f"SELECT {COLUMNS} FROM tape_reactions WHERE deleted = 0{condition} ORDER BY created_at_ms, reaction_id",
        *([subject_pattern] if subject_pattern else []),
    )
    return load_all(Reaction, rows)


def list_changed_since(reader: Reader | Transaction, version: int) -> list[Reaction]:
    """List the reactions that were registered, changed or deleted after a version of the registry, in order."""
    rows = reader.query(f"SELECT {COLUMNS} FROM tape_reactions WHERE version > ? ORDER BY version", version)
    return load_all(Reaction, rows)


def read_version(reader: Reader | Transaction) -> int:
    """The version of the registry: the number of its last change."""
    row = reader.one("SELECT version FROM tape_reaction_catalog WHERE id = 1")
    assert row is not None, "the migration puts the row there"
    return int(row[0])


def register(tx: Transaction, wanted: Reaction, *, from_global_seq: int = 0, backfill: bool = False) -> Reaction:
    """Register a checked reaction, change the one with its id, or restore a deleted one.

    A new or restored reaction starts at the head unless `from_global_seq` or `backfill` is given. Registering
    the same definition again changes nothing.
    """
    before = find(tx, wanted.reaction_id) if wanted.reaction_id else None
    if before is not None and not before.deleted:
        return _change(tx, before, wanted)
    start = _start(tx, from_global_seq, backfill)
    reaction = msgspec.structs.replace(
        wanted,
        reaction_id=wanted.reaction_id or new_id(),
        created_at_ms=before.created_at_ms if before else now_ms(),
        deleted=False,
    )
    _insert_cursors(tx, reaction, start, start)
    return _store(tx, reaction)


def deregister(tx: Transaction, reaction_id: str) -> bool:
    """Delete a reaction; False if there never was one. Its tasks stay and can be completed."""
    reaction = find(tx, reaction_id)
    if reaction is None:
        return False
    if not reaction.deleted:
        tx.execute("DELETE FROM tape_reaction_cursors WHERE reaction_id = ?", reaction_id)
        _store(tx, msgspec.structs.replace(reaction, deleted=True))
    return True


def _change(tx: Transaction, before: Reaction, wanted: Reaction) -> Reaction:
    kept = {name: getattr(before, name) for name in _BOOKKEEPING}
    reaction = msgspec.structs.replace(wanted, **kept)
    if reaction == before:
        return before
    if reaction.num_shards != before.num_shards:
        _reshard(tx, reaction)
    return _store(tx, reaction)


def _store(tx: Transaction, reaction: Reaction) -> Reaction:
    tx.execute("UPDATE tape_reaction_catalog SET version = version + 1 WHERE id = 1")
    reaction = msgspec.structs.replace(reaction, version=read_version(tx), updated_at_ms=now_ms())
    store(tx, "tape_reactions", ("reaction_id",), reaction)
    tx.notify(CHANNEL)
    return reaction


def _start(tx: Transaction, from_global_seq: int, backfill: bool) -> int:
    # The head includes entries that this transaction has appended.
    head = msgspec.structs.replace(read_head(tx), global_seq=tx.enlist(Appender).global_seq)
    if backfill and from_global_seq:
        raise InvalidReaction(f"backfill and from_global_seq {from_global_seq} both say where to begin; give one.")
    if from_global_seq < 0:
        raise InvalidReaction(f"from_global_seq {from_global_seq} must not be negative.")
    return checked_cursor(from_global_seq, head) if backfill or from_global_seq else head.global_seq


def _insert_cursors(tx: Transaction, reaction: Reaction, start: int, began: int) -> None:
    """Insert a cursor per shard. A shard that starts before its matcher partition catches up, then joins it."""
    positions, shards = _read_partition_positions(tx), range(reaction.num_shards)
    for partition in {partition_of(reaction.reaction_id, shard) for shard in shards}:
        if not _has_live_cursor(tx, partition):
            # The partition has no live shard, so no entry before the head is left to match.
            positions[partition] = tx.enlist(Appender).global_seq
            tx.execute("UPDATE tape_reaction_lanes SET position = ? WHERE lane = ?", positions[partition], partition)
    now = now_ms()
    rows = []
    for shard in shards:
        partition = partition_of(reaction.reaction_id, shard)
        rows.append((reaction.reaction_id, shard, start, now, partition, int(start < positions[partition]), began))
    names = ("reaction_id", "shard", "last_global_seq", "last_processed_at_ms", "lane", "behind", "began")
    tx.insert("tape_reaction_cursors", names, rows)


def _reshard(tx: Transaction, reaction: Reaction) -> None:
    matched = read_matched_range(tx, reaction.reaction_id)
    if matched.first != matched.last:
        raise ShardsApart(
            f"The shards of reaction {reaction.reaction_id!r} are at positions {matched.first} to {matched.last}; their"
            " number can change once all have caught up. Retry in a moment."
        )
    tx.execute("DELETE FROM tape_reaction_cursors WHERE reaction_id = ?", reaction.reaction_id)
    _insert_cursors(tx, reaction, matched.last, matched.began)


class MatchedRange(msgspec.Struct, frozen=True):
    """The range that servers have matched: after `began` (-1: unknown), all shards up to `first`, none after `last`."""

    began: int
    first: int
    last: int


def read_matched_range(reader: Reader | Transaction, reaction_id: str) -> MatchedRange:
    """The range of the journal that servers have matched against a registered reaction."""
    rows = reader.query(
        "SELECT c.last_global_seq, l.position, c.behind, c.began FROM tape_reaction_cursors c"
        " JOIN tape_reaction_lanes l ON l.lane = c.lane WHERE c.reaction_id = ?",
        reaction_id,
    )
    shard_positions = [last if behind else max(last, position) for last, position, behind, _ in rows]
    return MatchedRange(min(row[3] for row in rows), min(shard_positions), max(shard_positions))


def _read_partition_positions(tx: Transaction) -> dict[int, int]:
    return dict(tx.query("SELECT lane, position FROM tape_reaction_lanes"))


def _has_live_cursor(tx: Transaction, partition: int) -> bool:
    return tx.one("SELECT 1 FROM tape_reaction_cursors WHERE lane = ? AND behind = 0 LIMIT 1", partition) is not None
