"""The history of a run: state, decisions, effects, obligations, budget and entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec

from tape.cli.output import as_dict
from tape.client import AsyncTapeClient
from tape.client.aio import to_entry
from tape.model.entry import Entry
from tape.proto import tape_pb2 as pb

MAX_REQUESTS = 16

T = TypeVar("T")
K = TypeVar("K")


# Children that are shown of a run.
MAX_CHILDREN = 20


class RunStory(msgspec.Struct, frozen=True):
    """A run with its ledgers; `entries` are those that the journal still has."""

    run: pb.RunState
    decisions: list[pb.DecisionRecord]
    effects: list[pb.EffectRecord]
    obligations: list[pb.ObligationRecord]
    budget: pb.BudgetState
    entries: list[Entry]
    # The newest children, one more than are shown.
    children: list[pb.RunState]

    def as_json(self) -> dict[str, Any]:
        """The history as JSON; payloads are plain JSON."""
        return {
            "run": as_dict(self.run),
            "decisions": [as_dict(decision) for decision in self.decisions],
            "effects": [as_dict(effect) for effect in self.effects],
            "obligations": [as_dict(obligation) for obligation in self.obligations],
            "budget": as_dict(self.budget),
            "children": [as_dict(child) for child in self.children[:MAX_CHILDREN]],
            "journal": [
                {
                    "global_seq": entry.global_seq,
                    "seq": entry.seq,
                    "ts_ms": entry.ts_ms,
                    "subject": entry.subject,
                    "payload": msgspec.Raw(entry.payload_json.encode()),
                    "trace_id": entry.trace_id,
                    "span_id": entry.span_id,
                }
                for entry in self.entries
            ],
        }


async def load(client: AsyncTapeClient, run_id: str) -> RunStory:
    """Fetch the history of a run. Raises NotFound."""
    run, head = await asyncio.gather(client.get_run(run_id), client.head())
    entries: list[Entry] = []
    async for batch in client.follow_batches(run_id=run_id, reconnect=False, skip_gaps=True):
        entries += map(to_entry, batch.entries)
        if batch.position >= head.global_seq:
            break
    indices = [index for index in _values_of(entries, "decision", "decision_index", int) if 0 <= index < 1 << 63]
    keys = _values_of(entries, "effect", "idempotency_key", str)
    if run.forked_from:
        shared = await client.list_run_steps(run_id, limit=1_000)  # steps that are on the journal of another run
        indices = [*(each.decision.decision_index for each in shared.steps if each.HasField("decision")), *indices]
        keys = [*(each.effect.idempotency_key for each in shared.steps if each.HasField("effect")), *keys]
        indices, keys = list(dict.fromkeys(indices)), list(dict.fromkeys(keys))
    decisions = await _all(indices, lambda index: client.get_decision(run_id=run_id, decision_index=index))
    effects = await _all(keys, lambda key: client.get_effect(run_id=run_id, idempotency_key=key))
    obligations, admitted, children = await asyncio.gather(
        client.list_obligations(run_id=run_id, only_unresolved=False),
        client.admit_budget(run_id=run_id),
        client.list_runs(parent_run_id=run_id, limit=MAX_CHILDREN + 1),
    )
    return RunStory(
        run,
        [answer.decision for answer in decisions if answer.found],
        [answer.effect for answer in effects if answer.found],
        list(obligations.obligations),
        admitted.budget,
        entries,
        list(children.runs),
    )


def _values_of(entries: Iterable[Entry], kind: str, field: str, type_: type[K]) -> list[K]:
    """The distinct values of a payload field in the entries of a kind, in order."""
    payloads = (entry.payload for entry in entries if entry.kind == kind)
    values = (payload.get(field) for payload in payloads if isinstance(payload, dict))
    return list(dict.fromkeys(value for value in values if type(value) is type_))


async def _all(keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> list[T]:
    slots = asyncio.Semaphore(MAX_REQUESTS)

    async def limited(key: K) -> T:
        async with slots:
            return await ask(key)

    return await asyncio.gather(*map(limited, keys))
