"""Client of the server's `/api` for runtimes, gateways and the CLI: HTTP with the internal token."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tape.base.addresses import OPERATOR
from tape.base.http import HttpClient, Response
from tape.base.tls import load_client_tls, remedy_for
from tape.base.url_mask import mask_urls
from tape.errors import ApiRefused, HttpRequestFailed, InvalidConfig, ServerUnreachable
from tape.subscriptions.events import SubscriptionEvent

TOKEN_VARIABLE = "TAPE_INTERNAL_API_TOKEN"  # noqa: S105 - where a token is, not one
TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 64 << 20
MAX_SHOWN = 200


def connect(url: str) -> Control:
    """The `/api` of a server, with the key or token of the environment."""
    return Control(url, token_of_environment())


def token_of_environment() -> str:
    """TAPE_TOKEN, a service key or token; else TAPE_INTERNAL_API_TOKEN, the internal token of the server."""
    return os.environ.get("TAPE_TOKEN", "") or os.environ.get(TOKEN_VARIABLE, "")


class Control:
    """Calls a server's `/api`, on connections that are kept. Safe to share between threads.

    `https://…` uses TLS with the files of TAPE_CA, TAPE_CLIENT_CERT and TAPE_CLIENT_KEY.
    A status of 300 or more is ApiRefused with that status; a request without a response is ServerUnreachable.
    Nothing is retried here: the caller knows what may be repeated.
    """

    def __init__(self, url: str, token: str = "", *, timeout_s: float = TIMEOUT_S, connections: int = 8) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(f"the server's address {mask_urls(url)!r} must look like http://127.0.0.1:7879.")
        self.url = url.rstrip("/")
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._is_secure = parts.scheme == "https"
        self._http = HttpClient(
            OPERATOR,
            timeout_s=timeout_s,
            max_body_bytes=MAX_RESPONSE_BYTES,
            connections=connections,
            tls=load_client_tls().context() if self._is_secure else None,
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of its response."""
        try:
            return _decode(self._http.request(method, self.url + path, **self._options(body)))
        except HttpRequestFailed as error:
            raise self._unreachable(error) from error

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Do the same without blocking the event loop."""
        try:
            return _decode(await self._http.send(method, self.url + path, **self._options(body)))
        except HttpRequestFailed as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: HttpRequestFailed) -> ServerUnreachable:
        return ServerUnreachable(f"{error}{remedy_for(str(error), is_secure=self._is_secure)}")

    def _options(self, body: Any) -> dict[str, Any]:
        return {"body": None if body is None else msgspec.json.encode(body), "headers": self._headers}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def register(self, path: str) -> dict[str, Any]:
        """Register the subscription of a path; where it stands."""
        return dict(self.call("POST", "/api/subscriptions/register", {"path": path}))

    def act(self, subscription_id: int | str, action: str, *, force: bool = False) -> dict[str, Any]:
        """Activate, pause, resume, drain or deactivate; where the subscription stands then.

        `force` activates a subscription that cannot start runs yet: its messages are held until it can.
        """
        body = {"force": True} if force else None
        return dict(self.call("POST", f"/api/subscriptions/{subscription_id}/{action}", body))

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

    def credential(self, alias: str, hosts: Sequence[str] = ()) -> Any:
        """A secret of the wallet for a connection to `hosts`, for holders of the internal token."""
        asked = urlencode([("include_data", "true"), *(("host", host) for host in hosts)])
        found = self.call("GET", f"/api/credentials/{quote(alias, safe='')}?{asked}")
        return found["data"]


def _decode(response: Response) -> Any:
    """The JSON of a response of the server. Raises ApiRefused unless its status is 2xx."""
    try:
        content = response.json()
    except msgspec.DecodeError:
        content = response.text[:MAX_SHOWN]
    if response.status >= 300:
        message, code = content, ""
        if isinstance(content, dict):
            message, code = content.get("error", content), str(content.get("code", ""))
        raise ApiRefused(str(message), response.status, code)
    return content
