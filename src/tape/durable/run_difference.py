"""The difference of two runs: their decisions, effects and gates side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tape.durable.difference import difference
from tape.durable.history import RunHistory, name_of_key
from tape.proto import tape_pb2 as pb


@dataclass(frozen=True)
class StepDifference:
    """One step of two runs; a side that does not have it is None. `differs` names what is different."""

    step: str
    left: dict[str, Any] | None
    right: dict[str, Any] | None
    differs: tuple[str, ...]
    detail: str = ""


def compare_runs(left: RunHistory, right: RunHistory) -> list[StepDifference]:
    """The steps and gates of both runs, in the order of the left one."""
    sides = _steps_of(left), _steps_of(right)
    order = _merge(list(sides[0]), list(sides[1]))
    return [_compare(name, sides[0].get(name), sides[1].get(name)) for name in order]


def _steps_of(history: RunHistory) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for step in history.steps():
        if isinstance(step, pb.DecisionRecord):
            found[f"decision {step.decision_index}"] = {
                "model": step.model,
                "request": step.request_json,
                "response": step.response_json,
            }
        else:
            name = name_of_key(step.idempotency_key, history.run.run_id)
            found[f"effect {name}"] = {
                "status": pb.EffectStatus.Name(step.status).removeprefix("EFFECT_STATUS_"),
                "request": step.request_json,
                "response": step.response_json,
                "error": step.error_json,
            }
    for gate in history.gates.values():
        found[f"gate {gate.gate_name}"] = {
            "status": pb.GateState.Name(gate.state).removeprefix("GATE_STATE_"),
            "response": gate.answer_json,
        }
    found["end"] = {
        "status": pb.RunStatus.Name(history.run.status).removeprefix("RUN_STATUS_"),
        "response": history.run.detail_json,
    }
    return found


def _merge(left: list[str], right: list[str]) -> list[str]:
    """Both lists in one order: what is in both keeps the order of the left one."""
    merged: list[str] = []
    index = {name: number for number, name in enumerate(right)}
    taken = 0
    for name in left:
        if name in index:
            merged += [each for each in right[taken : index[name]] if each not in left]
            taken = max(taken, index[name])
        merged.append(name)
    known = set(merged)
    tail = [each for each in right if each not in known]
    return [*merged[:-1], *tail, *merged[-1:]]


def _compare(step: str, left: dict[str, Any] | None, right: dict[str, Any] | None) -> StepDifference:
    if left is None or right is None:
        return StepDifference(step, _plain(left), _plain(right), ("only in one",))
    differs = tuple(name for name in left if left[name] != right.get(name) and _lines(name, left, right))
    detail = "\n".join(line for name in differs for line in _lines(name, left, right).splitlines()[:6])
    return StepDifference(step, _plain(left), _plain(right), differs, detail)


def _lines(name: str, left: dict[str, Any], right: dict[str, Any]) -> str:
    if name in ("status", "model"):
        return f"{name}: {left[name] or 'nothing'}, then {right[name] or 'nothing'}"
    found = difference(left[name], right[name]).replace(": recorded ", ": ").replace(", now ", ", then ")
    return "\n".join(f"{name} {line}" for line in found.splitlines())


def _plain(side: dict[str, Any] | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {name: _decoded(name, value) for name, value in side.items() if value}


def _decoded(name: str, value: str) -> Any:
    if name in ("status", "model"):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
