"""Kafka keeps one number a partition; what is done behind an open record is not forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tape.brokers.kafka.offsets import Offsets


def test_a_commit_goes_as_far_as_no_record_is_open() -> None:
    offsets = Offsets()
    for offset in (10, 11, 12):
        assert offsets.hand_out(offset) == 1
    offsets.settle(11)
    assert offsets.position() is None
    offsets.settle(10)
    assert offsets.position() == 12
    offsets.committed(12)
    offsets.settle(12)
    assert offsets.position() == 13


def test_what_is_done_is_passed_over_when_its_neighbours_come_again() -> None:
    offsets = Offsets()
    for offset in (1, 2, 3):
        offsets.hand_out(offset)
    offsets.settle(3)
    assert [offsets.hand_out(offset) for offset in (1, 2, 3)] == [2, 2, 0]
    offsets.settle(1)
    offsets.settle(2)
    assert offsets.position() == 4


def test_holes_in_a_partition_do_not_hold_it_back() -> None:
    offsets = Offsets()
    for offset in (5, 9, 40):
        offsets.hand_out(offset)
        offsets.settle(offset)
    assert offsets.position() == 41


@given(st.lists(st.tuples(st.sampled_from(["settle", "commit", "again"]), st.integers(0, 9)), max_size=60))
def test_nothing_open_is_ever_committed_and_nothing_done_is_handed_out(steps: list[tuple[str, int]]) -> None:
    offsets, done, committed = Offsets(), set[int](), 0
    for offset in range(10):
        offsets.hand_out(offset)
    for what, offset in steps:
        if what == "settle":
            offsets.settle(offset)
            done.add(offset)
        elif what == "again":
            assert (offsets.hand_out(offset) == 0) == (offset in done)
        elif (position := offsets.position()) is not None:
            assert position > committed
            assert all(each in done for each in range(position))
            committed = position
            offsets.committed(position)


def test_going_back_reads_on_at_the_oldest_record_that_is_owed() -> None:
    offsets = Offsets()
    for offset in range(1, 7):
        offsets.hand_out(offset)
    offsets.settle(1)
    assert offsets.go_back(2) == 2
    assert offsets.go_back(5) == 2  # a later one that is held as well must not lead past the earlier
    assert [offsets.is_owed(offset) for offset in (1, 2, 3, 6)] == [False, True, True, True]
    assert offsets.hand_out(2) == 2
    assert not offsets.is_owed(2)
    assert offsets.go_back(4) == 3
