"""`/api/holds`: why a subscription cannot start runs, for runtimes and gateways that hold its messages."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.errors import InvalidInput
from tape.model.entry import check_id
from tape.server.http.internal import answer, read_request
from tape.server.http.subscriptions import subscription_id_of
from tape.store import Database
from tape.subscriptions import lifecycle
from tape.subscriptions.readiness import check_path


class HoldRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A registration, and why it is held: without `reasons` nothing is changed, an empty list releases it."""

    subscription_id: str
    reasons: list[str] | None = None
    emitter: str = ""


class HoldRoutes:
    """The route of holds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def act(self, request: Request) -> Response:
        """Record why a subscription is held, or release it; answers what prevents runs from starting."""
        wanted = await read_request(request, HoldRequest)
        check_id("emitter", wanted.emitter)
        subscription_id, reasons = subscription_id_of(wanted.subscription_id), wanted.reasons
        if reasons is not None:
            if any(not reason.strip() or "\0" in reason for reason in reasons):
                raise InvalidInput("reasons contains an empty text or NUL; send one sentence for each reason.")
            await self._database.write(
                lambda tx: lifecycle.set_hold(tx, subscription_id, reasons, emitter=wanted.emitter)
            )
        registration = await self._database.read(lambda reader: lifecycle.require(reader, subscription_id))
        found = await self._database.read(lambda reader: check_path(reader, registration.path))
        return answer(
            {"problems": [each._asdict() for each in found.problems], "held": list(registration.holds)},
        )
