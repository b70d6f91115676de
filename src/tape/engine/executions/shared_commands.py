"""Begins runs by entries that messages of one transaction share: runs that are kept as a summary, and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape.base.telemetry.tracing import NO_TRACE
from tape.engine.catalog import Resource
from tape.engine.executions.pools import command_subject
from tape.engine.ledgers import summary_runs
from tape.engine.ledgers.run_batches import RunOpening, open_runs
from tape.engine.ledgers.run_record import Run
from tape.engine.reactions.downstreams import name_of
from tape.model.entry import Draft
from tape.model.execution_ids import BLOCK_SIZE, new_block
from tape.model.shared_command import SUMMARY, SharedCommand, SharedPart, batch_message, fold, fold_message
from tape.model.tenant_names import plain_name
from tape.store import Transaction

if TYPE_CHECKING:
    from tape.engine.executions.execute import ExecuteRequest

# An entry is closed at this size, so that readers, matchers and workers need not hold large ones.
MAX_ENTRY_BYTES = 256 << 10


class _Key(NamedTuple):
    """What the messages of an entry have in common. Those of a batch have the ordering key in common, too."""

    record: str
    batch: int
    max_bytes: int
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
    ordering_key: str
    priority: str


class _Shared:
    """An entry in the making."""

    def __init__(self, key: _Key, block: int, number: int) -> None:
        self.key = key
        self.block = block
        self.number = number
        self.parts: list[SharedPart] = []
        self.size = 0

    def can_take(self, size: int) -> bool:
        most = self.key.batch or BLOCK_SIZE
        return len(self.parts) < most and self.size + size <= self.key.max_bytes

    def add(self, part: SharedPart, size: int) -> str:
        """The id of the message's run."""
        self.parts.append(part)
        self.size += size
        return str(self.block + len(self.parts) - (0 if self.key.batch else 1))


class SharedCommands:
    """The entries of one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._open: dict[_Key, _Shared] = {}
        self._all: list[_Shared] = []
        # The last entry of each ordering key in a pool: a later run of the key is not begun by an earlier entry.
        self._last: dict[tuple[str, str, str], int] = {}

    def add(self, request: ExecuteRequest, resource: Resource, pool: str, tenant: str) -> str:
        """Begin the run of a message, or add the message to a batch; its id."""
        subscription = plain_name(request.subscription)
        source = str(request.input.get("source", "")) if subscription else ""
        key = _Key(
            record=request.record,
            batch=request.batch,
            max_bytes=min(MAX_ENTRY_BYTES, request.max_bytes),
            catalog_id=resource.catalog_id,
            path=resource.path,
            version=resource.version,
            pool=pool,
            tenant=tenant,
            parent=request.parent,
            subscription=subscription,
            source=source,
            downstream=name_of(request.subscription, request.downstream) if subscription and request.downstream else "",
            order_scope=request.scope if request.ordering_key else "",
            ordering_key=request.ordering_key if request.batch else "",
            priority=request.priority if request.batch else "",
        )
        message = _message(request, subscription, source) if subscription else None
        part = SharedPart(
            message_id=request.message_id,
            message=message,
            payload=request.input if message is None else None,
            priority=request.priority,
            ordering_key=request.ordering_key,
            trace=request.trace or {},
        )
        size = len(msgspec.json.encode(part))
        shared, order = self._open.get(key), (pool, key.order_scope, request.ordering_key)
        if shared is None or not shared.can_take(size) or shared.number < self._last.get(order, 0):
            shared = self._open[key] = _Shared(key, self._new_block(), len(self._all))
            self._all.append(shared)
        if request.ordering_key:
            self._last[order] = shared.number
        return shared.add(part, size)

    def drafts(self) -> list[Draft]:
        """The entries to append. Inserts the runs of batches that are recorded in full."""
        drafts = []
        for shared in self._all:
            key, run_id = shared.key, str(shared.block)
            command = SharedCommand(
                record=key.record,
                path=key.path,
                version=key.version,
                catalog_id=str(key.catalog_id),
                pool=key.pool,
                parent_execution_id=str(key.parent) if key.parent else "",
                subscription=key.subscription,
                source=key.source,
                downstream=key.downstream,
                order_scope=key.order_scope,
                batch=key.batch > 0,
                runs=shared.parts,
            )
            if key.batch and key.record != SUMMARY:
                run = Run(**summary_runs.run_fields(command, run_id, key.tenant))
                drafts += open_runs(self._tx, [RunOpening(run, {"messages": len(shared.parts)}, NO_TRACE)])
            drafts.append(
                Draft(
                    subject=command_subject(key.pool, run_id),
                    kind="command",
                    run_id=run_id,
                    payload_json=msgspec.json.encode(command).decode(),
                    tenant=key.tenant,
                    session=key.subscription,
                )
            )
        return drafts

    def _new_block(self) -> int:
        """A block of ids that no run has. Two processes can make the same one; the later one makes another."""
        while summary_runs.is_block_taken(self._tx, block := new_block(), block + BLOCK_SIZE - 1):
            pass
        return block


def _message(request: ExecuteRequest, subscription: str, source: str) -> dict[str, Any] | None:
    """The message of a request, folded; None if there is none, or if the payload is more than the message."""
    if not request.batch:
        return fold(request.input, request.message_id, subscription, source)
    message = request.input.get("message")
    if not isinstance(message, dict) or "data" not in message:
        return None
    return fold_message(batch_message(request.input), request.message_id)
