"""Errors of calls: from a status, a text and trailers, however they arrived, to the error that a caller gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from tape.base.tls import remedy_for
from tape.base.url_mask import mask_urls
from tape.errors import (
    AnyTapeError,
    CursorDiverged,
    EntryDamaged,
    ForkedClient,
    NotServed,
    PayloadTooLarge,
    RpcFailed,
    ServerUnreachable,
    TapeError,
    TenantLimitReached,
    all_errors,
)

ERROR_CODE_KEY = "tape-error-code"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
GAP_KEY = "tape-gap"

_GAP = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
SECURE = ("tapes", "grpcs", "https")
_ERRORS = all_errors()


def is_secure(url: str) -> bool:
    """Whether the URL asks for TLS: `tapes://`, `grpcs://` or `https://`."""
    return url.partition("://")[0] in SECURE


class CallFailure(NamedTuple):
    """What a server or the connection to it says about a failed call."""

    status: str
    details: str
    code: str = ""
    trailers: Mapping[str, Any] = {}


def to_error(code: str, message: str) -> AnyTapeError:
    """The error with the code that a server sent; a code newer than this client becomes a TapeError."""
    kind = _ERRORS.get(code, TapeError)
    error = kind.__new__(kind)
    BaseException.__init__(error, message)  # constructors differ; the message is the server's
    return error


def translate(failure: CallFailure, url: str, name: str) -> AnyTapeError:
    """The Tape error for the failed call of an RPC."""
    if failure.code:
        return _with_trailers(to_error(failure.code, failure.details), failure.trailers)
    match failure.status:
        case "UNAVAILABLE":
            remedy = remedy_for(failure.details, is_secure=is_secure(url))
            return ServerUnreachable(
                f"The Tape server at {mask_urls(url)} cannot be reached ({failure.details})."
                f"{remedy or ' Is it running? Start one with: tape serve'}"
            )
        case "UNIMPLEMENTED":
            return NotServed(
                f"The Tape server at {mask_urls(url)} does not serve {name} (UNIMPLEMENTED): it is older than this"
                " client. Update the server, or use a client of its version.",
                grpc_status=failure.status,
            )
        case "RESOURCE_EXHAUSTED" if "larger than max" in failure.details:
            return PayloadTooLarge(
                f"The request of {name} is larger than the server accepts (grpc_max_message_bytes; {failure.details})."
                " Send it in several requests."
            )
    return RpcFailed(f"{failure.status}: {failure.details}", failure.status)


def _with_trailers(error: AnyTapeError, trailers: Mapping[str, Any]) -> AnyTapeError:
    if isinstance(error, TenantLimitReached) and str(pushback := trailers.get(PUSHBACK_KEY)).isdecimal():
        error.retry_after_s = int(str(pushback)) / 1_000
    if isinstance(error, EntryDamaged | CursorDiverged) and (gap := _GAP.fullmatch(str(trailers.get(GAP_KEY)))):
        error.first, error.last = int(gap[1]), int(gap[2])
    return error


def raise_translated(error: Any, url: str, name: str) -> NoReturn:
    """Raise the Tape error for a gRPC error (`grpc.aio.AioRpcError`)."""
    trailers = dict(error.trailing_metadata() or ())
    failure = CallFailure(error.code().name, error.details() or "", str(trailers.get(ERROR_CODE_KEY, "")), trailers)
    raise translate(failure, url, name) from error


def forked_client(url: str, pid: int) -> ForkedClient:
    """The error of a client that the parent of this process made."""
    return ForkedClient(
        f"This client of {mask_urls(url)} was made in process {pid}, which has forked since: its connection and its"
        " thread are not in this process. Make a new client after the fork."
    )
