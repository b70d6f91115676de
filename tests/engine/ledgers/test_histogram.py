"""Histograms of durations: added up in any order, percentiles within the error that is promised."""

from __future__ import annotations

import random

import pytest

from tape.engine.ledgers.histogram import Histogram, bucket_of, histogram_of, middle_of, pack, unpack


@pytest.mark.parametrize("seed", range(3))
def test_percentiles_are_within_their_error_and_do_not_depend_on_the_order(seed: int) -> None:
    dice = random.Random(seed)
    durations = [int(dice.lognormvariate(6, 3)) for _ in range(500)]
    whole, parts = histogram_of(durations), [histogram_of(durations[start::7]) for start in range(7)]
    dice.shuffle(parts)
    added = Histogram()
    for part in parts:
        added.add(part)
    assert added == whole
    durations.sort()
    for percent in (0, 1, 50, 90, 99, 99.9, 100):
        exact = durations[max(int(-(-len(durations) * percent // 100)), 1) - 1]
        found = whole.percentile(percent)
        assert found is not None
        assert abs(found - exact) <= exact / 128
    assert (whole.percentile(0), whole.percentile(100)) == (durations[0], durations[-1])
    assert Histogram().percentile(50) is None


def test_buckets_follow_each_other_without_a_hole_and_come_back_from_the_store() -> None:
    numbers = [bucket_of(duration) for duration in range(100_000)]
    assert set(numbers) == set(range(numbers[-1] + 1))
    assert numbers == sorted(numbers)
    assert all(bucket_of(middle_of(bucket)) == bucket for bucket in range(3_000))
    found = histogram_of([1, 500, 500, 1 << 40])
    assert unpack(pack(found.buckets)) == found.buckets
    assert found.mean_ms == (1 + 1000 + (1 << 40)) / 4
    assert Histogram().mean_ms is None
