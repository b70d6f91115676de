"""Draws the history of a run: a summary, and its entries as a tree or as a timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from tape.cli.output import age, cut, moment, state, state_of, table
from tape.cli.run_story import MAX_CHILDREN, RunStory
from tape.model.entry import Entry
from tape.model.payload import to_json
from tape.model.subject import verb_of
from tape.proto import tape_pb2 as pb


def headline(story: RunStory, now_ms: int) -> Table:
    """Identity, status, lease, scopes and budget of a run."""
    run, budget = story.run, story.budget
    facts: dict[str, str | Text] = {
        "run": run.run_id,
        "status": state(state_of(pb.RunStatus, run.status)),
        "of": " / ".join((run.app_name, run.user_id, run.session_id)),
        "invocation": run.invocation_id,
        "began": f"{moment(run.started_at_ms)}, {age(now_ms - run.started_at_ms)} ago",
        "ended": f"{moment(run.ended_at_ms)}, after {age(run.ended_at_ms - run.started_at_ms)}"
        if run.ended_at_ms
        else "",
        "forked": _forked(run),
        "lease": lease(run, now_ms),
        "result": cut(run.result_json),
        "error": cut(f"{run.error_type}: {run.error_message}".strip(": ")),
        "parent": run.parent_run_id,
        "children": _children(story),
        "waits at": _waits_at(run, now_ms),
        "tenant": run.tenant_id,
        "actor": run.actor,
        "agent": run.agent_id,
        "scopes": ", ".join(run.scopes),
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(run.labels.items())),
        "budget": _budget(budget),
    }
    shown = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact:
            shown.add_row(Text(name, "dim"), fact)
    return shown


def _children(story: RunStory) -> str:
    """The newest children of a run, with their status."""
    shown = [f"{each.run_id} {state_of(pb.RunStatus, each.status)}" for each in story.children[:MAX_CHILDREN]]
    if len(story.children) > MAX_CHILDREN:
        shown.append(f"more: tape runs list --parent {story.run.run_id}")
    return "\n".join(shown)


def _forked(run: pb.RunState) -> str:
    """The run that a fork shares steps with, and up to where."""
    if not run.forked_from:
        return ""
    at = f"seq {run.forked_at_seq}" if run.forked_at_decision < 0 else f"decision {run.forked_at_decision}"
    return f"from {run.forked_from} at {at}"


def _waits_at(run: pb.RunState, now_ms: int) -> str:
    """The gate that a run waits at, with its risk and deadline."""
    about = run.waiting_on_gate
    for gate in run.gates:
        if gate.gate_name == run.waiting_on_gate and about:
            about += f", risk {gate.risk}" if gate.risk else ""
            about += f", times out in {age(gate.deadline_ms - now_ms)}" if gate.deadline_ms else ""
            about += f", asks {cut(gate.payload_json)}" if gate.payload_json else ""
    return about


def lease(run: pb.RunState, now_ms: int) -> str:
    """The lease of a run and its remaining time; empty without a lease."""
    if not run.lease_owner and not run.lease_expires_at_ms:
        return ""
    left = run.lease_expires_at_ms - now_ms
    owner = run.lease_owner or "unnamed owner"
    return f"{owner}, expires in {age(left)}" if left > 0 else f"{owner}, expired {age(-left)} ago"


def _budget(budget: pb.BudgetState) -> str:
    parts = []
    if budget.usd_cap or budget.usd_spent:
        parts.append(f"${budget.usd_spent:.4g}" + (f" of ${budget.usd_cap:.4g}" if budget.usd_cap else ""))
    if budget.token_cap or budget.tokens_spent:
        parts.append(f"{budget.tokens_spent:,}" + (f" of {budget.token_cap:,}" if budget.token_cap else "") + " tokens")
    return ", ".join(parts)


# ── the journal as a timeline ────────────────────────────────────────────────────────────────────


def timeline(story: RunStory) -> Table:
    """Every entry in order, with the time since the start of the run."""
    shown = table("seq", "time", "since", "what", "about")
    for entry in story.entries:
        since = age(entry.ts_ms - story.run.started_at_ms)
        verb = verb_of(entry.subject)
        what = Text.assemble((f"{entry.kind} ", "bold"), state(verb))
        shown.add_row(str(entry.seq), moment(entry.ts_ms)[11:], f"+{since}", what, about(entry))
    return shown


def about(entry: Entry) -> str:
    """The important fields of an entry."""
    payload = entry.payload
    if not isinstance(payload, dict):
        return cut(entry.payload_json)
    fields = {name: value for name, value in payload.items() if value not in ("", None)}
    if fields.get("transition") == verb_of(entry.subject):
        del fields["transition"]
    if entry.kind not in _SHOWN_FIELDS:
        return cut(entry.payload_json)
    names = [name for name in _SHOWN_FIELDS[entry.kind] if name in fields]
    first = _SHOWN_FIELDS[entry.kind][0]
    return cut(", ".join(_text(fields[name]) if name == first else f"{name} {_text(fields[name])}" for name in names))


def _text(value: Any) -> str:
    return to_json(value) if isinstance(value, dict | list) else str(value)


# Fields of payloads that are shown, by the kind of entry; the first is shown without its name.
_SHOWN_FIELDS = {
    "decision": ("decision_index", "model", "rationale"),
    "effect": ("tool", "transition", "dispatch_attempts", "error", "external_ref", "business_key"),
    "obligation": ("kind", "transition", "claimer", "attempts", "error"),
    "gate": ("gate", "risk", "payload", "answered_by", "answer"),
    "policy": ("tool", "required_scope", "violation"),
    "run": ("invocation_id", "actor", "decisions_zeroed", "effects_zeroed"),
}


# ── the journal as a tree ────────────────────────────────────────────────────────────────────────


def tree(story: RunStory) -> Tree:
    """Decisions with their effects, and under each effect its entries and obligations."""
    entries = list(story.entries)
    # Top-level branches by the seq of their first entry.
    top: dict[int, Tree] = {}
    branches: dict[int, Tree] = {}
    for decision in story.decisions:
        branch = Tree(Text.assemble((f"decision {decision.decision_index} ", "bold"), decision.model))
        top[decision.seq] = branches[decision.decision_index] = branch
        _add_texts(branch, because=decision.rationale, chose=decision.response_json)
        _take(entries, "decision", "decision_index", decision.decision_index)
    for effect in story.effects:
        branch = Tree(_effect(effect))
        if effect.decision_index in branches:
            branches[effect.decision_index].children.append(branch)
        else:
            top[effect.seq] = branch
        for entry in _take(entries, "effect", "idempotency_key", effect.idempotency_key):
            branch.add(_line(entry))
        error = effect.error_json or effect.last_dispatch_error
        _add_texts(branch, asked=effect.request_json, answer=effect.response_json, error=error)
        for obligation in story.obligations:
            if obligation.effect_key == effect.idempotency_key:
                branch.children.append(_obligation(obligation, entries))
    known = {effect.idempotency_key for effect in story.effects}
    for obligation in story.obligations:
        if obligation.effect_key not in known:
            top[obligation.seq] = _obligation(obligation, entries)
    top |= {entry.seq: Tree(_line(entry)) for entry in entries}
    root = Tree(Text.assemble(("run ", "bold"), story.run.run_id, " ", state(state_of(pb.RunStatus, story.run.status))))
    root.children.extend(top[seq] for seq in sorted(top))
    return root


def _add_texts(branch: Tree, **texts: str) -> None:
    for name, text in texts.items():
        if text:
            branch.add(Text.assemble((f"{name} ", "dim"), cut(text)))


def _effect(effect: pb.EffectRecord) -> Text:
    mode = f"{state_of(pb.EffectSemantics, effect.semantics)}, {state_of(pb.EffectDispatchMode, effect.dispatch_mode)}"
    label = Text.assemble(
        ("effect ", "bold"),
        f"{effect.tool_name} ",
        state(state_of(pb.EffectStatus, effect.status)),
        (f" {mode}", "dim"),
    )
    if effect.connector:
        label.append(f" through {effect.connector}", "dim")
    if effect.external_ref:
        label.append(f" {effect.external_ref}")
    return label


def _obligation(obligation: pb.ObligationRecord, entries: list[Entry]) -> Tree:
    label = Text.assemble(
        ("obligation ", "bold"),
        f"{obligation.kind} ",
        state(state_of(pb.ObligationStatus, obligation.status)),
        (f" {obligation.attempts} of {obligation.max_attempts} attempts", "dim"),
    )
    branch = Tree(label)
    fields = _take_if(
        entries,
        lambda entry, payload: (
            entry.kind == "obligation" and obligation.seq in (entry.seq, payload.get("obligation_seq"))
        ),
    )
    for entry in fields:
        branch.add(_line(entry))
    _add_texts(branch, error=obligation.last_error)
    return branch


def _line(entry: Entry) -> Text:
    verb = verb_of(entry.subject)
    label = Text.assemble(
        (f"{entry.seq} ", "dim"), (f"{moment(entry.ts_ms)[11:]} ", "dim"), f"{entry.kind} ", state(verb)
    )
    if words := about(entry):
        label.append(f" {words}", "dim")
    return label


def _take(entries: list[Entry], kind: str, field: str, value: object) -> list[Entry]:
    """Remove and return the entries of a kind that name something."""
    return _take_if(entries, lambda entry, payload: entry.kind == kind and payload.get(field) == value)


def _take_if(entries: list[Entry], is_wanted: Callable[[Entry, dict[str, Any]], bool]) -> list[Entry]:
    taken = [entry for entry in entries if isinstance(entry.payload, dict) and is_wanted(entry, entry.payload)]
    numbers = {entry.seq for entry in taken}
    entries[:] = [entry for entry in entries if entry.seq not in numbers]
    return taken
