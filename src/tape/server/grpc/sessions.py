"""The RPCs of sessions."""

from __future__ import annotations

from tape.engine.ledgers import sessions
from tape.engine.ledgers.sessions import Session, SessionEvent
from tape.errors import InvalidInput
from tape.journal.journal import Journal
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_texts
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context, trace_of
from tape.store import Reader, Transaction


class SessionsService:
    """RPCs of sessions and their events."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def create_session(self, request: pb.CreateSessionRequest, context: Context) -> pb.Session:
        """Create a session, or replace the state of one."""
        check_texts(self._max_bytes, state_json=request.state_json)
        session_key = (request.app_name, request.user_id, request.session_id)

        def create(tx: Transaction) -> Session:
            session = sessions.create(tx, *session_key, request.state_json, if_absent=request.if_absent)
            return sessions.add_shared_state(tx, [session])[0]

        return to_message(pb.Session, await self._database.write(create))

    async def get_session(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        """A session with its events, all or the latest."""
        session_key = (request.app_name, request.user_id, request.session_id)

        def read(reader: Reader) -> tuple[Session, list[SessionEvent]] | None:
            session = sessions.find(reader, *session_key)
            if session is None:
                return None
            events = sessions.list_events(reader, *session_key, newest=request.max_events)
            return sessions.add_shared_state(reader, [session])[0], events

        if (found := await self._database.read(read)) is None:
            return pb.GetSessionResponse(found=False)
        session, events = found
        return pb.GetSessionResponse(
            found=True, session=to_message(pb.Session, session, events=[_event(event) for event in events])
        )

    async def list_sessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        """An app's sessions without their events, the latest first."""
        found = await self._database.read(
            lambda reader: sessions.add_shared_state(
                reader, sessions.list_sessions(reader, request.app_name, request.user_id)
            )
        )
        return pb.ListSessionsResponse(sessions=(to_message(pb.Session, session) for session in found))

    async def delete_session(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        """Remove a session and its events."""
        deleted = await self._database.write(
            lambda tx: sessions.delete(tx, request.app_name, request.user_id, request.session_id)
        )
        return pb.DeleteSessionResponse(deleted=deleted)

    async def append_event(self, request: pb.AppendEventRequest, context: Context) -> pb.AppendEventResponse:
        """Append an event and merge its state delta."""
        if not request.HasField("event"):
            raise InvalidInput("append_event: missing event.")
        check_texts(
            self._max_bytes,
            content_json=request.event.content_json,
            actions_json=request.event.actions_json,
            state_delta_json=request.state_delta_json,
        )
        wanted = SessionEvent(
            app_name=request.app_name,
            user_id=request.user_id,
            session_id=request.session_id,
            ord=0,
            event_id=request.event.id,
            invocation_id=request.event.invocation_id,
            author=request.event.author,
            branch=request.event.branch,
            content_json=request.event.content_json,
            actions_json=request.event.actions_json,
            timestamp_ms=request.event.timestamp_ms,
        )
        trace = trace_of(context)
        event, updated = await self._database.write(
            lambda tx: sessions.append_event(tx, wanted, state_delta_json=request.state_delta_json, trace=trace),
            size=request.ByteSize() + 512,
        )
        return pb.AppendEventResponse(event=_event(event), last_update_time_ms=updated)


def _event(event: SessionEvent) -> pb.EventRecord:
    return to_message(pb.EventRecord, event, id=event.event_id)
