"""Execution ids."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from tape.model.execution_ids import EPOCH_MS, Identifiers, made_at_ms


def test_ids_grow_strictly_fit_into_63_bits_and_contain_their_time() -> None:
    make = Identifiers(machine=1023).make
    ids = [make() for _ in range(20_000)]
    assert all(before < after for before, after in itertools.pairwise(ids))
    assert 0 < ids[-1] < 1 << 63
    assert ids[0] >> 12 & 1023 == 1023
    assert abs(made_at_ms(ids[0]) - time.time_ns() // 1_000_000) < 60_000


def test_a_clock_that_goes_back_does_not_bring_ids_back(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Identifiers().make
    before = make()
    monkeypatch.setattr(time, "time_ns", lambda: (EPOCH_MS + 5) * 1_000_000)
    assert make() > before


def test_threads_never_get_the_same_id() -> None:
    ids = Identifiers()
    found: list[list[int]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda out=out: out.extend(ids.make() for _ in range(5_000))) for out in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each for out in found for each in out}) == 20_000
