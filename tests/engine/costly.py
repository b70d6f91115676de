"""A predicate that takes a given time, on clocks that a test moves."""

from __future__ import annotations

from typing import Any

from tape.model.entry import Entry


class Clocks:
    """Seconds of CPU, which predicates use, and seconds of time, which a test lets pass."""

    def __init__(self) -> None:
        self.cpu = 0.0
        self.time = 0.0

    def read_cpu(self) -> float:
        """The CPU seconds used."""
        return self.cpu

    def read_time(self) -> float:
        """The seconds passed."""
        return self.time


class CostlyPredicate:
    """True of every entry, after so many seconds of CPU. Stands for a `Predicate`."""

    text = "costly"

    def __init__(self, clocks: Clocks, seconds: float) -> None:
        self._clocks = clocks
        self._seconds = seconds
        self.errors = 0
        self.evaluated = 0

    def matches(self, entry: Any) -> bool:
        """True, once the time is used."""
        self._clocks.cpu += self._seconds
        self.evaluated += 1
        return True

    def matches_within(self, view: Any, steps: int) -> bool:
        """True: the time counts in steps as little as that of an expression without macros."""
        return self.matches(view)


def entry(payload_json: str = "", global_seq: int = 1) -> Entry:
    """An entry with a payload."""
    return Entry(
        global_seq=global_seq,
        run_id="r",
        seq=1,
        kind="order",
        subject="/tape/order/created",
        payload_json=payload_json,
        schema_version=1,
        trace_id="",
        span_id="",
        parent_span_id="",
        ts_ms=1,
        tenant="",
        user="",
        session="",
        chain="",
    )
