"""The queue of the writer: tenants take turns by bytes, each first in, first out.

A tenant with many operations waits behind its own, not in front of another tenant's. Every batch has a share for each
tenant that waits (deficit round robin). When the queue is full, the tenant that holds most of it loses its newest
operation to the newcomer, so that a flood is refused and others are still accepted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

# The class of the server's own work: matching, claims, timers, counting. Tenants are texts.
BACKGROUND: Final = None
Tenant = str | None

# The least part of a batch for the server's own work, however many tenants wait.
BACKGROUND_SHARE = 0.25
# Tenants share the writer while two of them have written within this many seconds.
SHARED_S = 1.0


class Queued(Protocol):
    """An operation that waits: its size in bytes, and what it takes of a batch."""

    @property
    def size(self) -> int: ...
    @property
    def cost(self) -> int: ...


Operation = TypeVar("Operation", bound=Queued)


class _TenantQueue(Generic[Operation]):
    """The operations of one tenant, in order. `deficit` is what it may still take of the current round."""

    __slots__ = ("bytes", "deficit", "operations", "tenant")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.operations: deque[Operation] = deque()
        self.bytes = 0
        self.deficit = 0


class FairQueue(Generic[Operation]):
    """Operations of all tenants. Not thread-safe; the writer has the lock."""

    def __init__(self, max_operations: int, max_bytes: int) -> None:
        self._max_operations = max_operations
        self._max_bytes = max_bytes
        # Tenants with operations. The first is the next to take its share.
        self._ring: deque[_TenantQueue[Operation]] = deque()
        self._by_tenant: dict[Hashable, _TenantQueue[Operation]] = {}
        self._last_tenant: Tenant = BACKGROUND
        self._shared_at = float("-inf")
        self.operations = 0
        self.bytes = 0

    @property
    def is_shared(self) -> bool:
        """Whether more than one tenant has written lately. The server's own programs, of no tenant, do not count."""
        return time.monotonic() - self._shared_at < SHARED_S

    def put(self, operation: Operation, tenant: Tenant) -> list[Operation] | None:
        """Add an operation. Returns those that had to leave the full queue for it; None if it is refused itself."""
        removed: list[Operation] | None = []
        if self.operations >= self._max_operations or self.bytes + operation.size > self._max_bytes:
            removed = self._free_capacity(operation, tenant)
            if removed is None:
                return None
        if tenant and tenant != self._last_tenant:
            if self._last_tenant:
                self._shared_at = time.monotonic()
            self._last_tenant = tenant
        queue = self._by_tenant.get(tenant)
        if queue is None:
            queue = self._by_tenant[tenant] = _TenantQueue(tenant)
            self._ring.append(queue)
        queue.operations.append(operation)
        queue.bytes += operation.size
        self.operations += 1
        self.bytes += operation.size
        return removed

    def take(self, max_operations: int, capacity: int) -> list[Operation]:
        """The next batch: operations that cost `capacity` together, but at least one if any waits."""
        if len(self._ring) == 1:
            return self._take_alone(self._ring[0], max_operations, capacity)
        batch: list[Operation] = []
        left = capacity
        share = max(capacity // max(len(self._ring), 1), 1)
        skipped: _TenantQueue[Operation] | None = None
        size_before = -1
        while self._ring and (not batch or size_before < len(batch) < max_operations):
            size_before = len(batch)
            for queue in list(self._ring):
                queue.deficit += max(share, int(capacity * BACKGROUND_SHARE)) if queue.tenant is BACKGROUND else share
                while queue.operations and len(batch) < max_operations:
                    cost = queue.operations[0].cost
                    if cost > queue.deficit:
                        break
                    if batch and cost > left:
                        queue.deficit = cost
                        skipped = skipped or queue
                        break
                    queue.deficit -= cost
                    left -= cost
                    batch.append(self._pop(queue))
                if not queue.operations:
                    self._ring.remove(queue)
        self._begin_next_with(skipped)
        return batch

    def _begin_next_with(self, skipped: _TenantQueue[Operation] | None) -> None:
        """What did not fit is the first of the next batch, whatever else waits then; otherwise the next tenant is."""
        for queue in self._ring:
            queue.deficit = min(queue.deficit, queue.operations[0].cost)
        self._ring.rotate(-self._ring.index(skipped) if skipped is not None else -1)

    def _take_alone(self, queue: _TenantQueue[Operation], max_operations: int, capacity: int) -> list[Operation]:
        batch: list[Operation] = []
        operations = queue.operations
        while operations and len(batch) < max_operations:
            capacity -= operations[0].cost
            if capacity < 0 and batch:
                break
            batch.append(self._pop(queue))
        if not operations:
            self._ring.clear()
        queue.deficit = 0
        return batch

    def _pop(self, queue: _TenantQueue[Operation]) -> Operation:
        operation = queue.operations.popleft()
        if not queue.operations:
            del self._by_tenant[queue.tenant]
        self._count_out(queue, operation)
        return operation

    def _free_capacity(self, operation: Operation, tenant: Tenant) -> list[Operation] | None:
        """Remove the newest operations of the tenant that holds most; None if that would be more than a fair exchange.

        The server's own work is never removed.
        """
        own = self._by_tenant.get(tenant)
        own_operations, own_bytes = (len(own.operations), own.bytes) if own is not None else (0, 0)
        excess = self.bytes + operation.size - self._max_bytes
        others = [queue for queue in self._ring if queue.tenant is not BACKGROUND and queue is not own]
        if not others:
            return None
        largest = max(others, key=lambda queue: queue.bytes if excess > 0 else len(queue.operations))
        count = freed = 0
        for newest in reversed(largest.operations):
            if count and freed >= excess:
                break
            count, freed = count + 1, freed + newest.size
        if freed < excess or (
            largest.bytes - freed < own_bytes + operation.size
            if excess > 0
            else len(largest.operations) - count < own_operations + 1
        ):
            return None
        return [self._remove_newest(largest) for _ in range(count)]

    def _remove_newest(self, queue: _TenantQueue[Operation]) -> Operation:
        operation = queue.operations.pop()
        if not queue.operations:
            del self._by_tenant[queue.tenant]
            self._ring.remove(queue)
        self._count_out(queue, operation)
        return operation

    def _count_out(self, queue: _TenantQueue[Operation], operation: Operation) -> None:
        queue.bytes -= operation.size
        self.operations -= 1
        self.bytes -= operation.size
