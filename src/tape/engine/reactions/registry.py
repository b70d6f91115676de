"""The registry: reactions come, change and go, and each change has a number.

A new reaction gets a cursor per shard. Whoever matches compares the number of the last change inside
its own transaction, so that nothing is ever matched by a registry that is out of date.
"""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.base.ids import new_id
from tape.engine.reactions.reaction import COLUMNS, Reaction
from tape.engine.reactions.shards import lane_of
from tape.errors import InvalidReaction, NotFound, ShardsApart
from tape.journal.appender import Appender, read_head
from tape.journal.reader import checked_cursor
from tape.store import Reader, Transaction
from tape.store.records import load, load_all, store

# Where servers tell each other that the registry has changed.
CHANNEL = "tape_reactions"
# What registering again may leave as it is; all other fields are the definition.
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


def registered(reader: Reader | Transaction, subject_pattern: str = "") -> list[Reaction]:
    """The reactions that are registered, all or those with exactly this pattern, the oldest first."""
    condition = " AND subject_pattern = ?" if subject_pattern else ""
    rows = reader.query(
        f"SELECT {COLUMNS} FROM tape_reactions WHERE deleted = 0{condition} ORDER BY created_at_ms, reaction_id",
        *([subject_pattern] if subject_pattern else []),
    )
    return load_all(Reaction, rows)


def changed_since(reader: Reader | Transaction, version: int) -> list[Reaction]:
    """The reactions that came, changed or went after that change of the registry, in order."""
    rows = reader.query(f"SELECT {COLUMNS} FROM tape_reactions WHERE version > ? ORDER BY version", version)
    return load_all(Reaction, rows)


def read_version(reader: Reader | Transaction) -> int:
    """The number of the last change."""
    row = reader.one("SELECT version FROM tape_reaction_catalog WHERE id = 1")
    assert row is not None, "the migration puts the row there"
    return int(row[0])


def register(tx: Transaction, wanted: Reaction, *, from_global_seq: int = 0, backfill: bool = False) -> Reaction:
    """Register a checked reaction, change the one with its id, or bring a deleted one back.

    A new one, and one that comes back, begins at the head unless it is told otherwise. Registering what
    is there already changes nothing.
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
    _place_cursors(tx, reaction, start, start)
    return _store(tx, reaction)


def deregister(tx: Transaction, reaction_id: str) -> bool:
    """Remove a reaction; False if there never was one. Tasks that it has made stay and can be worked off."""
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
    # Entries that this transaction has appended already count as being there.
    head = msgspec.structs.replace(read_head(tx), global_seq=tx.enlist(Appender).global_seq)
    if backfill and from_global_seq:
        raise InvalidReaction(f"backfill and from_global_seq {from_global_seq} both say where to begin; give one.")
    if from_global_seq < 0:
        raise InvalidReaction(f"from_global_seq {from_global_seq} must not be negative.")
    return checked_cursor(from_global_seq, head) if backfill or from_global_seq else head.global_seq


def _place_cursors(tx: Transaction, reaction: Reaction, start: int, began: int) -> None:
    """A cursor per shard. One that begins before its lane catches up by itself and then joins it."""
    positions, shards = _lane_positions(tx), range(reaction.num_shards)
    for lane in {lane_of(reaction.reaction_id, shard) for shard in shards}:
        if not _is_used(tx, lane):
            # Nobody has looked at the entries since: there is nothing for this lane to go through.
            positions[lane] = tx.enlist(Appender).global_seq
            tx.execute("UPDATE tape_reaction_lanes SET position = ? WHERE lane = ?", positions[lane], lane)
    now = now_ms()
    rows = []
    for shard in shards:
        lane = lane_of(reaction.reaction_id, shard)
        rows.append((reaction.reaction_id, shard, start, now, lane, int(start < positions[lane]), began))
    names = ("reaction_id", "shard", "last_global_seq", "last_processed_at_ms", "lane", "behind", "began")
    tx.insert("tape_reaction_cursors", names, rows)


def _reshard(tx: Transaction, reaction: Reaction) -> None:
    extent = matched_by_servers(tx, reaction.reaction_id)
    if extent.first != extent.last:
        raise ShardsApart(
            f"The shards of reaction {reaction.reaction_id!r} stand between {extent.first} and {extent.last}; their"
            " number can change once they have caught up. Try again in a moment."
        )
    tx.execute("DELETE FROM tape_reaction_cursors WHERE reaction_id = ?", reaction.reaction_id)
    _place_cursors(tx, reaction, extent.last, extent.began)


class Extent(msgspec.Struct, frozen=True):
    """What servers have matched: after `began` (-1: nobody knows), every shard up to `first`, none beyond `last`."""

    began: int
    first: int
    last: int


def matched_by_servers(reader: Reader | Transaction, reaction_id: str) -> Extent:
    """The stretch of the journal that a registered reaction has been matched against as it came."""
    rows = reader.query(
        "SELECT c.last_global_seq, l.position, c.behind, c.began FROM tape_reaction_cursors c"
        " JOIN tape_reaction_lanes l ON l.lane = c.lane WHERE c.reaction_id = ?",
        reaction_id,
    )
    places = [last if behind else max(last, position) for last, position, behind, _ in rows]
    return Extent(min(row[3] for row in rows), min(places), max(places))


def _lane_positions(tx: Transaction) -> dict[int, int]:
    return dict(tx.query("SELECT lane, position FROM tape_reaction_lanes"))


def _is_used(tx: Transaction, lane: int) -> bool:
    return tx.one("SELECT 1 FROM tape_reaction_cursors WHERE lane = ? AND behind = 0 LIMIT 1", lane) is not None
