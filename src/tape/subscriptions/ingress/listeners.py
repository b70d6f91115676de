"""Listeners: the push subscriptions behind `/ingress/{listener}`, remembered for a moment.

Anybody can ask for any name. A name that is not known costs nothing but a look at the list of those that are, and the
list is asked for once a second at most; one that is known is asked for again when it has been remembered long enough.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from tape.errors import TapeError
from tape.subscriptions import events
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.events import SubscriptionRef

log = logging.getLogger(__name__)

NAMES_S = 1.0
# While its source cannot be asked, what is known is good for so long: deliveries are verified meanwhile.
STALE_S = 3_600.0


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A push subscription, the state it is in, and the secrets that its senders sign with, the newest first."""

    name: str
    subscription: Subscription
    subscription_id: int = 0
    state: str = "ACTIVE"
    secrets: tuple[str, ...] = ()

    @property
    def ref(self) -> SubscriptionRef:
        """What its events are about."""
        return events.subscription_ref(self.subscription.path, self.subscription_id)

    def __repr__(self) -> str:
        return f"Listener({self.name!r}, {self.subscription.path!r}, {self.state}, {len(self.secrets)} secrets)"


class ListenerSource(Protocol):
    """Where listeners are known: the catalog, or a server that has one."""

    async def names(self) -> frozenset[str]:
        """The listeners there are."""

    async def fetch(self, name: str) -> Listener | None:
        """A listener as it is now; None if there is none of that name."""


class _CachedListener(NamedTuple):
    listener: Listener
    heard_at: float
    asked_at: float


class Listeners:
    """The listeners of a source, remembered for `fresh_s` seconds."""

    def __init__(self, source: ListenerSource, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._fresh_s = fresh_s
        self._clock = clock
        self._known: dict[str, _CachedListener] = {}
        self._names: frozenset[str] | None = None
        self._named_at = -NAMES_S
        self._failure: TapeError | None = None
        self._asking: dict[str, asyncio.Future[Listener | None]] = {}
        self._listing: asyncio.Future[None] | None = None

    async def find(self, name: str) -> Listener | None:
        """The listener of a name, or None. Raises what keeps us from knowing."""
        known = self._known.get(name)
        if known is not None and self._clock() - known.asked_at < self._fresh_s:
            return known.listener
        if known is None and name not in await self._all_names():
            return None
        if name not in self._asking:
            self._asking[name] = asyncio.ensure_future(self._fetch(name))
        return await asyncio.shield(self._asking[name])

    async def _fetch(self, name: str) -> Listener | None:
        known, now = self._known.get(name), self._clock()
        try:
            listener = await self._source.fetch(name)
        except TapeError as error:
            if known is None or now - known.heard_at > STALE_S:
                raise
            log.warning("the listener %r is used as it was %d s ago: %s", name, now - known.heard_at, error)
            self._known[name] = known._replace(asked_at=self._clock())
            return known.listener
        finally:
            del self._asking[name]
        if listener is None:
            self._known.pop(name, None)
        else:
            self._known[name] = _CachedListener(listener, now, now)
        return listener

    async def _all_names(self) -> frozenset[str]:
        if self._clock() - self._named_at >= NAMES_S:
            if self._listing is None:
                self._listing = asyncio.ensure_future(self._list())
            await asyncio.shield(self._listing)
        if self._names is None:
            assert self._failure is not None
            raise self._failure
        return self._names

    async def _list(self) -> None:
        try:
            self._names = await self._source.names()
        except TapeError as error:
            self._failure = error
            log.warning("the listeners cannot be listed: %s", error)
        finally:
            # A failure is remembered as long as an answer: a server that is away is not asked for every stranger.
            self._named_at = self._clock()
            self._listing = None
