"""Credentials of a client: a token, or Google's identity token for an audience."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from typing import Any

from tape.errors import InvalidConfig, MissingExtra

REFRESH_BEFORE_S = 300
NOTHING: tuple[tuple[str, str], ...] = ()


class Credentials:
    """The `authorization` of every call.

    `id_token` is sent as it is; without one TAPE_TOKEN, or TAPE_INTERNAL_API_TOKEN, which workers and servers share.
    With an `audience` and no token, an identity token is fetched from Google's metadata server or the application's
    credentials, and anew before it expires (extra `gcp`). `auth=False` sends nothing.
    """

    def __init__(self, *, auth: bool = True, audience: str = "", id_token: str = "") -> None:
        self._audience = audience if auth else ""
        self._token = (id_token or ("" if audience else _token_of_environment())) if auth else ""
        self._is_fetched = bool(self._audience and not self._token)
        self._expires_at = 0.0
        self._fetching = asyncio.Lock()

    async def token(self) -> str:
        """The token of a call that is about to be made; empty if there is none."""
        if self._is_fetched and time.time() >= self._expires_at - REFRESH_BEFORE_S:
            async with self._fetching:
                if time.time() >= self._expires_at - REFRESH_BEFORE_S:
                    self._token = await asyncio.to_thread(_fetch, self._audience)
                    self._expires_at = _expiry(self._token)
        return self._token

    async def metadata(self) -> tuple[tuple[str, str], ...]:
        """The same as metadata of gRPC."""
        token = await self.token()
        return (("authorization", f"Bearer {token}"),) if token else NOTHING


def _token_of_environment() -> str:
    return os.environ.get("TAPE_TOKEN") or os.environ.get("TAPE_INTERNAL_API_TOKEN") or ""


def _fetch(audience: str) -> str:
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
        from google.oauth2.id_token import fetch_id_token
    except ImportError:
        raise MissingExtra("An audience", "gcp") from None
    try:
        fetch: Any = fetch_id_token
        token: str = fetch(Request(), audience)
    except GoogleAuthError as error:
        raise InvalidConfig(
            f"No identity token for the audience {audience!r} could be had from Google: {error}."
            " Give the client an id_token, or auth=False."
        ) from error
    return token


def _expiry(token: str) -> float:
    """The expiry of a token by its `exp` claim. The server verifies the token; this does not."""
    try:
        body = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, KeyError, ValueError):
        return time.time() + REFRESH_BEFORE_S + 60
