"""A client that answers from the history of a run: nothing is performed, and nothing is written.

Code under replay gets it in place of its connection: `durable_run` and the calls of `tape` use it while
`current_recording` is set.
"""

from __future__ import annotations

import contextvars
import json
from typing import Any

import msgspec

from tape.client.shared import shared_client
from tape.client.sync import TapeClient
from tape.durable.digest import digest_of_json
from tape.durable.history import RunHistory, describe
from tape.errors import ReplayEnded, RunChanged
from tape.proto import tape_pb2 as pb

current_recording: contextvars.ContextVar[RecordedClient | None] = contextvars.ContextVar(
    "tape_recording", default=None
)

_OPEN = (pb.RUN_STATUS_RUNNABLE, pb.RUN_STATUS_RUNNING, pb.RUN_STATUS_WAITING, pb.RUN_STATUS_CANCELLED)
# Effects that are asked for only if the code does so: a sample or a version that is gone changes nothing.
_INCIDENTAL = ("det.", "version.")
# Calls that would write, and whose answer says nothing that a run could go by.
_WRITES: dict[str, Any] = {
    "set_budget": pb.BudgetState,
    "charge_budget": pb.BudgetState,
    "register_compensation": pb.ObligationRecord,
    "resolve_obligation": pb.ObligationRecord,
    "list_obligations": pb.ListObligationsResponse,
    "set_timer": pb.TimerRecord,
    "cancel_timer": pb.CancelTimerResponse,
    "send_signal": pb.SendSignalResponse,
    "write_value": pb.ValueRecord,
    "delete_value": pb.DeleteValueResponse,
}


class RecordedClient:
    """Answers the calls of one execution of a run from its history."""

    is_recording = True

    def __init__(self, history: RunHistory) -> None:
        self.history = history
        self.is_begun = False
        # What the execution does first that the run has not recorded.
        self.divergence: RunChanged | None = None
        self._decisions: set[int] = set()
        self._effects: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        answer = _WRITES.get(name)
        if answer is None:
            raise self._diverged(f"It calls {name} of the server, which the record of a run cannot answer.", name)
        return lambda *_, **__: answer()

    def close(self) -> None:
        """Nothing: there is no connection."""

    @property
    def replayed(self) -> int:
        """The number of recorded steps that were asked for."""
        return len(self._decisions) + len(self._effects)

    # ── the run ──────────────────────────────────────────────────────────────────────────────────

    def begin_run(self, *, app_name: str, **_: Any) -> pb.BeginRunResponse:
        """The recorded run, as if it were resumed."""
        run = self.history.run
        if self.is_begun or app_name != run.app_name:
            asked = f"the run of app {app_name!r}"
            raise self._diverged("It begins another run; a replay has the record of one only.", asked)
        self.is_begun = True
        return pb.BeginRunResponse(
            run_id=run.run_id, resumed=True, next_seq=run.seq_cursor, status=pb.RUN_STATUS_RUNNING
        )

    def get_run(self, run_id: str = "") -> pb.RunState:
        """The recorded run, while it was carried out."""
        run = pb.RunState()
        run.CopyFrom(self.history.run)
        run.status = pb.RUN_STATUS_RUNNING
        return run

    def resume_run(self, **_: Any) -> pb.ResumeRunResponse:
        """The recorded run."""
        return pb.ResumeRunResponse(run=self.get_run())

    def end_run(self, *, status: int, detail_json: str = "", result_json: str = "", **_: Any) -> pb.EndRunResponse:
        """Compare how the run ends with how it ended."""
        run = self.history.run
        if (missing := self._next_unseen()) is not None:
            raise self._diverged("It ends without a step that the run has recorded.", "the end of the run", missing)
        if run.status not in _OPEN and run.status != pb.RUN_STATUS_COMPENSATING:
            was = run.former_status or run.status
            if was != status:
                ended = f"{_name(was)} {run.detail_json}".strip()
                raise self._diverged("It ends in another way.", f"{_name(status)} {detail_json}".strip(), ended)
            if status == pb.RUN_STATUS_TERMINAL and _are_other(run.result_json, result_json):
                raise self._diverged("It has another result.", result_json, run.result_json)
        return pb.EndRunResponse(run=run)

    def admit_budget(self, **_: Any) -> pb.AdmitBudgetResponse:
        """Whether the run was allowed to go on."""
        was_refused = '"BudgetExceeded"' in self.history.run.detail_json and self._next_unseen() is None
        return pb.AdmitBudgetResponse(admitted=not was_refused, reason="as recorded" if was_refused else "")

    # ── its steps ────────────────────────────────────────────────────────────────────────────────

    def get_decision(self, *, decision_index: int, **_: Any) -> pb.GetDecisionResponse:
        """A recorded decision."""
        found = self.history.decisions.get(decision_index)
        if found is None:
            raise self._is_new(f"the decision {decision_index}")
        self._decisions.add(decision_index)
        return pb.GetDecisionResponse(found=True, decision=found)

    def record_decision(self, *, decision_index: int, **_: Any) -> pb.DecisionRecord:
        """Never a new decision: a recorded one, or the end of the record."""
        return self.get_decision(decision_index=decision_index).decision

    def begin_effect(
        self, *, tool_name: str, custom_key: str, request_json: str = "", after_seq: int = 0, **_: Any
    ) -> pb.BeginEffectResponse:
        """A recorded effect with its outcome."""
        found = self.history.effects.get(custom_key)
        if found is None:
            if tool_name.startswith("version."):
                later = next((step for step in self.history.steps() if step.seq > after_seq), None)
                displaced = "" if later is None else describe(later)
                return pb.BeginEffectResponse(
                    idempotency_key=custom_key, status=pb.EFFECT_STATUS_PENDING, displaced=displaced
                )
            raise self._is_new(f"the effect {tool_name!r}")
        self._effects.add(custom_key)
        status = pb.EFFECT_STATUS_PENDING if self._was_pending(found) else found.status
        return pb.BeginEffectResponse(
            seq=found.seq,
            idempotency_key=custom_key,
            status=status,
            response_json=found.response_json,
            error_json=found.error_json,
            existing=True,
            run_id=self.history.run.run_id,
            digest=found.digest,
            position=found.position,
        )

    def check_settled(self, tool_name: str, status: int, is_outbox: bool) -> None:
        """Raise ReplayEnded at an effect without an outcome: it must not be performed."""
        if status == pb.EFFECT_STATUS_UNKNOWN or (status == pb.EFFECT_STATUS_PENDING and not is_outbox):
            raise ReplayEnded(f"The record of run {self.history.run.run_id!r} has no outcome of {tool_name!r}.")

    def complete_effect(self, *, idempotency_key: str, response_json: str = "", **_: Any) -> pb.EffectRecord:
        """The recorded effect; a version or sample that was not recorded has the given value."""
        found = self.history.effects.get(idempotency_key)
        return found if found is not None else pb.EffectRecord(response_json=response_json)

    def get_effect(self, *, idempotency_key: str, **_: Any) -> pb.GetEffectResponse:
        """A recorded effect."""
        found = self.history.effects.get(idempotency_key)
        return pb.GetEffectResponse(found=found is not None, effect=found)

    def await_signal(self, *, gate_name: str, **_: Any) -> pb.AwaitSignalResponse:
        """The recorded answer of a gate."""
        gate = self.history.gates.get(gate_name)
        if gate is None or (not gate.answered_at_ms and not gate.answer_json):
            raise self._is_new(f"the gate {gate_name!r}")
        return pb.AwaitSignalResponse(delivered=True, resolution_json=gate.answer_json)

    def sleep_run(self, **_: Any) -> Any:
        """A sleep is over if the run has recorded anything after it."""
        if self._next_unseen() is None and self.history.run.status in _OPEN:
            raise self._is_new("a sleep")
        return pb.SleepRunResponse(done=True)

    # ── differences ──────────────────────────────────────────────────────────────────────────────

    def refuse_effect(self, name: str) -> None:
        """Reject an effect outside of the run: it is not on record, and would be performed."""
        raise self._diverged("It calls an effect outside of the run, which is not on record.", f"the effect {name!r}")

    def _was_pending(self, effect: pb.EffectRecord) -> bool:
        """Whether the run went on while an effect waited in the outbox."""
        if effect.dispatch_mode != pb.EFFECT_DISPATCH_MODE_OUTBOX:
            return False
        run = self.history.run
        later = [step.ts_ms for step in self.history.steps() if step.seq > effect.seq]
        later += [run.ended_at_ms] if run.ended_at_ms else []
        return any(ts_ms < effect.ts_ms for ts_ms in later)

    def _next_unseen(self) -> pb.DecisionRecord | pb.EffectRecord | None:
        """The first recorded step that this execution has not asked for, and that it would have to."""
        for step in self.history.steps():
            if isinstance(step, pb.DecisionRecord):
                if step.decision_index not in self._decisions:
                    return step
            elif step.idempotency_key not in self._effects and not self._is_within(step):
                return step
        return None

    def _is_within(self, effect: pb.EffectRecord) -> bool:
        """Whether an effect is incidental, or part of another one whose result is used as it is."""
        if effect.tool_name.startswith(_INCIDENTAL):
            return True
        parts = effect.idempotency_key.split("/")
        return any("/".join(parts[:count]) in self.history.effects for count in range(1, len(parts)))

    def _is_new(self, asked: str) -> RunChanged | ReplayEnded:
        """The error for a step that is not recorded: a change, or the end of the record of an open run."""
        missing, run = self._next_unseen(), self.history.run
        if missing is None and run.status in _OPEN:
            return ReplayEnded(f"The record of run {run.run_id!r} ends before {asked}.")
        ended = f"the end of the run: {_name(run.status)} {run.detail_json}".strip()
        return self._diverged("It asks for a step that the run has not recorded there.", asked, missing or ended)

    def _diverged(self, message: str, asked: str, recorded: Any = "") -> RunChanged:
        if isinstance(recorded, pb.DecisionRecord | pb.EffectRecord):
            request = recorded.request_json
            recorded = describe(recorded) + (f" with {request[:400]}" if request else "")
        change = RunChanged(message, recorded=recorded, asked=asked)
        self.divergence = self.divergence or change
        return change


def recorded_or_shared(url: str) -> TapeClient:
    """The client of the record while a run is replayed, else this process's client for a server."""
    recorded: Any = current_recording.get()
    return recorded or shared_client(url)


def _name(status: int) -> str:
    return pb.RunStatus.Name(status).removeprefix("RUN_STATUS_")


def _are_other(recorded: str, ours: str) -> bool:
    try:
        return bool(recorded and ours) and digest_of_json(recorded) != digest_of_json(ours)
    except (json.JSONDecodeError, msgspec.DecodeError):
        return recorded != ours
