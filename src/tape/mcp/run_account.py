"""One run as an account: its state, its history, and why it is where it is, with the entries that prove it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, NamedTuple, cast

import msgspec

from tape.client.aio import AsyncTapeClient, to_entry
from tape.mcp.bounds import cut_json, to_time
from tape.model.entry import Entry, type_of
from tape.proto import tape_pb2 as pb

# Entries of a run that are looked at.
MAX_ENTRIES = 5_000
MAX_HISTORY = 100


class RunAccount(NamedTuple):
    """A run, its entries (oldest first), and whether it has more than were read."""

    run: pb.RunState
    entries: list[Entry]
    is_partial: bool


async def read_account(client: AsyncTapeClient, run_id: str) -> RunAccount:
    """Read a run. NotFound for one that does not exist, or that belongs to another tenant."""
    run = await client.get_run(run_id)
    head = (await client.head()).global_seq
    entries: list[Entry] = []
    stream = client.follow_batches(run_id=run_id, reconnect=False, skip_gaps=True)
    async with aclosing(cast(Any, stream)) as batches:
        async for batch in batches:
            entries += [to_entry(event) for event in batch.entries]
            if batch.position >= head or len(entries) >= MAX_ENTRIES:
                break
    return RunAccount(run, entries[:MAX_ENTRIES], len(entries) >= MAX_ENTRIES)


def state_of(run: pb.RunState) -> dict[str, Any]:
    """The state of a run in plain fields."""
    state = {
        "run_id": run.run_id,
        "app": run.app_name,
        "status": status_name(run),
        "user": run.user_id,
        "session": run.session_id,
        "started": to_time(run.started_at_ms),
        "ended": to_time(run.ended_at_ms),
        "waiting_on_gate": run.waiting_on_gate,
    }
    if run.detail_json:
        state["detail"] = cut_json(run.detail_json, 1_000)[0]
    return {name: value for name, value in state.items() if value}


def status_name(run: pb.RunState) -> str:
    """`WAITING`, `TERMINAL`, …"""
    return pb.RunStatus.Name(run.status).removeprefix("RUN_STATUS_")


def history_of(account: RunAccount) -> list[dict[str, Any]]:
    """What happened in the run: the newest 100 entries in short."""
    return [
        {
            "global_seq": entry.global_seq,
            "time": to_time(entry.ts_ms),
            "type": type_of(entry.kind, entry.subject),
            "payload": cut_json(entry.payload_json, 300)[0],
        }
        for entry in account.entries[-MAX_HISTORY:]
    ]


def explain(account: RunAccount, now_ms: int) -> list[str]:
    """Why the run is where it is, as sentences; numbers in brackets are the entries that prove them."""
    run, entries = account.run, account.entries
    said = [f"The run {run.run_id} of app {run.app_name} is {status_name(run)}{_proof(entries, 'run.')}."]
    for gate in run.gates:
        if gate.state == pb.GATE_STATE_WAITING:
            deadline = f" Its deadline is {to_time(gate.deadline_ms)}." if gate.deadline_ms else " It has no deadline."
            said.append(
                f"It waits at the gate {gate.gate_name!r} since {to_time(gate.created_at_ms)}"
                f"{_proof(entries, 'gate.')}.{deadline} Answer it with: tape inbox"
            )
    for key, entry in sorted(_open_effects(entries).items(), key=lambda each: each[1].global_seq):
        kind = type_of(entry.kind, entry.subject)
        if kind == "effect.unknown":
            said.append(
                f"The outcome of the effect {key!r} is unknown [{entry.global_seq}]: reconciliation looks it up,"
                " and nothing repeats it before that."
            )
        else:
            said.append(f"The effect {key!r} was begun [{entry.global_seq}] and has no outcome yet.")
    if run.status == pb.RUN_STATUS_RUNNING:
        left = run.lease_expires_at_ms - now_ms
        if left > 0:
            said.append(
                f"{run.lease_owner} executes it; its lease lasts {left / 1_000:.0f} s more unless it is renewed."
            )
        else:
            said.append("No process has its lease: recovery resumes it, or the next process that begins it.")
    if run.status in (pb.RUN_STATUS_FAILED, pb.RUN_STATUS_CANCELLED, pb.RUN_STATUS_STUCK) and run.detail_json:
        said.append(f"It ended because of: {run.detail_json[:500]}")
    if account.is_partial:
        said.append(f"Only its first {MAX_ENTRIES} entries were read.")
    return said


def _proof(entries: list[Entry], prefix: str) -> str:
    found = [entry.global_seq for entry in entries if type_of(entry.kind, entry.subject).startswith(prefix)]
    return f" [{found[-1]}]" if found else ""


def _open_effects(entries: list[Entry]) -> dict[str, Entry]:
    """The last entry of each effect that is pending or unknown."""
    effects: dict[str, Entry] = {}
    for entry in entries:
        kind = type_of(entry.kind, entry.subject)
        if not kind.startswith("effect."):
            continue
        key = _effect_key(entry)
        if kind in ("effect.pending", "effect.unknown"):
            effects[key] = entry
        elif kind in ("effect.confirmed", "effect.failed", "effect.reconciled"):
            effects.pop(key, None)
    return effects


def _effect_key(entry: Entry) -> str:
    try:
        payload = msgspec.json.decode(entry.payload_json)
    except msgspec.MsgspecError:
        return entry.subject
    return str(payload.get("effect_key") or entry.subject) if isinstance(payload, dict) else entry.subject
