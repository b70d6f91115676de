"""Calls of the Kafka client that can wait for ever have a deadline."""

from __future__ import annotations

import threading

import pytest

from tape.brokers.kafka.deadline import call_within


def test_a_call_that_answers_is_answered() -> None:
    assert call_within(60, lambda: 5) == 5
    with pytest.raises(KeyError):
        call_within(60, lambda: {}["a"])


def test_a_call_that_never_answers_is_left_behind() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        call_within(0.01, never.wait)
    never.set()
