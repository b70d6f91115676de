"""Garbage collection: paused while a program is loaded, and what was loaded is left out afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tape.base.garbage import collection_paused


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_while_a_block_loads_and_what_it_made_is_frozen() -> None:
    before = gc.get_freeze_count()
    with collection_paused():
        assert not gc.isenabled()
        made = [[] for _ in range(1_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_collection_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), collection_paused():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_a_program_without_collection_stays_so() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()
