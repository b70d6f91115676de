"""Renewal of leases, in a thread or on an event loop.

A lease is renewed when a third of its ttl has passed, so that two renewals in a row may fail. The monotonic clock of
this process decides whether it is still held: a process that was suspended for longer than the ttl sees that the lease
has expired before it talks to the server again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, Self, TypeVar

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

RENEWALS_PER_LEASE = 3
MIN_INTERVAL_S = 0.01


def renewal_interval_s(ttl_ms: int) -> float:
    """Seconds between renewals: a third of the ttl, at least 10 ms."""
    return max(ttl_ms / 1_000 / RENEWALS_PER_LEASE, MIN_INTERVAL_S)


class LeaseRenewer:
    """Renews one lease in a thread, from `start` to `stop` or while a `with` block runs.

    `renew` returns False when the lease is lost, which ends the renewal. An exception means that the lease was not
    renewed this time: it is logged, and the next renewal follows after the same interval. `leased_at` is the value of
    `time.monotonic()` before the lease was taken; the default is now.
    """

    def __init__(
        self,
        renew: Callable[[], bool],
        ttl_ms: int,
        *,
        name: str = "lease",
        thread_name: str = "tape-lease",
        leased_at: float | None = None,
    ) -> None:
        self.name = name
        self._thread_name = thread_name
        self.ttl_ms = ttl_ms
        self._renew = renew
        self._expires_at = (time.monotonic() if leased_at is None else leased_at) + ttl_ms / 1_000
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_held(self) -> bool:
        """Whether the lease has neither expired nor been lost."""
        return time.monotonic() < self._expires_at

    def start(self) -> None:
        """Renew from now on."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name=self._thread_name, daemon=True)
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """Stop renewing. With `wait`, no renewal is in progress when this returns."""
        self._stop.set()
        if wait and self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(renewal_interval_s(self.ttl_ms)):
            asked_at = time.monotonic()
            try:
                is_renewed = self._renew()
            except Exception as error:
                log.info("%s not renewed: %s", self.name, error)
                continue
            if not is_renewed:
                log.warning("%s lost", self.name)
                self._expires_at = 0.0
                return
            self._expires_at = asked_at + self.ttl_ms / 1_000


class AsyncLeaseRenewer(Generic[Key]):
    """Renews any number of leases of one ttl on an event loop. Use as an async context manager.

    `renew` is given the key of a lease and returns False when that lease is lost. An exception means that the lease was
    not renewed this time: it is logged, and the renewal is repeated after half an interval.
    """

    def __init__(self, renew: Callable[[Key], Awaitable[bool]], ttl_ms: int, *, name: str = "lease") -> None:
        self.name = name
        self.ttl_ms = ttl_ms
        self._renew = renew
        self._leased_at: dict[Key, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @contextmanager
    def keep(self, key: Key) -> Iterator[None]:
        """Renew a lease while the block runs."""
        self._leased_at[key] = time.monotonic()
        try:
            yield
        finally:
            self._leased_at.pop(key, None)

    def is_held(self, key: Key) -> bool:
        """Whether a lease is kept and has neither expired nor been lost."""
        leased_at = self._leased_at.get(key)
        return leased_at is not None and time.monotonic() < leased_at + self.ttl_ms / 1_000

    async def _run(self) -> None:
        interval_s = renewal_interval_s(self.ttl_ms)
        while True:
            await asyncio.sleep(interval_s / 2)
            now = time.monotonic()
            due = [key for key, leased_at in self._leased_at.items() if now - leased_at >= interval_s]
            await asyncio.gather(*map(self._renew_one, due))

    async def _renew_one(self, key: Key) -> None:
        asked_at = time.monotonic()
        try:
            is_renewed = await self._renew(key)
        except Exception as error:
            log.info("%s %s not renewed: %s", self.name, key, error)
            return
        if not is_renewed:
            log.warning("%s %s lost", self.name, key)
            self._leased_at.pop(key, None)
        elif key in self._leased_at:
            self._leased_at[key] = asked_at
