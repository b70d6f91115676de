"""Renewal of leases, in a thread and on an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tape.base.lease import AsyncLeaseRenewer, LeaseRenewer, renewal_interval_s


class Server:
    """Answers renewals and notes when they came."""

    def __init__(self, answer: Callable[[int], bool] = lambda number: True) -> None:
        self.answer = answer
        self.times: list[float] = []
        self.reached = threading.Event()
        self.wanted = 1

    def renew(self) -> bool:
        self.times.append(time.monotonic())
        if len(self.times) >= self.wanted:
            self.reached.set()
        return self.answer(len(self.times))

    def wait_for(self, count: int) -> None:
        self.wanted = count
        if len(self.times) < count:
            self.reached.clear()
            assert self.reached.wait(30)


@given(st.integers(30, 10**9))
def test_a_lease_is_renewed_after_a_third_of_its_ttl(ttl_ms: int) -> None:
    assert renewal_interval_s(ttl_ms) == ttl_ms / 1_000 / 3


def test_a_tiny_ttl_does_not_become_a_busy_loop() -> None:
    assert renewal_interval_s(1) == 0.01


# ── a thread ─────────────────────────────────────────────────────────────────────────────────────


def test_a_thread_renews_no_earlier_than_a_third_of_the_ttl() -> None:
    server, began = Server(), time.monotonic()
    with LeaseRenewer(server.renew, 150) as lease:
        server.wait_for(2)
        assert lease.ttl_ms == 150
    assert server.times[0] - began >= 0.05
    assert server.times[1] - server.times[0] >= 0.05


def test_a_lease_that_is_renewed_stays_held_beyond_its_ttl() -> None:
    server = Server()
    with LeaseRenewer(server.renew, 3_000, leased_at=time.monotonic() - 1.9) as lease:
        first_expiry = lease._expires_at
        server.wait_for(1)
    assert lease.is_held
    assert lease._expires_at > first_expiry


def test_a_lost_lease_is_reported_at_once_and_not_renewed_again() -> None:
    server = Server(lambda number: False)
    lease = LeaseRenewer(server.renew, 3_000)
    lease.start()
    server.wait_for(1)
    assert lease._thread is not None
    lease._thread.join(30)
    assert not lease.is_held
    assert len(server.times) == 1


def test_a_failed_renewal_is_repeated_and_the_lease_expires_if_none_succeeds() -> None:
    def answer(number: int) -> bool:
        raise OSError("down")

    server = Server(answer)
    with LeaseRenewer(server.renew, 60) as lease:
        server.wait_for(4)
        assert not lease.is_held


def test_a_suspended_process_knows_that_its_lease_has_expired() -> None:
    assert not LeaseRenewer(lambda: True, 1_000, leased_at=time.monotonic() - 1).is_held
    assert LeaseRenewer(lambda: True, 60_000).is_held


def test_after_stop_no_renewal_is_in_progress() -> None:
    entered, release, done = threading.Event(), threading.Event(), threading.Event()

    def renew() -> bool:
        entered.set()
        release.wait(30)
        done.set()
        return True

    lease = LeaseRenewer(renew, 30)
    lease.start()
    assert entered.wait(30)
    lease.stop(wait=False)
    assert not done.is_set()
    release.set()
    assert done.wait(30)
    lease.start()
    entered.clear()
    assert entered.wait(30)
    lease.stop()
    entered.clear()
    assert not entered.wait(0.05)


# ── an event loop ────────────────────────────────────────────────────────────────────────────────


def test_an_event_loop_renews_each_lease_that_is_kept() -> None:
    async def run() -> list[str]:
        seen: list[str] = []
        both = asyncio.Event()

        async def renew(key: str) -> bool:
            seen.append(key)
            if {"one", "two"} <= set(seen):
                both.set()
            return True

        async with AsyncLeaseRenewer(renew, 60) as leases:
            with leases.keep("one"), leases.keep("two"):
                assert leases.is_held("one")
                async with asyncio.timeout(30):
                    await both.wait()
            assert not leases.is_held("one")
        return seen

    assert set(asyncio.run(run())) == {"one", "two"}


def test_an_event_loop_forgets_a_lost_lease_and_repeats_a_failed_renewal() -> None:
    async def run() -> dict[str, int]:
        counts = {"lost": 0, "failing": 0}
        enough = asyncio.Event()

        async def renew(key: str) -> bool:
            counts[key] += 1
            if counts["failing"] >= 3:
                enough.set()
            if key == "failing":
                raise OSError("down")
            return False

        async with AsyncLeaseRenewer(renew, 60) as leases:
            with leases.keep("lost"), leases.keep("failing"):
                async with asyncio.timeout(30):
                    await enough.wait()
                assert not leases.is_held("lost")
        return counts

    counts = asyncio.run(run())
    assert counts["lost"] == 1
    assert counts["failing"] >= 3
