"""Seeded damage to stored journals: every reader gets what was acknowledged, or is told what is not there."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest

from tests.damage.run import run_cases
from tests.damage.table import print_table

CASES = 1_000
FEW = {"sqlite": range(1, 17), "postgres": range(1, 10)}


def check(store: str, seeds: Iterable[int], processes: int) -> None:
    results = list(run_cases(store, seeds, processes))
    sys.stdout.write(print_table(results) + "\n")
    failed = [str(result) for result in results if result.is_failed]
    assert not failed, "\n".join([f"{len(failed)} of {len(results)} cases failed", *failed[:50]])


@pytest.mark.parametrize("store", FEW)
def test_a_few_damages_are_named(store: str) -> None:
    check(store, FEW[store], processes=1)


@pytest.mark.proof
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("store", ["sqlite", "postgres", "archive"])
def test_no_damage_is_silent(store: str) -> None:
    check(store, range(1, CASES + 1), processes=2)
