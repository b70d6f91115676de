"""The queue of the writer: tenants take turns, a flood is refused, nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.store.batch_size import BatchSize
from tape.store.fair_queue import BACKGROUND, FairQueue, Tenant

MANY = 10_000


@dataclass
class Operation:
    """An operation of a tenant, the n-th that it put."""

    tenant: Tenant
    number: int
    size: int = 100

    @property
    def cost(self) -> int:
        return self.size


def filled(*loads: tuple[Tenant, int, int], operations: int = 20_000, size: int = 64 << 20) -> FairQueue[Operation]:
    """A queue with so many operations of such a size of each tenant."""
    queue: FairQueue[Operation] = FairQueue(operations, size)
    for tenant, count, each in loads:
        for number in range(count):
            assert queue.put(Operation(tenant, number, each), tenant) == []
    return queue


def drained(queue: FairQueue[Operation], capacity: int = 1_000) -> list[list[Operation]]:
    batches = []
    while batch := queue.take(1_024, capacity):
        batches.append(batch)
    return batches


def test_an_operation_enters_the_next_batch_though_10_000_of_another_tenant_wait() -> None:
    queue = filled(("flood", MANY, 100))
    queue.put(Operation("victim", 0), "victim")
    batch = queue.take(1_024, 1_000)
    assert [operation.number for operation in batch if operation.tenant == "victim"] == [0]
    assert len(batch) == 10


def test_large_operations_of_another_tenant_delay_an_operation_by_one_batch_at_most() -> None:
    queue = filled(("flood", 60, 1 << 20))
    for number in range(25):
        queue.put(Operation("victim", number), "victim")
        batches = [queue.take(1_024, 16_384) for _ in range(2)]
        assert [one.number for batch in batches for one in batch if one.tenant == "victim"] == [number]


def test_a_large_operation_is_not_starved_by_small_ones() -> None:
    queue = filled(("large", 3, 1 << 20))
    taken: Counter[Tenant] = Counter()
    for number in range(MANY):
        queue.put(Operation("small", number), "small")
        taken.update(operation.tenant for operation in queue.take(1_024, 16_384))
        if taken["large"] == 3:
            break
    assert taken["large"] == 3
    assert taken["small"] >= number - 2


def test_tenants_that_wait_share_a_batch_by_bytes() -> None:
    queue = filled(("a", MANY, 100), ("b", 1_000, 1_000))
    sizes: Counter[Tenant] = Counter()
    for _ in range(20):
        for operation in queue.take(1_024, 20_000):
            sizes[operation.tenant] += operation.size
    assert sizes["a"] == pytest.approx(sizes["b"], rel=0.05)


def test_the_servers_own_work_has_a_quarter_of_a_batch_beside_many_tenants() -> None:
    queue = filled(*((f"t{number}", 100, 100) for number in range(50)), (BACKGROUND, 1_000, 100))
    taken: Counter[Tenant] = Counter()
    for _ in range(10):
        taken.update(operation.tenant for operation in queue.take(1_024, 20_000))
    assert taken[BACKGROUND] >= sum(taken.values()) * 0.2


def test_more_tenants_than_fit_into_a_batch_all_have_their_turn() -> None:
    queue = filled(*((f"t{number}", 50, 100) for number in range(100)))
    taken: Counter[Tenant] = Counter()
    for _ in range(20):
        taken.update(operation.tenant for operation in queue.take(1_024, 1_000))
    assert len(taken) == 100


def test_a_tenant_alone_gets_whole_batches() -> None:
    batches = drained(filled(("a", 100, 100)))
    assert [len(batch) for batch in batches] == [10] * 10
    assert [operation.number for batch in batches for operation in batch] == list(range(100))


@pytest.mark.parametrize("limits", [(100, 1 << 20), (20_000, 10_000)])
def test_a_full_queue_refuses_the_tenant_that_holds_most_of_it(limits: tuple[int, int]) -> None:
    queue = filled(("flood", 100, 100), operations=limits[0], size=limits[1])
    assert queue.put(Operation("flood", 100), "flood") is None
    removed = queue.put(Operation("victim", 0), "victim")
    assert removed is not None
    assert [(one.tenant, one.number) for one in removed] == [("flood", 99)]
    assert (queue.operations, queue.bytes) == (100, 10_000)


def test_a_newcomer_cannot_hold_more_than_those_it_replaces() -> None:
    queue = filled(("a", 10, 100), ("b", 10, 100), operations=20)
    for number in range(30):
        queue.put(Operation("c", number), "c")
    held = Counter(operation.tenant for batch in drained(queue) for operation in batch)
    assert sum(held.values()) == 20
    assert max(held.values()) - min(held.values()) <= 1


def test_a_large_newcomer_takes_no_more_bytes_than_the_largest_tenant_has_left() -> None:
    queue = filled(("a", 10, 100), size=1_000)
    assert queue.put(Operation("b", 0, 600), "b") is None
    removed = queue.put(Operation("b", 0, 450), "b")
    assert removed is not None
    assert [one.number for one in removed] == [9, 8, 7, 6, 5]


def test_the_servers_own_work_is_never_removed() -> None:
    queue = filled((BACKGROUND, 100, 100), operations=100)
    assert queue.put(Operation("a", 0), "a") is None
    queue = filled((BACKGROUND, 90, 100), ("a", 10, 100), operations=100)
    assert queue.put(Operation("b", 0), "b") == [Operation("a", 9)]


def test_an_operation_larger_than_the_queue_is_refused() -> None:
    queue = filled(("a", 1, 100), size=1_000)
    assert queue.put(Operation("b", 0, 1_001), "b") is None
    assert queue.operations == 1


def test_the_queue_is_shared_when_two_tenants_have_written_and_the_servers_own_work_does_not_count() -> None:
    queue = filled(("a", 2, 100), (BACKGROUND, 2, 100), ("a", 2, 100))
    assert not queue.is_shared
    queue.put(Operation("b", 0), "b")
    assert queue.is_shared


TENANTS = st.sampled_from([BACKGROUND, "", "a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(TENANTS, st.integers(1, 3_000)),
        st.integers(1, 20),
    ),
    max_size=200,
)


@given(steps=STEPS, capacity=st.integers(1, 5_000))
def test_nothing_is_lost_and_each_tenant_is_first_in_first_out(
    steps: list[tuple[Tenant, int] | int], capacity: int
) -> None:
    queue: FairQueue[Operation] = FairQueue(30, 20_000)
    accepted: dict[Tenant, list[int]] = {}
    taken: dict[Tenant, list[int]] = {}
    count = 0

    def take(limit: int) -> list[Operation]:
        waiting = queue.operations
        batch = queue.take(limit, capacity)
        assert bool(batch) == bool(waiting)
        assert len(batch) <= limit
        assert len(batch) == 1 or sum(operation.cost for operation in batch) <= capacity
        for operation in batch:
            taken.setdefault(operation.tenant, []).append(operation.number)
        return batch

    for step in steps:
        if isinstance(step, int):
            take(step)
            continue
        tenant, size = step
        count += 1
        removed = queue.put(Operation(tenant, count, size), tenant)
        if removed is not None:
            accepted.setdefault(tenant, []).append(count)
        for operation in removed or ():
            assert operation.tenant not in (BACKGROUND, tenant)
            accepted[operation.tenant].remove(operation.number)
        assert queue.operations <= 30
        assert queue.bytes <= 20_000
    while take(1_024):
        pass
    assert taken == {tenant: numbers for tenant, numbers in accepted.items() if numbers}
    assert (queue.operations, queue.bytes) == (0, 0)


def test_a_batch_follows_the_time_that_batches_take() -> None:
    size = BatchSize(0.010, first=1_000, least=10, most=100_000)
    for _ in range(20):
        size.observe(2, size.cost, size.cost * 1e-6)
    assert size.cost == pytest.approx(10_000, rel=0.1)
    for _ in range(20):
        size.observe(2, size.cost, size.cost * 1e-5)
    assert size.cost == pytest.approx(1_000, rel=0.1)


def test_one_long_operation_and_batches_that_were_not_full_say_nothing_about_the_size() -> None:
    size = BatchSize(0.010, first=1_000, least=10, most=100_000)
    size.observe(1, 1_000, 60.0)
    size.observe(5, 500, 0.001)
    assert size.cost == 1_000


def test_a_batch_takes_one_operation_however_slow_the_database_is() -> None:
    size = BatchSize(0.010, first=1_000, least=10, most=100_000)
    for _ in range(20):
        size.observe(2, size.cost, 10.0)
    assert size.cost == 10
