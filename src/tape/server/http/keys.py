"""`/api/keys` and `/api/tokens/revoke`: service keys of the caller's tenant, and tokens that are no longer accepted."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.base.clock import now_ms
from tape.engine.security import service_keys
from tape.engine.security.key_ring import KeyRing
from tape.engine.security.revoked_tokens import revoke_token
from tape.engine.security.service_keys import IssuedKey, KeyRequest
from tape.errors import InvalidInput, ScopeRequired
from tape.model.principal import CLOCK_SKEW_S, current_principal
from tape.server.http.internal import answer, read_request
from tape.store import Database

DEFAULT_OVERLAP_S = 86_400.0
# Seconds that a request may name; beyond it a product with 1000 would be no integer of the database.
MAX_SECONDS = 1e10


class CreateKeyRequest(msgspec.Struct):
    """A new key. Without `expires_in_s` it does not expire; without patterns it reaches all that its scopes allow."""

    name: str
    tenant: str = ""
    scopes: list[str] = []
    user: str = ""
    expires_in_s: float | None = None
    read: list[str] | None = None
    write: list[str] | None = None


class ChangeKeyRequest(msgspec.Struct):
    """The tenant of the key, which has to be named if several that the caller sees have one of that name."""

    tenant: str | None = None
    overlap_s: float = DEFAULT_OVERLAP_S
    expires_in_s: float | None = None


class RevokeTokenRequest(msgspec.Struct):
    """A token by its `jti`, and for how long it is rejected; by default as long as a token can be valid."""

    jti: str
    tenant: str = ""
    for_s: float | None = None


class KeyRoutes:
    """Routes of keys. Where `is_refused` is set, callers of an open server are refused: every host is one of them."""

    def __init__(self, database: Database, keys: KeyRing, max_token_lifetime_s: float, *, is_refused: bool) -> None:
        self._database = database
        self._keys = keys
        self._max_token_lifetime_s = max_token_lifetime_s
        self._is_refused = is_refused

    async def list(self, request: Request) -> Response:
        """Keys by tenant and name, without secrets; `next` is the cursor of the next page."""
        self._check_caller()
        asked = request.query_params
        limit = _limit(asked.get("limit", str(service_keys.MAX_PAGE)))
        page = partial(
            service_keys.list_keys,
            tenant=asked.get("tenant"),
            after=asked.get("after", ""),
            limit=limit,
            with_ended=asked.get("all", "").lower() == "true",
        )
        found = await self._database.read(page)
        now = now_ms()
        more = {"next": service_keys.page_key(found[-1])} if len(found) == limit else {}
        return answer({"keys": [key.describe(now) for key in found], **more})

    async def create(self, request: Request) -> Response:
        """Create a key. Only this response shows its secret."""
        self._check_caller()
        asked = await read_request(request, CreateKeyRequest)
        wanted = KeyRequest(
            asked.name,
            asked.tenant,
            asked.scopes,
            asked.user,
            None if asked.expires_in_s is None else _ms("expires_in_s", asked.expires_in_s),
            asked.read,
            asked.write,
        )
        issued = await self._database.write(lambda tx: service_keys.create(tx, wanted))
        return await self._shown(issued)

    async def act(self, request: Request) -> Response:
        """Rotate or revoke a key."""
        self._check_caller()
        name, action = request.path_params["owner"], request.path_params["name"]
        if action not in ("rotate", "revoke"):
            raise InvalidInput(f"Unknown action {action[:200]!r} of a key; use rotate or revoke.")
        asked = await read_request(request, ChangeKeyRequest)
        if action == "revoke":
            key = await self._database.write(lambda tx: service_keys.revoke(tx, name, asked.tenant))
            await self._keys.refresh()
            return answer(key.describe(now_ms()))
        overlap_ms = _ms("overlap_s", asked.overlap_s)
        lifetime_ms = None if asked.expires_in_s is None else _ms("expires_in_s", asked.expires_in_s)
        issued = await self._database.write(
            lambda tx: service_keys.rotate(tx, name, asked.tenant, overlap_ms=overlap_ms, lifetime_ms=lifetime_ms)
        )
        return await self._shown(issued)

    async def revoke_token(self, request: Request) -> Response:
        """Reject a token by its `jti`, and end its streams."""
        self._check_caller()
        asked = await read_request(request, RevokeTokenRequest)
        seconds = self._max_token_lifetime_s + CLOCK_SKEW_S if asked.for_s is None else asked.for_s
        for_ms = _ms("for_s", seconds)
        token = await self._database.write(lambda tx: revoke_token(tx, asked.jti, asked.tenant, for_ms=for_ms))
        await self._keys.refresh()
        return answer({"jti": token.jti, "tenant": token.tenant, "until_ms": token.until_ms})

    async def _shown(self, issued: IssuedKey) -> Response:
        await self._keys.refresh()
        shown: dict[str, Any] = {**issued.key.describe(now_ms()), "key": issued.text}
        response = answer(shown)
        response.headers["cache-control"] = "no-store"
        return response

    def _check_caller(self) -> None:
        if self._is_refused and current_principal().is_open:
            raise ScopeRequired(
                "this server is open to the network, so a key that an anonymous caller makes would outlast it;"
                " send a service key or the internal token, or use `tape keys` with --store."
            )


def _ms(name: str, seconds: float) -> int:
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidInput(f"{name} {seconds} must be a number of seconds between 0 and {MAX_SECONDS:.0f}.")
    return int(seconds * 1000)


def _limit(text: str) -> int:
    if text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= service_keys.MAX_PAGE:
        return int(text)
    raise InvalidInput(f"limit {text[:20]!r} must be a whole number between 1 and {service_keys.MAX_PAGE}.")
