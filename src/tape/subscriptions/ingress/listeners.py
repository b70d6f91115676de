"""Listeners: the push subscriptions behind `/ingress/{listener}`, with a cache.

Senders can request any name. An unknown name costs a lookup in the list of names, which is read at most once per
second. A known listener is read again when its cache entry is older than `fresh_s`.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
# While the source is unavailable, cached listeners are used for up to an hour.
STALE_S = 3_600.0


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A push subscription, its state, and the secrets that its senders sign with, newest first.

    `handshake_secrets` are those of `verify.verify_token`.
    """

    name: str
    subscription: Subscription
    subscription_id: int = 0
    state: str = "ACTIVE"
    secrets: tuple[str, ...] = ()
    handshake_secrets: tuple[str, ...] = ()

    @property
    def ref(self) -> SubscriptionRef:
        """The reference for its events."""
        return events.subscription_ref(self.subscription.path, self.subscription_id)

    @property
    def lacks_secret(self) -> bool:
        """Whether no delivery can be verified, because none of the secrets of `verify` is set."""
        ingress = self.subscription.spec.ingress
        return ingress is not None and bool(ingress.verify.aliases) and not self.secrets

    def __repr__(self) -> str:
        return f"Listener({self.name!r}, {self.subscription.path!r}, {self.state}, {len(self.secrets)} secrets)"


class ListenerSource(Protocol):
    """A source of listeners: the catalog, or a server."""

    async def names(self) -> frozenset[str]:
        """The names of all listeners."""

    async def fetch(self, name: str) -> Listener | None:
        """The current state of a listener; None if it does not exist."""


class _CachedListener(NamedTuple):
    listener: Listener
    fetched_at: float
    asked_at: float


class Listeners:
    """The listeners of a source, cached for `fresh_s` seconds."""

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
        """The listener of a name, or None. Raises the source's error if there is no cached answer."""
        known = self._known.get(name)
        if known is not None and self._clock() - known.asked_at < self._fresh_s:
            return known.listener
        if known is None and name not in await self._all_names():
            return None
        if name not in self._asking:
            self._asking[name] = asyncio.ensure_future(self._fetch(name))
        return await asyncio.shield(self._asking[name])

    def forget(self, name: str) -> None:
        """Read a listener again before its next delivery."""
        if (known := self._known.get(name)) is not None:
            self._known[name] = known._replace(asked_at=-math.inf)

    async def _fetch(self, name: str) -> Listener | None:
        known, now = self._known.get(name), self._clock()
        try:
            listener = await self._source.fetch(name)
        except TapeError as error:
            if known is None or now - known.fetched_at > STALE_S:
                raise
            log.warning("the listener %r is used as it was %d s ago: %s", name, now - known.fetched_at, error)
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
            # Failures are cached like answers: an unavailable server is not asked for every unknown name.
            self._named_at = self._clock()
            self._listing = None
