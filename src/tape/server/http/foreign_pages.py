"""Refuses requests that a web page of another origin can make a browser send without asking this server.

A form or a simple `fetch` sends text/plain, multipart/form-data or application/x-www-form-urlencoded. Any other content
type, and any header such as `ce-specversion`, makes the browser ask first (CORS preflight).
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from tape.server.http.problems import envelope

_FORM_TYPES = frozenset({"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Reads that take their filter in a body.
_READS = frozenset({"/v1/events/list", "/v1/events/aggregate", "/v1/control/runtime.info"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class ForeignPages:
    """Decides whether a request may come from a page of another origin. `/ingress/` verifies deliveries itself."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def refuse(self, scope: Scope) -> Response | None:
        """The response that refuses a request; None if it is admitted."""
        path: str = scope["path"]
        if path.startswith("/ingress/"):
            return None
        headers = Headers(scope=scope)
        if self._is_foreign(headers):
            origin = headers.get("origin", "")
            return _error(path, 403, "origin_not_allowed", f"the origin {origin!r} is not in cors_origins.")
        if scope["method"] not in _SAFE_METHODS and path not in _READS and path.startswith(("/api/", "/v1/")):
            return _check_type(path, headers)
        return None

    def _is_foreign(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "")
        if origin is not None and origin in self._origins:
            return False
        if site == "cross-site":
            return True
        # Browsers set this header and pages cannot: behind a proxy the Host may differ from the page's.
        return origin is not None and site != "same-origin" and not _is_own(origin, headers.get("host", ""))


def _check_type(path: str, headers: Headers) -> Response | None:
    if "ce-specversion" in headers:
        return None
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if media not in _FORM_TYPES and (media or not has_body):
        return None
    return _error(
        path,
        415,
        "unsupported_media_type",
        f"content-type {media!r} can come from a form of any web page; send application/json or the type of the body.",
    )


def _is_own(origin: str, host: str) -> bool:
    """Whether an origin names the host that the request was sent to."""
    try:
        page = urlsplit(origin)
        server = urlsplit(f"//{host}")
        default = _DEFAULT_PORTS.get(page.scheme)
        return (page.hostname, page.port or default) == (server.hostname, server.port or default)
    except ValueError:
        return False


def _error(path: str, status: int, code: str, text: str) -> Response:
    if path.startswith("/api/"):
        return JSONResponse({"error": text, "status": status}, status)
    return envelope(status, code, text)
