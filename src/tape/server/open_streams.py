"""Open streams of token and key holders. A stream ends when its token expires or is revoked, or its key ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from tape.engine.security.key_ring import stream_ids
from tape.model.principal import Principal

# The event loop does not accept timers of more than 24 days on every platform.
MAX_TIMER_S = 20 * 86_400


class _Expiry:
    """Calls a function at a time, however far ahead."""

    def __init__(self, at: float, end: Callable[[], None]) -> None:
        self._at = at
        self._end = end
        self._arm()

    def cancel(self) -> None:
        self._timer.cancel()

    def _arm(self) -> None:
        left = max(self._at - time.time(), 0)
        act = self._arm if left > MAX_TIMER_S else self._end
        self._timer = asyncio.get_running_loop().call_later(min(left, MAX_TIMER_S), act)


class OpenStreams:
    """Streams by the key and by the token that their principal was verified with."""

    def __init__(self) -> None:
        self._streams: dict[str, dict[Callable[[], None], None]] = {}

    def watch(self, principal: Principal, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` when the principal's token expires or its key ends. Returns a function that stops this."""
        expiry = None if principal.expires_at is None else _Expiry(principal.expires_at, end)
        ids = stream_ids(principal)
        for each in ids:
            self._streams.setdefault(each, {})[end] = None

        def stop() -> None:
            if expiry is not None:
                expiry.cancel()
            for each in ids:
                streams = self._streams.get(each, {})
                streams.pop(end, None)
                if not streams:
                    self._streams.pop(each, None)

        return stop

    def end_keys(self, ids: Collection[str]) -> None:
        """End the streams of keys and tokens that are no longer valid."""
        for each in ids:
            for end in list(self._streams.get(each, ())):
                end()
