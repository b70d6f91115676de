"""Time that passes is not the same as what the clock shows."""

from __future__ import annotations

import time

import pytest

from tape.base.clock import now_ms, steady_ms


def test_a_steady_clock_begins_with_the_time_and_does_not_jump_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, before = steady_ms(), now_ms()
    assert abs(steady() - before) < 60_000
    began = steady()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert now_ms() == 0
    assert steady() >= began
    monkeypatch.setattr(time, "time_ns", lambda: 10**19)
    assert steady() < 10**13 - 1
