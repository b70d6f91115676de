"""The calls of schedules."""

from __future__ import annotations

from tape.client import rpcs
from tape.client.channel import ChannelCalls
from tape.proto import tape_pb2 as pb


class ScheduleCalls(ChannelCalls):
    """Schedules: cron expressions that begin runs."""

    async def create_schedule(
        self,
        name: str,
        cron: str,
        *,
        app_name: str = "",
        playbook: str = "",
        user_id: str = "",
        session_id: str = "",
        input_json: str = "",
        time_zone: str = "UTC",
        overlap: str = "skip",
        catch_up_ms: int = 0,
        jitter_ms: int = 0,
        paused: bool = False,
        replace: bool = False,
    ) -> pb.Schedule:
        """Create a schedule of an app or a playbook. Raises ScheduleExists if it exists with other settings."""
        schedule = pb.Schedule(
            name=name,
            cron=cron,
            time_zone=time_zone,
            overlap=overlap,
            catch_up_ms=catch_up_ms,
            jitter_ms=jitter_ms,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            playbook=playbook,
            input_json=input_json,
            paused=paused,
        )
        request = pb.CreateScheduleRequest(schedule=schedule, replace=replace)
        return await self._channel.call(rpcs.CREATE_SCHEDULE, request)

    async def get_schedule(self, name: str) -> pb.Schedule:
        """A schedule. Raises NotFound."""
        return await self._channel.call(rpcs.GET_SCHEDULE, pb.GetScheduleRequest(name=name))

    async def list_schedules(self, *, after_name: str = "", limit: int = 100) -> pb.ListSchedulesResponse:
        """Schedules by name; the next page begins after the last name of this one."""
        request = pb.ListSchedulesRequest(after_name=after_name, limit=limit)
        return await self._channel.call(rpcs.LIST_SCHEDULES, request)

    async def pause_schedule(self, name: str) -> pb.Schedule:
        """Pause a schedule."""
        return await self._channel.call(rpcs.PAUSE_SCHEDULE, pb.PauseScheduleRequest(name=name))

    async def resume_schedule(self, name: str) -> pb.Schedule:
        """Resume a paused schedule from now on."""
        return await self._channel.call(rpcs.PAUSE_SCHEDULE, pb.PauseScheduleRequest(name=name, resume=True))

    async def delete_schedule(self, name: str) -> pb.DeleteScheduleResponse:
        """Delete a schedule; runs that it has begun go on."""
        return await self._channel.call(rpcs.DELETE_SCHEDULE, pb.DeleteScheduleRequest(name=name))

    async def trigger_schedule(self, name: str) -> pb.TriggerScheduleResponse:
        """Begin a run of a schedule now."""
        return await self._channel.call(rpcs.TRIGGER_SCHEDULE, pb.TriggerScheduleRequest(name=name))
