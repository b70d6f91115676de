"""The service keys and revoked tokens of a database, in memory: a call with a key needs no look at the database.

Every server that shares the database reads changes when it is notified of them, and at least once a second.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from tape.base.clock import now_ms
from tape.engine.security.access_version import CHANNEL, read_version
from tape.engine.security.revoked_tokens import RevokedToken, read_changed_tokens
from tape.engine.security.service_keys import KEY_ID_PREFIX, ServiceKey, read_changed_keys, record_use
from tape.errors import TapeError, TokenRejected
from tape.model.entry import check_id
from tape.model.principal import Principal
from tape.model.service_key import digest_of, key_id_of
from tape.store import Database, Reader

log = logging.getLogger(__name__)

# Seconds between two reads of the version. An unknown key, which any caller can send, waits for the next read.
MIN_REFRESH_S = 0.05
POLL_S = 0.25
# Newer than any version of a database.
NEWEST = (1 << 63) - 1
# Calls with unknown keys that may wait for a read at once; others are rejected without one.
MAX_WAITING = 64
# Ended keys that are remembered, so that the error says why they are rejected.
MAX_ENDED = 1_000
# Seconds between two writes of when keys were used.
USE_WINDOW_S = 60.0
# The id of a revoked token among the ids of open streams: this, the tenant and the `jti`.
TOKEN_ID_PREFIX = "jti:"  # noqa: S105 - a prefix of ids, not a token


class _KnownKey(NamedTuple):
    """A valid key."""

    digest: str
    principal: Principal
    ends_at_ms: int
    end_reason: str


class _EndedKey(NamedTuple):
    """A key that is no longer valid, and why."""

    digest: str
    reason: str


class _Changes(NamedTuple):
    """What changed since a version."""

    version: int
    keys: list[ServiceKey]
    tokens: list[RevokedToken]


class KeyRing:
    """The valid keys and the revoked tokens. `start()` it before the first call."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Called with the ids of keys and tokens that are no longer valid, so that their streams end.
        self.on_ended: Callable[[Collection[str]], None] = lambda ids: None
        self._version = 0
        database.on_rollback(self._forget_version)
        self._keys: dict[str, _KnownKey] = {}
        self._ended: dict[str, _EndedKey] = {}
        self._revoked: dict[tuple[str, str], int] = {}
        self._next_end_ms = 0
        self._used: dict[str, int] = {}
        self._used_written_at = time.monotonic()
        self._refreshed_at = -POLL_S
        self._refreshing = asyncio.Lock()
        self._next_refresh: asyncio.Task[None] | None = None
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    async def start(self) -> None:
        """Read all keys, then keep them current."""
        await self.refresh()
        work = self._database.metrics.background.supervise("service keys", self._keep_current)
        self._task = asyncio.create_task(work)

    async def close(self) -> None:
        """Stop reading, and write down when keys were used last."""
        tasks = [task for task in (self._task, self._next_refresh) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._task is not None:
            await self._write_use()

    async def verify(self, text: str, session: str = "") -> Principal:
        """The principal of a service key. A session given beside it is the session of the call."""
        key_id = key_id_of(text)
        if not key_id:
            raise _rejected("key_malformed")
        if key_id not in self._keys and key_id not in self._ended:
            await self._wait_for_refresh()
        digest, known = digest_of(text), self._keys.get(key_id)
        if known is not None and hmac.compare_digest(digest, known.digest):
            now = now_ms()
            if known.ends_at_ms and now >= known.ends_at_ms:
                raise _rejected(known.end_reason, key_id)
            self._used[key_id] = now
            if not session or session == known.principal.session:
                return known.principal
            check_id("x-harbor-session", session)
            return msgspec.structs.replace(known.principal, session=session)
        ended = self._ended.get(key_id)
        if ended is not None and hmac.compare_digest(digest, ended.digest):
            raise _rejected(ended.reason, key_id)
        raise _rejected("unknown_key")

    def check_token(self, principal: Principal) -> None:
        """Raise TokenRejected if the principal's token was revoked."""
        if self._is_revoked(principal):
            raise TokenRejected("token_revoked")

    def is_ended(self, principal: Principal) -> bool:
        """Whether the principal's key or token has ended since the principal was verified."""
        if principal.key_id.startswith(KEY_ID_PREFIX):
            return principal.key_id.removeprefix(KEY_ID_PREFIX) not in self._keys
        return self._is_revoked(principal)

    def _is_revoked(self, principal: Principal) -> bool:
        token = principal.tenant, principal.token_id
        return bool(principal.token_id) and self._revoked.get(token, 0) > now_ms()

    async def refresh(self) -> None:
        """Read what changed."""
        async with self._refreshing:
            self._refreshed_at = time.monotonic()
            version = self._version
            changes = await self._database.read(lambda reader: _read_changes(reader, version))
            if changes is not None:
                self._apply(changes)
        self._end_due()
        self._database.metrics.service_keys.set(len(self._keys))

    async def _keep_current(self) -> None:
        async for _ in self._database.changes(CHANNEL):
            if time.monotonic() - self._refreshed_at < POLL_S:
                self._end_due()
                continue
            try:
                await self.refresh()
                if time.monotonic() - self._used_written_at >= USE_WINDOW_S:
                    await self._write_use()
            except TapeError as error:
                log.warning("reading the service keys failed, retrying: %s", error)

    async def _wait_for_refresh(self) -> None:
        """Wait for a read that begins after now, and is shared with all others who wait."""
        if self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        try:
            if self._next_refresh is None:
                self._next_refresh = asyncio.create_task(self._refresh_soon())
                # Its waiters get its error; without any left, asyncio would log it.
                self._next_refresh.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(self._next_refresh)
        finally:
            self._waiting -= 1

    async def _refresh_soon(self) -> None:
        await asyncio.sleep(max(self._refreshed_at + MIN_REFRESH_S - time.monotonic(), 0))
        self._next_refresh = None
        await self.refresh()

    def _forget_version(self) -> None:
        """Read everything again: the database is in an older state, and may reach the same version with other keys."""
        self._version = NEWEST
        self._refreshed_at = -POLL_S

    def _apply(self, changes: _Changes) -> None:
        now = now_ms()
        if changes.version < self._version:  # the database was restored from a backup
            self._ended.clear()
            self._revoked.clear()
            gone = self._keys.keys() - {key.key_id for key in changes.keys}
            for key_id in gone:
                self._end(key_id, "unknown_key")
        self._version = changes.version
        for key in changes.keys:
            if key.ends_at_ms and key.ends_at_ms <= now:
                self._keys[key.key_id] = _known(key)
                self._end(key.key_id)
            else:
                self._keys[key.key_id] = _known(key)
        self._next_end_ms = min((key.ends_at_ms for key in self._keys.values() if key.ends_at_ms), default=0)
        self._revoked = {token: until_ms for token, until_ms in self._revoked.items() if until_ms > now}
        for token in changes.tokens:
            if token.until_ms > now:
                self._revoked[token.tenant, token.jti] = token.until_ms
        self.on_ended([token_stream_id(token.tenant, token.jti) for token in changes.tokens])

    def _end_due(self) -> None:
        """End the keys whose time is over."""
        now = now_ms()
        if not self._next_end_ms or now < self._next_end_ms:
            return
        for key_id, key in list(self._keys.items()):
            if key.ends_at_ms and key.ends_at_ms <= now:
                self._end(key_id)
        self._next_end_ms = min((key.ends_at_ms for key in self._keys.values() if key.ends_at_ms), default=0)

    def _end(self, key_id: str, reason: str = "") -> None:
        ended = self._keys.pop(key_id)
        while len(self._ended) >= MAX_ENDED:
            self._ended.pop(next(iter(self._ended)))
        self._ended[key_id] = _EndedKey(ended.digest, reason or ended.end_reason)
        self.on_ended([KEY_ID_PREFIX + key_id])

    async def _write_use(self) -> None:
        self._used_written_at = time.monotonic()
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._database.write(lambda tx: record_use(tx, used), 64 * len(used))
        except TapeError as error:
            log.warning("the last use of %d service keys was not written: %s", len(used), error)


def stream_ids(principal: Principal) -> tuple[str, ...]:
    """The ids that end the open streams of a principal: that of its key, and that of its token if it has one."""
    if not principal.token_id:
        return (principal.key_id,)
    return principal.key_id, token_stream_id(principal.tenant, principal.token_id)


def token_stream_id(tenant: str, jti: str) -> str:
    """The id that ends the open streams of a token."""
    return f"{TOKEN_ID_PREFIX}{tenant}\0{jti}"


def _rejected(reason: str, key_id: str = "") -> TokenRejected:
    return TokenRejected(reason, credential="key", key_id=key_id)


def _known(key: ServiceKey) -> _KnownKey:
    ends_at_ms = key.ends_at_ms
    return _KnownKey(key.digest, key.principal(), ends_at_ms, f"key_{key.state_at(ends_at_ms)}")


def _read_changes(reader: Reader, known: int) -> _Changes | None:
    """What changed since the version; None if nothing did. Each statement sees newer rows than the one before."""
    version = read_version(reader)
    if version == known:
        return None
    since = known if version > known else 0
    return _Changes(version, read_changed_keys(reader, since), read_changed_tokens(reader, since))
