"""Access and errors of the routes below `/api`, for operators, workers, runtimes and gateways.

Errors have the shape `{"error", "status"}` here.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.base import structs
from tape.errors import (
    InternalTokenUnset,
    InvalidDocument,
    InvalidInput,
    InvalidRequest,
    TapeError,
)
from tape.model.json_depth import check_depth
from tape.model.principal import Principal
from tape.server.http.access import HttpAccess
from tape.server.http.problems import status_of, with_retry_after
from tape.server.http.request_bodies import read_body
from tape.server.http.router import Handler
from tape.server.permissions import PERMISSIONS, PROGRAMS_ONLY

log = logging.getLogger(__name__)

T = TypeVar("T")

# Largest request body of these routes.
MAX_BODY_BYTES = 2 << 20


class InternalAccess:
    """Admits principals whose scopes suffice for a route, and answers errors in the shape of these routes."""

    def __init__(self, access: HttpAccess) -> None:
        self._access = access

    def guard(self, call: str, handler: Handler) -> Handler:
        """The handler behind the access check; `call` is the route as the table of permissions names it."""

        async def guarded(request: Request) -> Response:
            try:
                await self.admit(request, call)
                return await handler(request)
            except TapeError as error:
                return answer_error(error)

        return guarded

    async def admit(self, request: Request, call: str) -> Principal:
        """The principal of the request. Raises unless it may use the route."""
        principal = await self._access.caller_of(request)
        if PERMISSIONS[call] in PROGRAMS_ONLY and principal.is_open and self._access.is_unguarded:
            raise InternalTokenUnset(
                "this server has no internal_token and rejects requests to this route without a service key;"
                " set TAPE_INTERNAL_API_TOKEN on the server and on the client, or send a key with the scope"
                f" {' or '.join(sorted(PERMISSIONS[call]))}."
            )
        self._access.authorize(call, principal)
        return principal


async def read_request(request: Request, kind: type[T]) -> T:
    """The body of a request of these routes; an empty one is an empty object."""
    return decode(await read_body(request, MAX_BODY_BYTES) or b"{}", kind)


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode a body. Raises InvalidRequest if it is not JSON, InvalidInput if it has another shape."""
    check_depth(bytes(body))
    try:
        return structs.decode(body, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the request cannot be decoded: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request is not JSON: {error}.") from error


def answer(body: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def answer_error(error: TapeError, status: int | None = None) -> Response:
    """An error response of these routes, with the list of problems if there are several."""
    number = status or _status(error)
    if number >= 500:
        log.error("HTTP request failed: %s", error)
    body: dict[str, object] = {"error": str(error), "status": number, "code": error.code}
    if isinstance(error, InvalidDocument) and error.problems:
        body["problems"] = [problem._asdict() for problem in error.problems]
    return with_retry_after(answer(body, number), error)


def _status(error: TapeError) -> int:
    """Well-formed but invalid input, or a failed precondition, is 422 here; a body that is not JSON is 400."""
    status = status_of(error)
    is_understood = isinstance(error, InvalidInput) and not isinstance(error, InvalidRequest) and status == 400
    return 422 if is_understood or error.status == "FAILED_PRECONDITION" else status
