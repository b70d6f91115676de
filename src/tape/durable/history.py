"""The recorded history of a run: its decisions, effects and gates, as a client reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tape.proto import tape_pb2 as pb

PAGE = 500
MAX_GATES = 1_000


@dataclass(eq=False)
class RunHistory:
    """A run with its steps in order and its gates by name."""

    run: pb.RunState
    decisions: dict[int, pb.DecisionRecord] = field(default_factory=dict)
    effects: dict[str, pb.EffectRecord] = field(default_factory=dict)
    gates: dict[str, pb.GateRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, run: pb.RunState, steps: Sequence[pb.RunStep], gates: Sequence[pb.GateRecord] = ()) -> RunHistory:
        """The history with these steps."""
        history = cls(run, gates={gate.gate_name: gate for gate in gates})
        for step in steps:
            if step.HasField("decision"):
                history.decisions[step.decision.decision_index] = step.decision
            else:
                history.effects[step.effect.idempotency_key] = step.effect
        return history

    def steps(self) -> list[pb.DecisionRecord | pb.EffectRecord]:
        """Decisions and effects in the order in which they were recorded."""
        return sorted([*self.decisions.values(), *self.effects.values()], key=lambda step: step.seq)


def fetch_history(client: Any, run_id: str) -> RunHistory:
    """Read the history of a run from a server. Raises NotFound."""
    run = client.get_run(run_id)
    steps: list[pb.RunStep] = []
    page = client.list_run_steps(run_id, limit=PAGE)
    steps += page.steps
    while page.next_cursor:
        page = client.list_run_steps(run_id, cursor=page.next_cursor, limit=PAGE)
        steps += page.steps
    gates = client.list_gates(run_id=run_id, limit=MAX_GATES).gates
    return RunHistory.of(run, steps, gates)


def describe(step: pb.DecisionRecord | pb.EffectRecord) -> str:
    """A step in a few words."""
    if isinstance(step, pb.DecisionRecord):
        return f"the decision {step.decision_index}"
    return f"the effect {step.tool_name!r}"


def name_of_key(key: str, run_id: str) -> str:
    """An idempotency key without the id of its run, so that steps of two runs can be compared."""
    return key.removeprefix(f"{run_id}/")
