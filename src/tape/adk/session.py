"""A session service of google-adk on a Tape server, with every event on the journal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic_core import to_jsonable_python

from tape.adk.events import from_record, to_record
from tape.base.ids import new_id
from tape.client.channel import DEFAULT_URL
from tape.client.shared import shared_client
from tape.client.sync import TapeClient
from tape.durable.server_retry import call_with_retry
from tape.errors import SessionExists
from tape.proto import tape_pb2 as pb


class TapeSessionService(BaseSessionService):
    """A session service that stores sessions on a Tape server.

    State follows google-adk's rules: `app:` keys are the app's, `user:` keys the user's, `temp:` keys are never
    kept; a key that is set to None is deleted. An event with a known id is not appended again.
    """

    def __init__(self, url: str = DEFAULT_URL, *, client: TapeClient | None = None) -> None:
        self._url = url
        self._client = client

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session; raises AlreadyExistsError if the id exists."""
        wanted = session_id.strip() if session_id else ""
        key = {"app_name": app_name, "user_id": user_id, "session_id": wanted or new_id()}
        state_json = _to_json(_kept(state or {}))
        try:
            created = await self._call(self._tape.create_session, **key, state_json=state_json, if_absent=True)
        except SessionExists as error:
            if wanted:
                raise AlreadyExistsError(str(error)) from error
            # The id is new: the call was retried because its first answer was lost.
            created = (await self._call(self._tape.get_session, **key)).session
        return _session(created)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """A session with its events, or those that `config` asks for; None if there is none."""
        newest = config.num_recent_events if config else None
        found = await self._call(
            self._tape.get_session,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id.strip(),
            max_events=1 if newest == 0 else newest or 0,  # 0 is all of them
        )
        if not found.found:
            return None
        session = _session(found.session)
        if newest == 0:
            session.events = []
        if config and config.after_timestamp is not None:
            session.events = _since(config.after_timestamp, session.events)
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Sessions without their events, of one user or of all, the latest last."""
        if user_id == "":
            return ListSessionsResponse()  # no session has an empty user id, and "" would list those of all users
        listed = await self._call(self._tape.list_sessions, app_name=app_name, user_id=user_id or "")
        sessions = sorted(map(_session, listed.sessions), key=lambda session: session.last_update_time)
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session and its events; journal entries stay."""
        key = {"app_name": app_name, "user_id": user_id, "session_id": session_id.strip()}
        await self._call(self._tape.delete_session, **key)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event and merge its state delta, on the server and then in `session`."""
        if event.partial:
            return event
        event.id = event.id or Event.new_id()
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        answer = await self._call(
            self._tape.append_event,
            app_name=session.app_name,
            user_id=session.user_id,
            session_id=session.id,
            event=to_record(event),
            state_delta_json=_to_json(event.actions.state_delta),
        )
        session.last_update_time = answer.last_update_time_ms / 1000
        if all(known.id != event.id for known in session.events):
            self._commit_event_to_session(session, event)
        return event

    @property
    def _tape(self) -> TapeClient:
        return self._client or shared_client(self._url)

    async def _call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        # Each call is idempotent: sessions and events have ids.
        return await asyncio.to_thread(call_with_retry, method, **arguments)


def _kept(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(State.TEMP_PREFIX)}


def _to_json(state: dict[str, Any]) -> str:
    return json.dumps(to_jsonable_python(state, serialize_unknown=True))


def _session(kept: pb.Session) -> Session:
    return Session(
        app_name=kept.app_name,
        user_id=kept.user_id,
        id=kept.session_id,
        state=json.loads(kept.state_json or "{}"),
        events=list(map(from_record, kept.events)),
        last_update_time=kept.last_update_time_ms / 1000,
    )


def _since(timestamp: float, events: list[Event]) -> list[Event]:
    """The events after the last one that is older."""
    older = [number for number, event in enumerate(events) if event.timestamp < timestamp]
    return events[older[-1] + 1 :] if older else events
