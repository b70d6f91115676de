"""Open streams of token holders. A stream ends when its token expires or its key is withdrawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from tape.model.principal import Principal

# The event loop does not accept timers of more than 24 days on every platform.
MAX_TIMER_S = 20 * 86_400


class OpenStreams:
    """Streams by the key that their principal was verified with."""

    def __init__(self) -> None:
        self._streams: dict[str, dict[Callable[[], None], None]] = {}

    def watch(self, principal: Principal, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` when the principal's token expires or its key is withdrawn. Returns a function that stops this."""
        expiry: asyncio.TimerHandle | None = None
        if principal.expires_at is not None:
            left = max(principal.expires_at - time.time(), 0)
            expiry = asyncio.get_running_loop().call_later(min(left, MAX_TIMER_S), end)
        streams = self._streams.setdefault(principal.key_id, {})
        streams[end] = None

        def stop() -> None:
            if expiry is not None:
                expiry.cancel()
            streams.pop(end, None)
            if not streams and self._streams.get(principal.key_id) is streams:
                del self._streams[principal.key_id]

        return stop

    def end_keys(self, key_ids: Collection[str]) -> None:
        """End the streams of withdrawn keys."""
        for key_id in key_ids:
            for end in list(self._streams.get(key_id, ())):
                end()
