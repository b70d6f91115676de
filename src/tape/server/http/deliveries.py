"""`/api/deliveries`: what became of the deliveries of a subscription, and a delivery dispatched again."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.engine.executions.execute import checked_request, execute
from tape.errors import InvalidInput, UnknownSubscription
from tape.journal.journal import Journal
from tape.model.entry import check_id
from tape.model.tenant_names import is_visible, qualify
from tape.server.http.execute import RUN_OVERHEAD_BYTES
from tape.server.http.internal import answer, read_request
from tape.server.http.request_bodies import to_time
from tape.subscriptions import lifecycle
from tape.subscriptions.ingress.deliveries import MAX_LIST, DeliveryOutcome, list_deliveries, plan_resend

DEFAULT_LIMIT = 50


class ResendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which delivery is dispatched again. `same` keeps its deduplication key, `new` has none."""

    execution_id: str
    dedup: Literal["new", "same"] = "new"


class DeliveryRoutes:
    """Routes of deliveries, for operators."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes
        self._outcomes = journal.database.metrics.executes

    async def list(self, request: Request) -> Response:
        """The outcomes of a subscription's deliveries, newest first."""
        asked = request.query_params
        path = qualify(asked.get("path", ""))
        check_id("path", path)
        limit = _number("limit", asked.get("limit", str(DEFAULT_LIMIT)), MAX_LIST)
        before = _cursor(asked.get("before", ""))
        known = await self._database.read(lambda reader: lifecycle.list_registrations(reader, path=path, limit=1))
        if not path or not known or not is_visible(path):
            raise UnknownSubscription(f"no subscription {asked.get('path', '')[:100]!r} is registered.")
        found, following = await self._database.read(
            lambda reader: list_deliveries(reader, path, before=before, limit=limit)
        )
        body: dict[str, Any] = {"deliveries": [_shown(each) for each in found]}
        if following is not None:
            body["next"] = f"{following[0]}-{following[1]}"
        return answer(body)

    async def resend(self, request: Request) -> Response:
        """Start a new run with the input of a delivery."""
        wanted = await read_request(request, ResendRequest)
        check_id("execution_id", wanted.execution_id)
        planned = await self._database.read(lambda reader: plan_resend(reader, wanted.execution_id, wanted.dedup))
        checked = checked_request(planned, self._max_bytes)
        size = len(msgspec.json.encode(checked.payload)) * 2 + RUN_OVERHEAD_BYTES
        result = await self._database.write(lambda tx: execute(tx, checked), size)
        self._outcomes.labels("resend", "new" if result.outcome == "started" else "duplicate").inc()
        return answer(
            {
                "execution_id": result.run_id,
                "status": result.outcome,
                "commands_generated": int(result.outcome == "started"),
            }
        )


def _shown(found: DeliveryOutcome) -> dict[str, Any]:
    texts = ("execution_id", "message_id", "status", "playbook", "reason")
    return {
        "at": to_time(found.at_ms * 1_000_000),
        "outcome": found.outcome,
        **{name: value for name in texts if (value := getattr(found, name))},
        "count": found.times,
    }


def _cursor(text: str) -> tuple[int, str]:
    if not text:
        return 0, ""
    moment, dash, run_id = text.partition("-")
    if not (dash and moment.isascii() and moment.isdecimal() and len(moment) <= 15 and 0 < len(run_id) <= 100):
        raise InvalidInput(f"before {text[:60]!r} must be the `next` of a page.")
    return int(moment), run_id


def _number(name: str, text: str, most: int) -> int:
    if not (len(text) < 10 and text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
        raise InvalidInput(f"{name} {text[:40]!r} must be a whole number between 1 and {most}.")
    return int(text)
