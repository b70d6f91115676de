"""A handful of cells in a few seconds each; `make proof ARGS=tests/faults` has the whole matrix."""

from __future__ import annotations

import pytest

from tests.faults.cells import Cell
from tests.faults.conftest import Open
from tests.faults.proving import prove

CELLS = [
    Cell("webhook", "buffer_and_ack", "global", store="postgres", probed=True),
    Cell("nats", "hybrid", "per_key", probed=True),
    Cell("kafka", "buffer_and_ack", "per_key", probed=True),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_few_crashes_lose_nothing_duplicate_nothing_and_are_in_the_journal(cell: Cell, open_scene: Open) -> None:
    prove(open_scene(cell), messages=80, faults=1)
