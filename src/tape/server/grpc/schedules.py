"""The RPCs of schedules."""

from __future__ import annotations

from tape.engine.schedules import occurrences, registry, schedule
from tape.engine.schedules.schedule import DEFAULT_CATCH_UP_MS
from tape.errors import InvalidInput
from tape.journal.journal import Journal
from tape.model.tenant_names import plain_name
from tape.proto import tape_pb2 as pb
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context


class SchedulesService:
    """RPCs of schedules."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database

    async def create_schedule(self, request: pb.CreateScheduleRequest, context: Context) -> pb.Schedule:
        """Create a schedule, or replace it."""
        given = request.schedule
        if given.catch_up_ms < -1:
            raise InvalidInput(f"catch_up_ms {given.catch_up_ms} must be -1 (none), 0 (1 hour) or more.")
        wanted = schedule.Schedule(
            tenant="",
            name=given.name,
            cron=given.cron,
            time_zone=given.time_zone or "UTC",
            overlap=given.overlap or "skip",
            catch_up_ms=max(given.catch_up_ms or DEFAULT_CATCH_UP_MS, 0),
            jitter_ms=given.jitter_ms,
            app_name=given.app_name,
            user_id=given.user_id,
            session_id=given.session_id,
            playbook=given.playbook,
            input_json=given.input_json,
            paused=given.paused,
        )
        return _message(await self._database.write(lambda tx: registry.create(tx, wanted, replace=request.replace)))

    async def get_schedule(self, request: pb.GetScheduleRequest, context: Context) -> pb.Schedule:
        """A schedule."""
        return _message(await self._database.read(lambda reader: registry.get(reader, request.name)))

    async def list_schedules(self, request: pb.ListSchedulesRequest, context: Context) -> pb.ListSchedulesResponse:
        """Schedules by name."""
        found = await self._database.read(
            lambda reader: registry.list_schedules(reader, after=request.after_name, limit=request.limit)
        )
        return pb.ListSchedulesResponse(schedules=map(_message, found))

    async def pause_schedule(self, request: pb.PauseScheduleRequest, context: Context) -> pb.Schedule:
        """Pause or resume a schedule."""
        return _message(
            await self._database.write(lambda tx: registry.pause(tx, request.name, paused=not request.resume))
        )

    async def delete_schedule(self, request: pb.DeleteScheduleRequest, context: Context) -> pb.DeleteScheduleResponse:
        """Delete a schedule."""
        deleted = await self._database.write(lambda tx: registry.delete(tx, request.name))
        return pb.DeleteScheduleResponse(deleted=deleted)

    async def trigger_schedule(
        self, request: pb.TriggerScheduleRequest, context: Context
    ) -> pb.TriggerScheduleResponse:
        """Begin a run of a schedule now."""
        _, run_id = await self._database.write(lambda tx: occurrences.trigger(tx, request.name))
        return pb.TriggerScheduleResponse(run_id=run_id)


def _message(found: schedule.Schedule) -> pb.Schedule:
    shown = to_message(pb.Schedule, found, next_ms=found.nominal_ms, tenant_id=found.tenant)
    shown.playbook = plain_name(found.playbook)
    return shown
