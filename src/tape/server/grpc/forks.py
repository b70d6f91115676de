"""The RPCs of forks and of the recorded steps of runs."""

from __future__ import annotations

import msgspec

from tape.engine.ledgers import forks, run_history
from tape.engine.ledgers.decisions import Decision
from tape.engine.ledgers.forks import ForkPoint
from tape.engine.ledgers.run_history import Step
from tape.errors import InvalidJson
from tape.journal.journal import Journal
from tape.model.json_depth import check_depth
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_texts
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context, trace_of
from tape.server.grpc.runs import run_state


class ForksService:
    """RPCs of forks and steps."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def fork_run(self, request: pb.ForkRunRequest, context: Context) -> pb.ForkRunResponse:
        """Begin a run that shares the steps of another one before a point."""
        check_texts(self._max_bytes, decision_json=request.decision_json, reason=request.reason)
        if request.decision_json:
            _check_json(request.decision_json)
        trace = trace_of(context)
        done = await self._database.write(
            lambda tx: forks.fork(
                tx,
                request.run_id,
                ForkPoint(request.at_decision, request.at_seq),
                decision_json=request.decision_json,
                invocation_id=request.invocation_id,
                reason=request.reason,
                trace=trace,
            ),
            size=request.ByteSize() + 4_096,
        )
        return pb.ForkRunResponse(run=run_state(done.run), steps=done.steps, gates=done.gates)

    async def list_run_steps(self, request: pb.ListRunStepsRequest, context: Context) -> pb.ListRunStepsResponse:
        """The decisions and effects of a run, oldest first."""
        page = await self._database.read(
            lambda reader: run_history.list_steps(reader, request.run_id, cursor=request.cursor, limit=request.limit)
        )
        return pb.ListRunStepsResponse(steps=map(step_message, page.steps), next_cursor=page.next_cursor)


def step_message(step: Step) -> pb.RunStep:
    """A step on the wire."""
    if isinstance(step, Decision):
        return pb.RunStep(decision=to_message(pb.DecisionRecord, step))
    return pb.RunStep(effect=to_message(pb.EffectRecord, step))


def _check_json(text: str) -> None:
    check_depth(text.encode())
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidJson(f"decision_json {text[:80]!r} is not JSON: {error}.") from error
