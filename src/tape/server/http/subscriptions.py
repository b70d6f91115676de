"""`/api/subscriptions…` and `/api/events`: lifecycle of subscriptions, and events of their runtimes."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.engine.ledgers import runs
from tape.errors import InvalidInput, SubscriptionNotReady, UnknownEvent, UnknownSubscription
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.model.event_types import EVENTS
from tape.model.execution_ids import MAX_ID
from tape.model.tenant_names import display, name_within, qualify
from tape.server.http.internal import answer, read_request
from tape.server.http.request_bodies import parse_time, to_time
from tape.store import Reader, Transaction
from tape.subscriptions import lifecycle
from tape.subscriptions.events import SubscriptionEvent, subscription_ref
from tape.subscriptions.lifecycle import ACTIONS, Registration, SubscriptionState
from tape.subscriptions.readiness import SubscriptionReadiness, check_path

MAX_EVENTS = 1_000

# Events that runtimes and gateways may post; those of the lifecycle and of holds are appended with the change.
_HOLDS = {"subscription.held", "subscription.released"}
_LIFECYCLE = {"subscription.registered", *(f"subscription.{action.verb}" for action in ACTIONS.values())}
ACCEPTED_EVENTS = {event.name for event in EVENTS if event.name.startswith("subscription.")} - _LIFECYCLE - _HOLDS


class RegisterSubscriptionRequest(msgspec.Struct):
    """The path of a document of `kind: Subscription`."""

    path: str


class ActRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`force` activates a subscription that cannot start runs yet; its messages are held until it can."""

    force: bool = False


class EventBody(msgspec.Struct):
    """An event as a runtime posts it. Deduplicated by `event_id`, if there is one."""

    event_type: str
    execution_id: int | str = 0
    step: str = ""
    status: str = ""
    created_at: str = ""
    context: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    worker_id: str = ""
    event_id: int | str = ""
    subscription: str = ""


class SubscriptionRoutes:
    """Routes of the lifecycle of subscriptions."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._database = journal.database

    async def register(self, request: Request) -> Response:
        """Register the subscription of a path, or return the active registration; with what is missing for its runs."""
        path = qualify((await read_request(request, RegisterSubscriptionRequest)).path)
        registration = await self._database.write(lambda tx: lifecycle.register(tx, path))
        return answer(status_of(registration) | _missing(await self._check(path)))

    async def act(self, request: Request) -> Response:
        """Activate, pause, resume, drain or deactivate. What cannot start runs is activated only with `force`."""
        action = request.path_params["name"]
        if action not in ACTIONS:
            raise InvalidInput(f"Unknown subscription action '{action}'")
        wanted = await read_request(request, ActRequest)
        subscription_id = subscription_id_of(request.path_params["owner"])
        if action != "activate":
            if wanted.force:
                raise InvalidInput(
                    f"force is for activate; {action} is never refused for a missing playbook or secret."
                )
            return answer(status_of(await self._database.write(lambda tx: lifecycle.act(tx, subscription_id, action))))
        return await self._activate(subscription_id, force=wanted.force)

    async def _activate(self, subscription_id: int, *, force: bool) -> Response:
        def activate(tx: Transaction) -> tuple[Registration, SubscriptionReadiness]:
            was_active = lifecycle.require(tx, subscription_id).state == SubscriptionState.ACTIVE
            registration = lifecycle.act(tx, subscription_id, "activate")
            found = check_path(tx, registration.path)
            if found.problems and not force and not was_active:
                raise SubscriptionNotReady(display(registration.path), found.reasons)
            return registration, found

        registration, found = await self._database.write(activate)
        return answer(status_of(registration) | _missing(found))

    async def _check(self, path: str) -> SubscriptionReadiness:
        return await self._database.read(lambda reader: check_path(reader, path))

    async def show(self, request: Request) -> Response:
        """The status of one subscription."""
        subscription_id = subscription_id_of(request.path_params["name"])
        return answer(status_of(await self._database.read(lambda reader: lifecycle.require(reader, subscription_id))))

    async def list(self, request: Request) -> Response:
        """Registrations, newest first; `next` is the cursor of the next page."""
        asked = request.query_params
        limit = _number("limit", asked.get("limit", str(lifecycle.MAX_LIST)), 1, lifecycle.MAX_LIST)
        before = _number("before", asked["before"], 0, MAX_ID) if asked.get("before") else None
        found = await self._database.read(
            lambda reader: lifecycle.list_registrations(
                reader, path=qualify(asked.get("path", "")), before=before, limit=limit + 1
            )
        )
        body: dict[str, Any] = {"subscriptions": [status_of(each) for each in found[:limit]]}
        if len(found) > limit:
            body["next"] = str(found[limit - 1].subscription_id)
        return answer(body)

    async def post_events(self, request: Request) -> Response:
        """Append an event, or a list of them, durably and in order: all or none."""
        given: EventBody | list[EventBody] = await read_request(request, EventBody | list[EventBody])  # type: ignore[arg-type]
        bodies = given if isinstance(given, list) else [given]
        if not 0 < len(bodies) <= MAX_EVENTS:
            raise InvalidInput(f"send between 1 and {MAX_EVENTS} events at once, not {len(bodies)}.")
        drafts = [await self._draft(body) for body in bodies]
        keys = [f"event:{body.event_id}" if body.event_id != "" else "" for body in bodies]
        if any(keys):
            sequences = await self._journal.append_each(drafts, keys)
        else:
            sequences = list(await self._journal.append(drafts))
        results = [{"status": "ok", "event_id": sequence, "commands_generated": 0} for sequence in sequences]
        return answer({"events": results} if isinstance(given, list) else results[0])

    async def _draft(self, body: EventBody) -> Draft:
        path = body.subscription or body.context.get("subscription")
        if not path or not isinstance(path, str):
            execution_id = _number("execution_id", str(body.execution_id), 0, MAX_ID)
            return draft_of(body, await self._database.read(lambda reader: _path_of(reader, execution_id)))
        return draft_of(body, qualify(path))


def draft_of(body: EventBody, path: str) -> Draft:
    """The draft of an event of a subscription. Raises UnknownEvent or InvalidInput."""
    if body.event_type not in ACCEPTED_EVENTS:
        raise UnknownEvent(
            f"event_type {body.event_type!r} is not accepted here. Known are {', '.join(sorted(ACCEPTED_EVENTS))}."
            + (" The lifecycle is changed by POST /api/subscriptions/{id}/{action}." * (body.event_type in _LIFECYCLE))
            + (" A subscription is held by POST /api/holds." * (body.event_type in _HOLDS))
        )
    if body.created_at:
        parse_time("created_at", body.created_at)
    return SubscriptionEvent(
        ref=subscription_ref(path),
        event_type=body.event_type,
        status=body.status,
        context=body.context,
        execution_id=_number("execution_id", str(body.execution_id), 0, MAX_ID),
        emitter=str(body.meta.get("emitter", "")),
        worker_id=body.worker_id,
        created_at=body.created_at,
    ).draft()


def status_of(registration: Registration) -> dict[str, Any]:
    """A registration as callers of `/api` see it."""
    status: dict[str, Any] = {
        "subscription_id": str(registration.subscription_id),
        "path": display(registration.path),
        "catalog_id": str(registration.catalog_id),
        "state": registration.state,
        "last_event_type": registration.last_event_type,
        "updated_at": to_time(registration.updated_at_ms * 1_000_000),
    }
    if registration.holds:
        since = to_time(registration.held_at_ms * 1_000_000)
        status["held"] = {"reasons": list(registration.holds), "since": since}
    return status


def _missing(found: SubscriptionReadiness) -> dict[str, Any]:
    """What a subscription lacks to start runs, and what only delays them; nothing if it is ready."""
    return {name: texts for name, texts in (("problems", found.reasons), ("warnings", list(found.warnings))) if texts}


def _path_of(reader: Reader, execution_id: int) -> str:
    """The path of the subscription that an id belongs to: a registration, or an execution of one of its messages."""
    registration = lifecycle.find(reader, execution_id)
    if registration is not None:
        return registration.path
    run = runs.find(reader, str(execution_id))
    if run is None or not run.session_id:
        raise UnknownSubscription(f"Subscription {execution_id} not registered")
    return name_within(run.tenant_id, run.session_id)


def subscription_id_of(text: str) -> int:
    """The id of a registration. Raises UnknownSubscription if it is none."""
    if len(text) < 20 and text.isascii() and text.isdecimal() and int(text) <= MAX_ID:
        return int(text)
    raise UnknownSubscription(f"Subscription {text} not registered")


def _number(name: str, text: str, least: int, most: int) -> int:
    if len(text) < 20 and text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise InvalidInput(f"{name} {text!r} must be a whole number between {least} and {most}.")
