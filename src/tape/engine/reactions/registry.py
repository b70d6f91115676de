"""The registry of reactions. Each registration, change and deletion has a version number.

A new reaction gets one cursor per shard. The matcher compares the registry's version inside its own
transaction, so entries are never matched by an outdated registry.

The id of a tenant's reaction is a qualified name. Endpoints find it with `resolve`.
"""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.base.ids import new_id
from tape.engine.reactions.reaction import COLUMNS, MAX_ID_BYTES, Reaction, check_reaction
from tape.engine.reactions.shards import partition_of
from tape.errors import InvalidInput, InvalidReaction, NotFound, ScopeRequired, ShardsApart, SubjectNotGranted
from tape.journal.appender import Appender, read_head
from tape.journal.epochs import read_holes
from tape.journal.reader import checked_cursor
from tape.model.grants import Grants
from tape.model.pattern import Pattern
from tape.model.principal import ALL_TENANTS, current_principal
from tape.model.reaction_states import POOL, HandlerKind, TaskStatus
from tape.model.tenant_names import (
    MARK,
    display,
    name_within,
    plain_name,
    qualify,
    sees_all_names,
    split_name,
    tenant_of,
)
from tape.playbooks.pools import is_pool, reaction_fields
from tape.store import Reader, Transaction
from tape.store.records import load, load_all, store

# The channel on which servers notify each other of registry changes.
CHANNEL = "tape_reactions"
_OPEN = (TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.DLQ)
# Fields that a repeated registration keeps; all others are the definition.
_BOOKKEEPING = ("created_at_ms", "updated_at_ms", "version", "deleted", "tenant", "in_source_tenant")


def resolve(reader: Reader | Transaction, name: str) -> str:
    """The id of the reaction that the caller calls by this name: its tenant's, else one for all tenants."""
    own = qualify_reaction(name)
    if own == name:
        return own
    mine, shared = _find(reader, own), _find(reader, name)
    if shared is None or shared.tenant:
        return own
    return own if mine is not None and (shared.deleted or not mine.deleted) else name


def qualify_reaction(name: str) -> str:
    """The id of the caller's own reaction of a name. For a caller of all tenants, a bare id is for all tenants.

    Pools belong to all tenants, and so do their reactions.
    """
    return name if sees_all_names() or name.startswith(POOL) else qualify(name)


def display_reaction(reaction_id: str) -> str:
    """The id of a reaction as the caller writes it."""
    return reaction_id if sees_all_names() or not tenant_of(reaction_id) else display(reaction_id)


def find(reader: Reader | Transaction, reaction_id: str) -> Reaction | None:
    """The reaction with that id, deleted or not, or None. One that the caller does not see does not exist for it.

    For a caller of one tenant every pool exists, used or not: it does not learn which pools other tenants use.
    """
    found = _find(reader, reaction_id)
    if reaction_id.startswith(POOL) and current_principal().only_tenant is not None:
        found = _shown_pool(found, reaction_id)
    return found if found is not None and is_visible(found) else None


def is_visible(reaction: Reaction) -> bool:
    """Whether the reaction exists for the caller: it is of its tenant, or of all, and its entries are granted."""
    principal = current_principal()
    return (not reaction.tenant or principal.sees(reaction.tenant)) and _is_granted(reaction, principal.read_grants)


def _is_granted(reaction: Reaction, grants: Grants | None) -> bool:
    """Whether every entry that the reaction may fire on is among the grants; None grants all."""
    return grants is None or grants.covers(Pattern(reaction.subject_pattern))


def not_found(reaction_id: str) -> NotFound:
    """The error for a reaction that does not exist for the caller."""
    return NotFound(f"no such reaction: {display_reaction(reaction_id)!r}.")


def _find(reader: Reader | Transaction, reaction_id: str) -> Reaction | None:
    return load(Reaction, reader.one(f"SELECT {COLUMNS} FROM tape_reactions WHERE reaction_id = ?", reaction_id))


def get(reader: Reader | Transaction, reaction_id: str) -> Reaction:
    """The reaction with that id, deleted or not; NotFound if there never was one."""
    found = find(reader, reaction_id)
    if found is None:
        raise not_found(reaction_id)
    return found


def list_registered(reader: Reader | Transaction, subject_pattern: str = "") -> list[Reaction]:
    """List registered reactions, oldest first; with a pattern, only those with exactly this pattern."""
    condition, params = (" AND subject_pattern = ?", [subject_pattern]) if subject_pattern else ("", [])
    if (tenant := current_principal().only_tenant) is not None:
        condition, params = f"{condition} AND tenant IN (?, '')", [*params, tenant]
    rows = reader.query(
        f"SELECT {COLUMNS} FROM tape_reactions WHERE deleted = 0{condition} ORDER BY created_at_ms, reaction_id",
        *params,
    )
    grants = current_principal().read_grants
    found = [reaction for reaction in load_all(Reaction, rows) if _is_granted(reaction, grants)]
    return found if tenant is None else _with_own_pools(reader, found, tenant)


def _with_own_pools(reader: Reader | Transaction, found: list[Reaction], tenant: str) -> list[Reaction]:
    """The reactions without those of pools in which the tenant has no open tasks."""
    listed = []
    for reaction in found:
        if not reaction.reaction_id.startswith(POOL):
            listed.append(reaction)
        elif any(_has_task(reader, reaction.reaction_id, tenant, status) for status in _OPEN):
            listed.append(_without_times(reaction))
    return listed


def _has_task(reader: Reader | Transaction, reaction_id: str, tenant: str, status: TaskStatus) -> bool:
    condition = f"reaction_id = ? AND tenant = ? AND status = {status}"
    return reader.one(f"SELECT 1 FROM tape_tasks WHERE {condition} LIMIT 1", reaction_id, tenant) is not None


def _shown_pool(found: Reaction | None, reaction_id: str) -> Reaction | None:
    """The reaction of a pool as a caller of one tenant sees it, whether or not a tenant has used the pool."""
    if found is not None and not found.deleted:
        return _without_times(found)
    pool = reaction_id.removeprefix(POOL)
    return _reaction_of(pool) if is_pool(pool) else None


def _reaction_of(pool: str) -> Reaction:
    """The reaction of a pool, exactly as workers register it."""
    return check_reaction(Reaction(**reaction_fields(pool), handler_kind=HandlerKind.TASK))


def _without_times(reaction: Reaction) -> Reaction:
    """The reaction without the times at which another tenant may have begun to use its pool."""
    return msgspec.structs.replace(reaction, created_at_ms=0, updated_at_ms=0)


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
    """Register a checked reaction under a name, change the one that has it, or restore a deleted one.

    A new or restored reaction starts at the head unless `from_global_seq` or `backfill` is given. Registering
    the same definition again changes nothing. A new reaction belongs to the caller's tenant. It belongs to all if the
    caller sees all, or if it is the reaction of a pool: workers of several tenants share a pool. A caller with read
    grants registers a reaction only if they include every subject that fits its pattern.
    """
    if not _is_granted(wanted, grants := current_principal().read_grants):
        raise SubjectNotGranted(
            f"subject_pattern {wanted.subject_pattern!r} goes beyond the read grants, {grants}: the reaction would fire"
            " on entries that this caller may not read."
        )
    wanted = msgspec.structs.replace(wanted, reaction_id=resolve(tx, wanted.reaction_id or new_id()))
    before = _find(tx, wanted.reaction_id)
    is_pools_own = _is_pools_own(wanted)
    if before is not None and not before.deleted:
        if (
            not before.tenant
            and not current_principal().sees_all_tenants
            and (is_pools_own or before == _kept(before, wanted))
        ):
            return _without_times(before) if before.reaction_id.startswith(POOL) else before
        _check_can_change(before)
        return _change(tx, before, wanted)
    if before is not None and not is_pools_own:
        _check_can_change(before)
    start = _start(tx, from_global_seq, backfill)
    principal = current_principal()
    reaction = msgspec.structs.replace(
        wanted,
        created_at_ms=before.created_at_ms if before else now_ms(),
        deleted=False,
        tenant=before.tenant if before else _tenant_of(wanted, is_pools_own=is_pools_own),
        in_source_tenant=bool(principal.key_id) and principal.sees_all_tenants,
    )
    _insert_cursors(tx, reaction, start, start)
    stored = _store(tx, reaction)
    return _without_times(stored) if is_pools_own and principal.only_tenant is not None else stored


def deregister(tx: Transaction, reaction_id: str) -> bool:
    """Delete a reaction; False if there never was one. Its tasks stay and can be completed."""
    reaction = find(tx, reaction_id)
    if reaction is None:
        return False
    _check_can_change(reaction)
    if not reaction.deleted:
        tx.execute("DELETE FROM tape_reaction_cursors WHERE reaction_id = ?", reaction_id)
        _store(tx, msgspec.structs.replace(reaction, deleted=True))
    return True


# The tables that name a reaction beside its own.
_NAMING = ("tape_reaction_cursors", "tape_reaction_pace", "tape_tasks", "tape_entry_causes")


def move_reactions(tx: Transaction, old: str, new: str) -> int:
    """Give the reactions of `old` (empty: of no tenant) to `new`, with cursors and tasks; how many.

    Those of pools stay, and those for all tenants that a caller with a key registered. InvalidInput if an id is taken.
    """
    rows = tx.query(f"SELECT {COLUMNS} FROM tape_reactions WHERE tenant = ? AND in_source_tenant = 0", old)
    moved = [each for each in load_all(Reaction, rows) if not each.deleted and not each.reaction_id.startswith(POOL)]
    for reaction in moved:
        name = plain_name(reaction.reaction_id) if old else reaction.reaction_id
        reaction_id = name_within(new, name)
        taken = _find(tx, reaction_id)
        if taken is not None and not taken.deleted:
            raise InvalidInput(f"reaction_id {name!r} is in both tenants; nothing was moved. Deregister one of them.")
        for table in _NAMING:
            tx.execute(f"UPDATE {table} SET reaction_id = ? WHERE reaction_id = ?", reaction_id, reaction.reaction_id)
        # The old row stays as a deleted one: that is how a server that matches now learns of it.
        _store(tx, msgspec.structs.replace(reaction, deleted=True))
        _store(tx, msgspec.structs.replace(reaction, reaction_id=reaction_id, tenant=new))
    return len(moved)


def _is_pools_own(wanted: Reaction) -> bool:
    """Whether the reaction is that of a pool, exactly as workers register it."""
    pool = wanted.reaction_id.removeprefix(POOL)
    if not wanted.reaction_id.startswith(POOL) or not is_pool(pool):
        return False
    return wanted == _reaction_of(pool)


def _tenant_of(wanted: Reaction, *, is_pools_own: bool) -> str:
    principal = current_principal()
    if principal.is_open or is_pools_own:
        return ""
    tenant, name = split_name(wanted.reaction_id)
    if name.startswith(MARK):
        raise InvalidReaction(f"reaction_id {display_reaction(wanted.reaction_id)!r} must not begin with {MARK!r}.")
    if len(wanted.reaction_id.encode()) > MAX_ID_BYTES:
        raise InvalidReaction(f"reaction_id {name[:40]!r}… has more than {MAX_ID_BYTES} bytes with its tenant.")
    if wanted.reaction_id.startswith(POOL) and not principal.sees_all_tenants:
        raise _shared(wanted.reaction_id)
    return tenant


def _shared(reaction_id: str) -> ScopeRequired:
    if reaction_id.startswith(POOL):
        return ScopeRequired(
            f"reaction_id {reaction_id!r} is that of a pool, which all tenants share; to define it differently"
            f" needs the scope {ALL_TENANTS}."
        )
    return ScopeRequired(f"reaction {reaction_id!r} is for all tenants; to change it needs the scope {ALL_TENANTS}.")


def _check_can_change(reaction: Reaction) -> None:
    """Raise unless the reaction is the caller's own, or the caller sees all tenants."""
    if not current_principal().sees(reaction.tenant):
        raise _shared(reaction.reaction_id)
    if not _is_granted(reaction, grants := current_principal().read_grants):
        raise SubjectNotGranted(
            f"reaction_id {display_reaction(reaction.reaction_id)!r} is taken by a reaction that goes beyond the read"
            f" grants, {grants}; choose another."
        )


def _kept(before: Reaction, wanted: Reaction) -> Reaction:
    return msgspec.structs.replace(wanted, **{name: getattr(before, name) for name in _BOOKKEEPING})


def _change(tx: Transaction, before: Reaction, wanted: Reaction) -> Reaction:
    reaction = _kept(before, wanted)
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
    return (
        checked_cursor(from_global_seq, head, read_holes(tx, head)) if backfill or from_global_seq else head.global_seq
    )


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
            f"The shards of reaction {display_reaction(reaction.reaction_id)!r} are at positions {matched.first} to"
            f" {matched.last}; their number can change once all have caught up. Retry in a moment."
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
