"""The calls about sessions and their events. Each is named for its RPC."""

from __future__ import annotations

from tape.client import rpcs
from tape.client.channel import ChannelCalls
from tape.proto import tape_pb2 as pb


class SessionCalls(ChannelCalls):
    """Sessions and their events."""

    async def create_session(
        self, *, app_name: str, user_id: str, session_id: str = "", state_json: str = "{}", if_absent: bool = False
    ) -> pb.Session:
        """Create a session, or replace its state; with `if_absent`, SessionExists if it exists."""
        request = pb.CreateSessionRequest(
            app_name=app_name, user_id=user_id, session_id=session_id, state_json=state_json, if_absent=if_absent
        )
        return await self._channel.call(rpcs.CREATE_SESSION, request)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, max_events: int = 0
    ) -> pb.GetSessionResponse:
        """A session with its events, all or the latest."""
        request = pb.GetSessionRequest(app_name=app_name, user_id=user_id, session_id=session_id, max_events=max_events)
        return await self._channel.call(rpcs.GET_SESSION, request)

    async def list_sessions(self, *, app_name: str, user_id: str = "") -> pb.ListSessionsResponse:
        """An app's sessions, the latest first."""
        request = pb.ListSessionsRequest(app_name=app_name, user_id=user_id)
        return await self._channel.call(rpcs.LIST_SESSIONS, request)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> pb.DeleteSessionResponse:
        """Remove a session and its events."""
        request = pb.DeleteSessionRequest(app_name=app_name, user_id=user_id, session_id=session_id)
        return await self._channel.call(rpcs.DELETE_SESSION, request)

    async def append_event(
        self, *, app_name: str, user_id: str, session_id: str, event: pb.EventRecord, state_delta_json: str = "{}"
    ) -> pb.AppendEventResponse:
        """Append an event and merge its state delta."""
        request = pb.AppendEventRequest(
            app_name=app_name, user_id=user_id, session_id=session_id, event=event, state_delta_json=state_delta_json
        )
        return await self._channel.call(rpcs.APPEND_EVENT, request)
