"""The public keys that tokens are checked with: a JWKS from a file or a URL, kept fresh."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from jwt import PyJWTError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tape.base.addresses import OPERATOR, AddressPolicy
from tape.base.http import HttpClient
from tape.base.url_mask import mask_urls
from tape.errors import HttpRequestFailed, InvalidConfig, TokenRejected

log = logging.getLogger(__name__)

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA"})
MAX_BYTES = 1 << 20
FETCH_S = 5.0
# An unknown key id reloads the keys at most this often, because any caller can send one.
MIN_RELOAD_S = 5.0

_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


class PublicKey(NamedTuple):
    """A public key and the algorithms that it may be used with."""

    algorithms: frozenset[str]
    public: Any


class KeySet:
    """Keys by their ids. `start()` it; a file is read again like a URL, so that keys can be rolled.

    The default policy fits a source that the operator configured; a URL out of a document needs PUBLIC_ONLY.
    """

    def __init__(
        self,
        source: str,
        refresh_s: float = 300.0,
        max_stale_s: float = 3600.0,
        policy: AddressPolicy = OPERATOR,
    ) -> None:
        self.source = source
        self.generation = 0
        # Called with the ids of keys that the source has no longer, or has with another value.
        self.on_withdrawn: Callable[[Collection[str]], None] = lambda kids: None
        self._refresh_s = refresh_s
        self._max_stale_s = max_stale_s
        self._keys: dict[str, PublicKey] = {}
        self._fetched_at = -max_stale_s
        self._attempted_at = -MIN_RELOAD_S
        self._reload_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_url = "://" in source
        # http is for keys on this machine, which no proxy reaches.
        self._http = HttpClient(
            policy, timeout_s=FETCH_S, max_body_bytes=MAX_BYTES, connections=1, has_proxy=source.startswith("https:")
        )
        if self._is_url:
            _check_url(source)

    async def start(self) -> None:
        """Load the keys. A file must be there; a URL that does not answer is tried again later."""
        try:
            await self._load()
        except (OSError, ValueError, HttpRequestFailed) as error:
            if not self._is_url:
                raise InvalidConfig(f"auth_jwks {mask_urls(self.source)} cannot be used: {error}.") from error
            log.warning("cannot fetch the keys from %s, retrying: %s", mask_urls(self.source), error)
        self._task = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        """Stop refreshing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._http.close()

    async def find(self, kid: str) -> PublicKey | None:
        """The key with that id, looking at the source again if it is new."""
        if kid not in self._keys or self._is_stale:
            await self._reload_soon()
        self.check_fresh()
        return self._keys.get(kid)

    def has(self, kid: str) -> bool:
        """Whether the key is in the set now."""
        return kid in self._keys

    def check_fresh(self) -> None:
        """Raise if the source has not been heard of for too long: a key may have been withdrawn since."""
        if self._is_stale:
            raise TokenRejected("jwks_stale")

    @property
    def _is_stale(self) -> bool:
        return time.monotonic() - self._fetched_at >= self._max_stale_s

    async def _reload_soon(self) -> None:
        async with self._reload_lock:
            if time.monotonic() - self._attempted_at >= MIN_RELOAD_S:
                await self._reload()

    async def _reload(self) -> None:
        try:
            await self._load()
        except (OSError, ValueError, HttpRequestFailed) as error:
            log.warning("cannot load the keys from %s: %s", mask_urls(self.source), error)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(min(self._refresh_s, MIN_RELOAD_S) if self._is_stale else self._refresh_s)
            async with self._reload_lock:
                await self._reload()

    async def _load(self) -> None:
        self._attempted_at = time.monotonic()
        keys = parse_jwks(await self._fetch())
        withdrawn = [kid for kid, key in self._keys.items() if keys.get(kid) != key]
        if withdrawn or keys.keys() != self._keys.keys():
            self.generation += 1
        self._keys = keys
        self._fetched_at = time.monotonic()
        if withdrawn:
            log.info("keys withdrawn by %s: %s", mask_urls(self.source), ", ".join(withdrawn))
            self.on_withdrawn(withdrawn)

    async def _fetch(self) -> bytes:
        if not self._is_url:
            return await asyncio.to_thread(Path(self.source).read_bytes)
        response = await self._http.send("GET", self.source)
        if response.status != 200:
            raise ValueError(f"the response has status {response.status}")
        return response.body


def parse_jwks(text: bytes) -> dict[str, PublicKey]:
    """The usable keys of a JWKS document; ValueError if it has none."""
    try:
        document = msgspec.json.decode(text)
        entries = document["keys"]
        found = {entry["kid"]: key for entry in entries if entry.get("kid") and (key := _parse_key(entry))}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'it is not a JWKS document {{"keys": [...]}} ({error})') from error
    if not found:
        raise ValueError("it has no RSA, EC or Ed25519 key with a kid")
    return found


def _parse_key(entry: dict[str, Any]) -> PublicKey | None:
    if entry.get("use", "sig") != "sig":
        return None
    key: Any
    try:
        match entry.get("kty"):
            case "RSA":
                key, fitting = RSAAlgorithm.from_jwk(entry), {"RS256", "RS384", "RS512"}
            case "EC" if entry.get("crv") in _CURVES:
                key, fitting = ECAlgorithm.from_jwk(entry), {_CURVES[entry["crv"]]}
            case "OKP":
                key, fitting = OKPAlgorithm.from_jwk(entry), {"EdDSA"}
            case _:
                return None
    except (PyJWTError, ValueError) as error:
        log.warning("key %r ignored: %s", entry.get("kid"), error)
        return None
    declared = entry.get("alg")
    algorithms = fitting & {declared} if declared else fitting
    public = key.public_key() if hasattr(key, "public_key") else key
    return PublicKey(frozenset(algorithms), public) if algorithms else None


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    is_here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_here):
        raise InvalidConfig(
            f"auth_jwks {mask_urls(url)!r} must be a file, an https:// address, or http:// on this machine."
        )
