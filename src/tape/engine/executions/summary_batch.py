"""Begins runs that are kept as a summary: those of one transaction that have the same playbook share an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tape.engine.catalog import Resource
from tape.engine.executions.pools import command_subject
from tape.engine.ledgers.summary_runs import is_block_taken
from tape.engine.reactions.downstreams import name_of
from tape.model.entry import Draft
from tape.model.execution_ids import BLOCK_SIZE, new_block
from tape.model.summary_command import SummaryCommand, SummaryPart, fold
from tape.model.tenant_names import plain_name
from tape.store import Transaction

if TYPE_CHECKING:
    from tape.engine.executions.execute import ExecuteRequest

# An entry is closed at this size, so that readers and matchers need not hold large ones.
MAX_ENTRY_BYTES = 256 << 10


class _Key(NamedTuple):
    """What the runs of an entry have in common."""

    catalog_id: int
    path: str
    version: int
    pool: str
    tenant: str
    parent: int
    subscription: str
    source: str
    downstream: str
    order_scope: str


class _Shared:
    """An entry in the making."""

    def __init__(self, block: int, number: int) -> None:
        self.block = block
        self.number = number
        self.parts: list[SummaryPart] = []
        self.size = 0


class SummaryBatch:
    """The entries of one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._open: dict[_Key, _Shared] = {}
        self._all: list[tuple[_Key, _Shared]] = []
        # The last entry of each ordering key in a pool: a later run of the key is not begun by an earlier entry.
        self._last: dict[tuple[str, str, str], int] = {}

    def add(self, request: ExecuteRequest, resource: Resource, pool: str, tenant: str) -> str:
        """Begin a run; its id."""
        subscription = plain_name(request.subscription)
        source = str(request.input.get("source", "")) if subscription else ""
        key = _Key(
            resource.catalog_id,
            resource.path,
            resource.version,
            pool,
            tenant,
            request.parent,
            subscription,
            source,
            name_of(request.subscription, request.downstream) if subscription and request.downstream else "",
            request.scope if request.ordering_key else "",
        )
        message = fold(request.input, request.message_id, subscription, source) if subscription else None
        part = SummaryPart(
            message_id=request.message_id,
            message=message,
            payload=request.input if message is None else None,
            priority=request.priority,
            ordering_key=request.ordering_key,
            trace=request.trace or {},
        )
        size = len(msgspec.json.encode(part))
        shared, order = self._open.get(key), (pool, key.order_scope, request.ordering_key)
        is_full = shared is not None and (len(shared.parts) == BLOCK_SIZE or shared.size + size > MAX_ENTRY_BYTES)
        if shared is None or is_full or shared.number < self._last.get(order, 0):
            shared = self._open[key] = _Shared(self._new_block(), len(self._all))
            self._all.append((key, shared))
        if request.ordering_key:
            self._last[order] = shared.number
        shared.parts.append(part)
        shared.size += size
        return str(shared.block + len(shared.parts) - 1)

    def drafts(self) -> list[Draft]:
        """The entries to append."""
        return [_draft(key, shared) for key, shared in self._all]

    def _new_block(self) -> int:
        """A block of ids that no run has. Two processes can make the same one; the later one makes another."""
        while is_block_taken(self._tx, block := new_block(), block + BLOCK_SIZE - 1):
            pass
        return block


def _draft(key: _Key, shared: _Shared) -> Draft:
    command = SummaryCommand(
        path=key.path,
        version=key.version,
        catalog_id=str(key.catalog_id),
        pool=key.pool,
        parent_execution_id=str(key.parent) if key.parent else "",
        subscription=key.subscription,
        source=key.source,
        downstream=key.downstream,
        order_scope=key.order_scope,
        runs=shared.parts,
    )
    return Draft(
        subject=command_subject(key.pool, str(shared.block)),
        kind="command",
        run_id=str(shared.block),
        payload_json=command.to_json(),
        tenant=key.tenant,
        session=key.subscription,
    )
