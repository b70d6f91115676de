"""Stopping on signals, in programs with and without an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from tape.base.process import run_async, stop_event, stop_on_event, stop_on_signal

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@SIGNALS
def test_a_signal_sets_the_event_and_the_old_handlers_return(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_event() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before


@SIGNALS
def test_a_second_signal_interrupts_the_block(number: signal.Signals) -> None:
    def work() -> None:
        with stop_event() as stop:
            os.kill(os.getpid(), number)
            assert stop.wait(10)
            os.kill(os.getpid(), number)
            threading.Event().wait(10)  # until the signal interrupts it

    with pytest.raises(KeyboardInterrupt):
        work()


def test_without_interrupts_further_signals_change_nothing() -> None:
    stops: list[str] = []
    with stop_on_signal(lambda: stops.append("stop"), interrupts=False):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
    assert stops == ["stop"]


def test_a_given_event_is_the_one_that_is_set() -> None:
    event = threading.Event()
    with stop_event(event) as stop:
        assert stop is event
        os.kill(os.getpid(), signal.SIGTERM)
        assert event.wait(10)


def test_a_thread_other_than_the_main_one_leaves_signals_alone() -> None:
    seen: list[object] = []
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with stop_event() as stop:
            seen.append((stop.is_set(), signal.getsignal(signal.SIGTERM) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


@SIGNALS
def test_a_signal_stops_an_event_loop_and_the_old_handlers_return(number: signal.Signals) -> None:
    async def work() -> None:
        stop, before = asyncio.Event(), signal.getsignal(number)
        with stop_on_signal(stop.set):
            os.kill(os.getpid(), number)
            async with asyncio.timeout(10):
                await stop.wait()
        assert signal.getsignal(number) is before

    run_async(work())


def test_a_second_signal_cancels_the_task() -> None:
    stops: list[str] = []

    async def work() -> None:
        with stop_on_signal(lambda: stops.append("stop")):
            os.kill(os.getpid(), signal.SIGTERM)
            while not stops:
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        run_async(work())
    assert stops == ["stop"]


def test_another_thread_stops_an_event_loop_by_its_event() -> None:
    event = threading.Event()

    async def work() -> str:
        stop = asyncio.Event()
        with stop_on_event(stop.set, event):
            threading.Thread(target=event.set).start()
            async with asyncio.timeout(10):
                await stop.wait()
        return "stopped"

    assert run_async(work()) == "stopped"


def test_without_an_event_nothing_stops_the_loop_and_leaving_stops_the_polling() -> None:
    stops: list[str] = []

    async def work() -> int:
        with stop_on_event(lambda: stops.append("stop"), None):
            pass
        with stop_on_event(lambda: stops.append("stop"), threading.Event()):
            assert len(asyncio.all_tasks()) == 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert run_async(work()) == 1
    assert stops == []
