"""The RPCs of timers and of durable sleep."""

from __future__ import annotations

from tape.engine.ledgers import sleep, timers
from tape.engine.ledgers.timers import Timer
from tape.journal.journal import Journal
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_texts, check_time
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context, owner_of, trace_of


class TimersService:
    """RPCs of timers."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def set_timer(self, request: pb.SetTimerRequest, context: Context) -> pb.TimerRecord:
        """Set a timer."""
        check_texts(self._max_bytes, payload_json=request.payload_json, kind=request.kind)
        wanted = Timer(
            run_id=request.run_id,
            timer_id=request.timer_id,
            fire_at_ms=request.fire_at_ms,
            kind=request.kind,
            payload_json=request.payload_json,
            fired=False,
            created_at_ms=0,
        )
        owner, trace = owner_of(context), trace_of(context)
        timer = await self._database.write(lambda tx: timers.set_timer(tx, wanted, owner=owner, trace=trace))
        return to_message(pb.TimerRecord, timer)

    async def cancel_timer(self, request: pb.CancelTimerRequest, context: Context) -> pb.CancelTimerResponse:
        """Remove a timer."""
        trace = trace_of(context)
        cancelled = await self._database.write(
            lambda tx: timers.cancel(tx, request.run_id, request.timer_id, trace=trace)
        )
        return pb.CancelTimerResponse(cancelled=cancelled)

    async def list_due_timers(self, request: pb.ListDueTimersRequest, context: Context) -> pb.ListDueTimersResponse:
        """Due timers; claimed or leased timers go to one caller only."""
        now = check_time("now_ms", request.now_ms)
        if request.claim and request.claimer:
            found = await self._database.write(
                lambda tx: timers.lease_due(
                    tx,
                    claimer=request.claimer,
                    lease_ms=request.lease_ttl_ms,
                    now=now,
                    limit=request.limit,
                )
            )
        elif request.claim:
            found = await self._database.write(lambda tx: timers.claim_due(tx, now=now, limit=request.limit))
        else:
            found = await self._database.read(lambda reader: timers.list_due(reader, now=now, limit=request.limit))
        return pb.ListDueTimersResponse(timers=(to_message(pb.TimerRecord, timer) for timer in found))

    async def complete_timer(self, request: pb.CompleteTimerRequest, context: Context) -> pb.CompleteTimerResponse:
        """Complete a leased timer, so that it is not redelivered."""
        completed = await self._database.write(
            lambda tx: timers.complete(tx, request.run_id, request.timer_id, claimer=request.claimer)
        )
        return pb.CompleteTimerResponse(completed=completed)

    async def sleep_run(self, request: pb.SleepRunRequest, context: Context) -> pb.SleepRunResponse:
        """Park a run until a time; done once the time has come."""
        owner, trace = owner_of(context), trace_of(context)
        done, wake_at_ms = await self._database.write(
            lambda tx: sleep.sleep(tx, request.run_id, request.timer_id, request.duration_ms, owner=owner, trace=trace)
        )
        return pb.SleepRunResponse(done=done, wake_at_ms=wake_at_ms)
