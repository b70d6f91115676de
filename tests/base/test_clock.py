"""The wall clock and the steady clock."""

from __future__ import annotations

import time

import pytest

from tape.base.clock import now_ms, steady_ms


def test_a_steady_clock_starts_at_the_wall_clock_and_ignores_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, before = steady_ms(), now_ms()
    assert abs(steady() - before) < 60_000
    started = steady()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert now_ms() == 0
    assert steady() >= started
    monkeypatch.setattr(time, "time_ns", lambda: 10**19)
    assert steady() < 10**13 - 1
