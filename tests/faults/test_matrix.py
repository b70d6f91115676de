"""Faults for every source, mode and ordering: the downstream receives each message once and in order."""

from __future__ import annotations

import pytest

from tests.faults.cells import Cell
from tests.faults.conftest import Open
from tests.faults.proving import prove

SOURCES = ("nats", "kafka", "webhook")
MODES = ("off", "buffer_and_ack", "hybrid")
ORDERS = ("global", "per_key", "none")


def _cells() -> list[Cell]:
    """All of them; databases, dedup and probes take turns, so that each meets each source, mode and order."""
    found = []
    for number, (source, mode, order) in enumerate((s, m, o) for s in SOURCES for m in MODES for o in ORDERS):
        store = ("sqlite", "postgres")[number % 2]
        found.append(Cell(source, mode, order, store=store, dedup=number % 3 != 1, probed=number % 4 == 3))  # type: ignore[arg-type]
    found.append(Cell("webhook", "buffer_and_ack", "global", backend="nats_object", store="postgres"))
    found.append(Cell("nats", "buffer_and_ack", "per_key", backend="nats_object", dedup=False))
    found.append(Cell("webhook", "hybrid", "per_key", backend="s3", dedup=False, probed=True))
    found.append(Cell("kafka", "buffer_and_ack", "per_key", backend="s3", store="postgres"))
    return found


@pytest.mark.proof
@pytest.mark.parametrize("cell", _cells(), ids=str)
def test_whatever_dies_every_message_is_where_it_was_promised_to_be(cell: Cell, open_scene: Open) -> None:
    prove(open_scene(cell), messages=400, faults=5)
