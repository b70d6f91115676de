"""Sessions: a conversation's state and its events. Every event is on the journal too.

Keys of the state that begin with `app:` or `user:` are shared by the sessions of the app, or of the user.
A caller reads and writes the sessions of its own tenant; those of others do not exist for it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.base.ids import new_id, new_time_ordered_id
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import scoped_state
from tape.engine.ledgers.tenants import own_tenant
from tape.errors import InvalidJson, SessionExists
from tape.journal.appender import append
from tape.model import subject
from tape.model.entry import Draft, check_id
from tape.model.json_depth import check_depth
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, insert, load, load_all, store


class Session(Record, frozen=True):
    """A row of tape_sessions."""

    app_name: str
    user_id: str
    session_id: str
    state_json: str = "{}"
    last_update_time_ms: int = 0
    tenant: str = ""


class SessionEvent(Record, frozen=True):
    """A row of tape_events."""

    app_name: str
    user_id: str
    session_id: str
    ord: int
    event_id: str
    invocation_id: str
    author: str
    branch: str
    content_json: str
    actions_json: str
    timestamp_ms: int
    tenant: str = ""


_SESSION = columns(Session)
_EVENT = columns(SessionEvent)
_IS_SESSION = "app_name = ? AND user_id = ? AND session_id = ? AND tenant = ?"
_KEYS = ("app_name", "user_id", "session_id", "tenant")


def find(reader: Reader | Transaction, app_name: str, user_id: str, session_id: str) -> Session | None:
    """The session, or None."""
    query = f"SELECT {_SESSION} FROM tape_sessions WHERE {_IS_SESSION}"
    return load(Session, reader.one(query, app_name, user_id, session_id, own_tenant()))


def list_events(reader: Reader, app_name: str, user_id: str, session_id: str, *, newest: int = 0) -> list[SessionEvent]:
    """A session's events in order; with `newest`, only so many of the latest."""
    limit = newest if newest > 0 else 1 << 62
    rows = reader.query(
        f"SELECT {_EVENT} FROM tape_events WHERE {_IS_SESSION} ORDER BY ord DESC LIMIT ?",
        app_name,
        user_id,
        session_id,
        own_tenant(),
        limit,
    )
    return load_all(SessionEvent, rows)[::-1]


def list_sessions(reader: Reader, app_name: str, user_id: str = "") -> list[Session]:
    """An app's sessions, of one user or of all, the latest first."""
    narrowed, params = (" AND user_id = ?", [user_id]) if user_id else ("", [])
    rows = reader.query(
        f"SELECT {_SESSION} FROM tape_sessions WHERE app_name = ? AND tenant = ?{narrowed}"
        " ORDER BY last_update_time_ms DESC, session_id",
        app_name,
        own_tenant(),
        *params,
    )
    return load_all(Session, rows)


def add_shared_state(reader: Reader | Transaction, found: list[Session]) -> list[Session]:
    """Sessions of one app, each with what it shares with others laid over its own state."""
    if not found:
        return []
    of_app, of_users = scoped_state.read_shared(reader, found[0].app_name, (session.user_id for session in found))
    return [
        msgspec.structs.replace(
            session, state_json=_merge_shared(session.state_json, of_app | of_users[session.user_id])
        )
        for session in found
    ]


def _merge_shared(state_json: str, shared: dict[str, Any]) -> str:
    return msgspec.json.encode(parse_object("state_json", state_json) | shared).decode() if shared else state_json


def create(
    tx: Transaction, app_name: str, user_id: str, session_id: str, state_json: str, *, if_absent: bool = False
) -> Session:
    """Create a session, or replace the state of the one that is there; without an id it gets one.

    With `if_absent`, one that is there is left alone: SessionExists.
    """
    for name, value in (("app_name", app_name), ("user_id", user_id), ("session_id", session_id)):
        check_id(name, value)
    state = parse_object("state_json", state_json)
    own_json = msgspec.json.encode(scoped_state.session_only(state)).decode()
    session = Session(app_name, user_id, session_id or new_id(), own_json, now_ms(), own_tenant())
    if not if_absent:
        store(tx, "tape_sessions", _KEYS, session)
    elif not _add(tx, session):
        raise SessionExists(f"The session {session_id!r} of {app_name}/{user_id} is there already.")
    scoped_state.store_shared(tx, app_name, user_id, state)
    return session


def _add(tx: Transaction, session: Session) -> bool:
    """Add a session unless it is there; of several who try at once, one does."""
    values = msgspec.structs.astuple(session)
    marks = ", ".join("?" for _ in values)
    return tx.execute(f"INSERT INTO tape_sessions ({_SESSION}) VALUES ({marks}) ON CONFLICT DO NOTHING", *values) > 0


def delete(tx: Transaction, app_name: str, user_id: str, session_id: str) -> bool:
    """Remove a session and its events; the journal keeps what it has. False if there is none."""
    session_key = (app_name, user_id, session_id, own_tenant())
    tx.execute(f"DELETE FROM tape_events WHERE {_IS_SESSION}", *session_key)
    return tx.execute(f"DELETE FROM tape_sessions WHERE {_IS_SESSION}", *session_key) > 0


def append_event(
    tx: Transaction, wanted: SessionEvent, *, state_delta_json: str = "", trace: Trace = NO_TRACE
) -> tuple[SessionEvent, int]:
    """Append an event and merge its state delta, in one step; the event and the session's new time.

    A delta's null deletes its key. An event whose id is there already is the answer, and changes nothing.
    """
    delta = parse_object("state_delta_json", state_delta_json)
    ids = (wanted.app_name, wanted.user_id, wanted.session_id)
    session = find(tx, *ids) or create(tx, *ids, "{}")
    session_key = (*ids, session.tenant)
    if wanted.event_id:
        row = tx.one(
            f"SELECT {_EVENT} FROM tape_events WHERE {_IS_SESSION} AND event_id = ?", *session_key, wanted.event_id
        )
        if (existing := load(SessionEvent, row)) is not None:
            return existing, session.last_update_time_ms
    row = tx.one(f"SELECT COALESCE(max(ord), 0) FROM tape_events WHERE {_IS_SESSION}", *session_key)
    now = now_ms()
    event = msgspec.structs.replace(
        wanted,
        ord=row[0] + 1 if row else 1,
        event_id=wanted.event_id or new_time_ordered_id(now_ms(), version=4),
        timestamp_ms=wanted.timestamp_ms or now,
        tenant=session.tenant,
    )
    insert(tx, "tape_events", event)
    state = merge_state(parse_object("state_json", session.state_json), scoped_state.session_only(delta))
    scoped_state.store_shared(tx, wanted.app_name, wanted.user_id, delta)
    store(
        tx,
        "tape_sessions",
        _KEYS,
        msgspec.structs.replace(session, state_json=msgspec.json.encode(state).decode(), last_update_time_ms=now),
    )
    _journal(tx, event, delta, trace)
    return event, now


def merge_state(state: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """State with a delta laid over it, key by key; null deletes."""
    together = state | delta
    return {key: value for key, value in together.items() if value is not None or key not in delta}


def run_of(app_name: str, user_id: str, session_id: str) -> str:
    """The run that a session's entries belong to."""
    return "session:" + "/".join(map(subject.encode, (app_name, user_id, session_id)))


def parse_object(name: str, text: str) -> dict[str, Any]:
    """A JSON object; empty text is the empty one."""
    check_depth(text.encode())
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InvalidJson(f"{name} {text[:80]!r} is not a JSON object: {error}.") from error


def _journal(tx: Transaction, event: SessionEvent, delta: dict[str, Any], trace: Trace) -> None:
    run_id = run_of(event.app_name, event.user_id, event.session_id)
    payload = {
        "run_id": run_id,
        "app": event.app_name,
        "user": event.user_id,
        "session": event.session_id,
        "event_id": event.event_id,
        "invocation_id": event.invocation_id,
        "author": event.author,
        "branch": event.branch,
        "content_json": event.content_json,
        "actions_json": event.actions_json,
        "timestamp_ms": event.timestamp_ms,
        "state_delta": delta,
    }
    draft = Draft(
        subject=subject.event_appended(event.app_name, event.user_id, event.session_id),
        kind="event",
        run_id=run_id,
        payload_json=msgspec.json.encode(payload).decode(),
        tenant=event.tenant or event.app_name,
        user=event.user_id,
        session=event.session_id,
        **trace._asdict(),
    )
    append(tx, [draft])
