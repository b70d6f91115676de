"""Errors on the wire: `{"code": …, "message": …}`. Clients branch on the code, never on the message."""

from __future__ import annotations

import logging
import math

import msgspec
from starlette.responses import PlainTextResponse, Response

from tape.errors import (
    DocumentTooLarge,
    IdentityRequired,
    InvalidRequest,
    PayloadTooLarge,
    RedactionFailed,
    RequestTooLarge,
    ReservedKind,
    ScopeRequired,
    SecretNotBound,
    SessionOutOfReach,
    SubjectNotGranted,
    TapeError,
    TenantLimitReached,
    TokenRejected,
)

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
INTERNAL_ERROR = "Internal error; the server's log has the details."

_BY_ERROR: dict[type[TapeError], tuple[int, str]] = {
    ReservedKind: (403, "reserved_kind"),
    InvalidRequest: (400, "invalid_request"),
    RequestTooLarge: (413, "request_too_large"),
    PayloadTooLarge: (413, "request_too_large"),
    DocumentTooLarge: (413, "request_too_large"),
    IdentityRequired: (401, "identity_required"),
    TokenRejected: (401, "auth_rejected"),
    SecretNotBound: (403, "secret_not_bound"),
    ScopeRequired: (403, "identity_scope_required"),
    SubjectNotGranted: (403, "subject_not_granted"),
    SessionOutOfReach: (403, "scope_mismatch"),
    RedactionFailed: (422, "payload_invalid"),
    TenantLimitReached: (429, "limit_reached"),
}
_BY_STATUS = {
    "ALREADY_EXISTS": (409, "conflict"),
    "INVALID_ARGUMENT": (400, "invalid_request"),
    "OUT_OF_RANGE": (400, "invalid_request"),
    "NOT_FOUND": (404, "not_found"),
    "ABORTED": (409, "conflict"),
    "RESOURCE_EXHAUSTED": (429, "runtime_error"),
    "UNAVAILABLE": (503, "runtime_error"),
}


def error_response(error: Exception) -> Response:
    """The response for an error; an unexpected exception is logged and answered with 500."""
    if isinstance(error, TapeError):
        found = _known(error)
        if found is not None:
            return with_retry_after(envelope(*found, str(error)), error)
    log.error("HTTP request failed", exc_info=error)
    return envelope(500, "runtime_error", INTERNAL_ERROR)


def with_retry_after(response: Response, error: TapeError) -> Response:
    """The response; a 429 or 503 with the whole seconds after which the caller may try again: 1 unless the error
    says more.
    """
    if response.status_code in (429, 503):
        after_s = error.retry_after_s if isinstance(error, TenantLimitReached) else RETRY_AFTER_S
        response.headers["retry-after"] = str(math.ceil(after_s))
    return response


def status_of(error: TapeError) -> int:
    """The HTTP status of an error."""
    return (_known(error) or (500, ""))[0]


def _known(error: TapeError) -> tuple[int, str] | None:
    found = next((_BY_ERROR[kind] for kind in type(error).__mro__ if kind in _BY_ERROR), None)
    return found or _BY_STATUS.get(error.status)


def envelope(status: int, code: str, message: str) -> Response:
    """An error in the shape that clients of `/v1` expect."""
    body = msgspec.json.encode({"code": code, "message": message})
    return Response(body, status, media_type="application/json")


def not_found() -> Response:
    """404: no such route."""
    return PlainTextResponse("404 page not found\n", 404, {"X-Content-Type-Options": "nosniff"})


def wrong_method(*allowed: str) -> Response:
    """405: the route does not support the method."""
    headers = {"Allow": ", ".join(allowed), "X-Content-Type-Options": "nosniff"}
    return PlainTextResponse("Method Not Allowed\n", 405, headers)
