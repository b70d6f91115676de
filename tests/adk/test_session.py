"""Sessions of google-adk on a Tape server."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types

from tape import TapeClient
from tape.adk import TapeSessionService
from tape.adk.events import from_record, to_record
from tape.proto import tape_pb2 as pb

ANN = {"app_name": "app", "user_id": "ann"}


@pytest.fixture
def sessions(url: str) -> TapeSessionService:
    """A service on each kind of database."""
    return TapeSessionService(url)


def event_of(delta: dict[str, Any] | None = None, **fields: Any) -> Event:
    """An event that changes the state."""
    return Event(author="agent", invocation_id="i1", actions=EventActions(state_delta=delta or {}), **fields)


async def got(sessions: TapeSessionService, session_id: str, **config: Any) -> Session:
    """A session that is there."""
    wanted = GetSessionConfig(**config) if config else None
    session = await sessions.get_session(**ANN, session_id=session_id, config=wanted)
    assert session is not None
    return session


async def test_an_event_comes_back_as_it_was(sessions: TapeSessionService) -> None:
    session = await sessions.create_session(**ANN)
    picture = types.Part.from_bytes(data=b"\x00\xffpng", mime_type="image/png")
    call = types.Part(
        function_call=types.FunctionCall(id="c1", name="pay", args={"amount": 1.5}), thought_signature=b"\xfe\x01"
    )
    event = event_of(
        {"a": [1, {"b": None}]},
        content=types.Content(role="model", parts=[types.Part(text="größe"), picture, call]),
        branch="left",
        long_running_tool_ids={"c1"},
        custom_metadata={"tape.decision": 3},
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=7),
        finish_reason=types.FinishReason.STOP,
        output={"x": 1},
        isolation_scope="fc",
    )
    await sessions.append_event(session, event)
    assert session.events == [event]
    assert (await got(sessions, session.id)).events == [event]


def test_an_event_of_another_client_can_be_read() -> None:
    record = pb.EventRecord(
        id="e1",
        invocation_id="i1",
        author="agent",
        content_json='{"role": "model", "parts": [{"text": "hi"}]}',
        actions_json='{"stateDelta": {"a": 1}}',
        timestamp_ms=1500,
    )
    event = from_record(record)
    assert (event.id, event.timestamp, event.actions.state_delta) == ("e1", 1.5, {"a": 1})
    assert event.content is not None
    assert json.loads(to_record(event).content_json) == {"role": "model", "parts": [{"text": "hi"}]}
    assert from_record(pb.EventRecord(id="e2")).content is None


async def test_state_is_treated_as_google_adk_treats_it(sessions: TapeSessionService) -> None:
    theirs = InMemorySessionService()
    initial = {"own": 1, "app:a": 1, "user:u": 1, "temp:t": 1}
    delta = {"own": 2, "app:a": {"x": [1]}, "user:v": 3, "temp:t": 2, "when": "now"}
    seen = []
    for service in (sessions, theirs):
        first = await service.create_session(**ANN, session_id="s1", state=dict(initial))
        await service.create_session(**ANN, session_id="s2")
        await service.create_session(app_name="app", user_id="bob", session_id="s3")
        created = dict(first.state)
        event = await service.append_event(first, event_of(dict(delta), id="e1"))
        listed = (await service.list_sessions(app_name="app")).sessions
        kept = [
            await service.get_session(app_name="app", user_id=user, session_id=name)
            for user, name in (("ann", "s1"), ("ann", "s2"), ("bob", "s3"))
        ]
        seen.append(
            {
                "created": created,
                "in memory": first.state,
                "in the event": event.actions.state_delta,
                "kept": [session.state for session in kept if session],
                "listed": {session.id: (session.state, session.events) for session in listed},
            }
        )
    assert seen[0] == seen[1]
    assert seen[0]["in memory"]["temp:t"] == 2


async def test_values_that_json_cannot_say_are_kept_as_near_as_can_be(sessions: TapeSessionService) -> None:
    session = await sessions.create_session(**ANN)
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    await sessions.append_event(session, event_of({"when": moment, "raw": {1}}))
    assert (await got(sessions, session.id)).state == {"when": "2026-01-02T00:00:00Z", "raw": [1]}


async def test_a_key_that_is_set_to_none_is_gone(sessions: TapeSessionService) -> None:
    session = await sessions.create_session(**ANN, state={"a": 1, "user:b": 2})
    await sessions.append_event(session, event_of({"a": None, "user:b": None}))
    assert (await got(sessions, session.id)).state == {}


async def test_an_event_is_appended_once(sessions: TapeSessionService, observer: TapeClient) -> None:
    session = await sessions.create_session(**ANN, session_id="s1")
    stale = await got(sessions, "s1")
    event = event_of({"n": 1}, id="same")
    for holder in (session, session, stale):
        await sessions.append_event(holder, event)
        assert [known.id for known in holder.events] == ["same"]
    assert [known.id for known in (await got(sessions, "s1")).events] == ["same"]
    partial = event_of(partial=True)
    assert await sessions.append_event(session, partial) is partial
    assert len((await got(sessions, "s1")).events) == 1


async def test_of_many_who_create_the_same_session_one_does(sessions: TapeSessionService) -> None:
    tries = [sessions.create_session(**ANN, session_id=" s1 ", state={"n": n}) for n in range(6)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    created = [answer for answer in answers if isinstance(answer, Session)]
    assert len(created) == 1
    assert created[0].id == "s1"
    assert all(isinstance(answer, AlreadyExistsError) for answer in answers if answer is not created[0])
    assert (await got(sessions, "s1")).state == created[0].state


async def test_a_session_can_be_got_with_some_of_its_events(sessions: TapeSessionService) -> None:
    theirs = InMemorySessionService()
    for service in (sessions, theirs):
        session = await service.create_session(**ANN, session_id="s1")
        for number in range(6):
            await service.append_event(session, event_of(id=f"e{number}", timestamp=100.0 + number / 4))
    for config in (
        {"num_recent_events": 0},
        {"num_recent_events": 2},
        {"num_recent_events": 99},
        {"after_timestamp": 100.5},
        {"after_timestamp": 0.0},
        {"after_timestamp": 999.0},
        {"num_recent_events": 4, "after_timestamp": 101.0},
    ):
        other = await theirs.get_session(**ANN, session_id="s1", config=GetSessionConfig(**config))
        assert other is not None
        mine = await got(sessions, "s1", **config)
        assert [event.id for event in mine.events] == [event.id for event in other.events], config


async def test_sessions_are_listed_the_latest_last_and_deleted(sessions: TapeSessionService) -> None:
    for user, name in (("ann", "s1"), ("bob", "s2"), ("ann", "s3")):
        session = await sessions.create_session(app_name="app", user_id=user, session_id=name)
        await sessions.append_event(session, event_of())
    assert [session.id for session in (await sessions.list_sessions(app_name="app")).sessions] == ["s1", "s2", "s3"]
    assert [session.id for session in (await sessions.list_sessions(**ANN)).sessions] == ["s1", "s3"]
    assert (await sessions.list_sessions(app_name="app", user_id="")).sessions == []
    await sessions.delete_session(**ANN, session_id="s1")
    assert await sessions.get_session(**ANN, session_id="s1") is None
    await sessions.delete_session(**ANN, session_id="s1")
