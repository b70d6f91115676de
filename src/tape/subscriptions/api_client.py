"""The server's `/api` as runtimes, gateways and the command line call it: over HTTP, with the internal token."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import urllib3

from tape.errors import ApiRefused, InvalidConfig, ServerUnreachable
from tape.subscriptions.events import SubscriptionEvent

TOKEN_VARIABLE = "TAPE_INTERNAL_API_TOKEN"  # noqa: S105 - where a token is, not one
TIMEOUT_S = 30.0


def connect(url: str) -> Control:
    """The `/api` of a server, with the token of the environment: TAPE_INTERNAL_API_TOKEN, else TAPE_TOKEN."""
    return Control(url, os.environ.get(TOKEN_VARIABLE, "") or os.environ.get("TAPE_TOKEN", ""))


class Control:
    """Calls a server's `/api`, on connections that are kept. Safe to share between threads.

    What the server refuses is ApiRefused with its status; what does not reach it is ServerUnreachable. Nothing is tried
    again here: whoever calls knows what may be repeated.
    """

    def __init__(self, url: str, token: str = "", *, timeout_s: float = TIMEOUT_S, connections: int = 8) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(f"the server's address {url!r} must look like http://127.0.0.1:7879.")
        self.url = url.rstrip("/")
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._http = urllib3.PoolManager(
            maxsize=connections, block=True, retries=False, timeout=urllib3.Timeout(total=timeout_s)
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and give the JSON of its answer."""
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = self._http.request(
                method, self.url + path, body=content, headers=self._headers, redirect=False, preload_content=True
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ServerUnreachable(f"{self.url} cannot be reached: {error}") from error
        try:
            said = msgspec.json.decode(answer.data)
        except msgspec.DecodeError:
            said = answer.data[:200].decode(errors="replace")
        if answer.status >= 300:
            message = said.get("error", said) if isinstance(said, dict) else said
            raise ApiRefused(str(message), answer.status)
        return said

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The same without blocking the loop."""
        return await asyncio.to_thread(self.call, method, path, body)

    def close(self) -> None:
        """Close the connections."""
        self._http.clear()

    def register(self, path: str) -> dict[str, Any]:
        """Register the subscription of a path; where it stands."""
        return dict(self.call("POST", "/api/subscriptions/register", {"path": path}))

    def act(self, subscription_id: int | str, action: str) -> dict[str, Any]:
        """Activate, pause, resume, drain or deactivate; where the subscription stands then."""
        return dict(self.call("POST", f"/api/subscriptions/{subscription_id}/{action}"))

    def status(self, subscription_id: int | str) -> dict[str, Any]:
        """Where a subscription stands."""
        return dict(self.call("GET", f"/api/subscriptions/{subscription_id}"))

    def latest(self, path: str) -> dict[str, Any] | None:
        """Where the newest registration of a path stands; None if there is none."""
        found = self.call("GET", f"/api/subscriptions?{urlencode({'path': path, 'limit': 1})}")["subscriptions"]
        return dict(found[0]) if found else None

    def list(self, path: str = "") -> list[dict[str, Any]]:
        """The registrations of a path, or of all, the newest first."""
        found: list[dict[str, Any]] = []
        asked = {"path": path} if path else {}
        while True:
            page = self.call("GET", f"/api/subscriptions?{urlencode(asked)}")
            found += page["subscriptions"]
            if not page.get("next"):
                return found
            asked["before"] = page["next"]

    def post_events(self, events: Sequence[SubscriptionEvent]) -> None:
        """Put events on the server's journal, durably and in order."""
        if events:
            self.call("POST", "/api/events", [event.record() for event in events])

    def register_document(self, content: str, *, if_changed: bool = True) -> dict[str, Any]:
        """Put a document into the catalog; the same text again is no new version."""
        body = {"content": content, "if_changed": if_changed}
        return dict(self.call("POST", "/api/catalog/register", body))

    def document(self, path: str) -> str:
        """The text of the latest version of a document."""
        return str(self.call("POST", "/api/catalog/resource", {"path": path})["content"])

    def credential(self, alias: str) -> Any:
        """A secret of the wallet, for whoever holds the internal token."""
        found = self.call("GET", f"/api/credentials/{quote(alias, safe='')}?include_data=true")
        return found["data"]
