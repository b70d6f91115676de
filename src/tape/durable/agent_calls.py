"""Model and tool calls of an agent within a run: the base of the adapters for agent frameworks.

Each answer of a model is a decision, recorded before it is used; each tool call is an effect. A resumed run executes
the agent again from its beginning: it gets the recorded answers and results, and asks and acts only where the record
ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tape.base.coroutines import finish_in_thread
from tape.base.telemetry.genai import TokenUsage, model_span, tool_span
from tape.durable.change_detection import StepCheck
from tape.durable.decision_index import first_index
from tape.durable.declaration import EffectMeta
from tape.durable.digest import digest_of
from tape.durable.effect_call import EffectCall, within
from tape.durable.effect_execution import BegunEffect, attempt_async
from tape.errors import BudgetExceeded, RunInterrupted
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True)
class RequestedCall:
    """A tool call that a model asked for."""

    call_id: str
    tool: str


@dataclass(frozen=True)
class ResponseCodec(Generic[ResponseT]):
    """How a framework's response of a model is recorded and read."""

    to_json: Callable[[ResponseT], str]
    from_json: Callable[[str], ResponseT]
    tool_calls: Callable[[ResponseT], Iterable[RequestedCall]]
    usage: Callable[[ResponseT], TokenUsage]
    model: Callable[[ResponseT], str]


@dataclass(frozen=True)
class _DecisionRequest:
    """What a model is asked for: recorded in short, compared by the digest of all of it."""

    index: int
    request_json: str
    digest: str


@dataclass(frozen=True)
class _Position:
    """The position of a tool call: its decision, and its number among that decision's calls of the same tool."""

    decision_index: int
    call_index: int


class AgentCalls:
    """The calls of one execution of an agent. Decisions are numbered in the order in which they are asked for."""

    def __init__(self, call: EffectCall, agent: str, *, space: str = "", on_change: str = "warn") -> None:
        self.call = call
        self.agent = agent
        self.on_change = on_change
        self._next = first_index(space)
        self._positions: dict[str, _Position] = {}
        self._nested: dict[str, AgentCalls] = {}

    @classmethod
    def beside_others(cls, call: EffectCall, agent: str, *, on_change: str = "warn") -> AgentCalls:
        """The calls of an agent that shares its run with other code: its decisions have a range of their own."""
        name = f"agent:{agent}"
        if call.idempotency_key:
            return cls(call, agent, space=call.inner_key(name), on_change=on_change)
        # The decision is part of it, because calls are counted anew after each decision.
        space = f"{call.run_id}/decision-{call.decision_index}/{name}/{call.number_of(name)}"
        return cls(call, agent, space=space, on_change=on_change)

    def nested(self, tool: str, call_id: str, agent: str) -> AgentCalls:
        """The calls of an agent that this one calls as a tool; the same for each time that this call is continued."""
        if call_id not in self._nested:
            position = self._positions.get(call_id)
            where = f"decision-{position.decision_index}/{tool}/{position.call_index}" if position else call_id
            key = f"{self.call.run_id}/{where}"
            inner = EffectCall(self.call.run, tool_name=tool, idempotency_key=key, parent=self.call)
            self._nested[call_id] = AgentCalls(inner, agent, space=key, on_change=self.on_change)
        return self._nested[call_id]

    # ── decisions ────────────────────────────────────────────────────────────────────────────────

    async def decide(
        self,
        ask: Callable[[], Awaitable[ResponseT]],
        codec: ResponseCodec[ResponseT],
        *,
        model: str,
        provider: str = "",
        conversation: Sequence[Any] = (),
    ) -> tuple[ResponseT, bool]:
        """The model's next answer, and whether it was on record; `ask` is called if it was not.

        `conversation` is what the model is shown, as JSON values without what differs in each execution: a resumed run
        compares its digest with the record.
        """
        index = self._next
        self._next += 1
        request = {"agent": self.agent, "messages": len(conversation), "last": list(conversation[-1:])}
        step = _DecisionRequest(index, to_json(request), digest_of(list(conversation)) if conversation else "")
        recorded = await asyncio.to_thread(self._recall, step)
        if recorded is not None:
            return self._know(codec, codec.from_json(recorded), index), True
        await asyncio.to_thread(self._admit)
        marks = {"tape.run_id": self.call.run_id, "tape.decision_index": index}
        with model_span(model=model, provider=provider, agent=self.agent, attributes=marks) as span:
            try:
                response = await ask()
            except BaseException:
                if self._next == index + 1:
                    self._next = index  # a framework that asks again makes the same decision
                raise
            span.answered(model=codec.model(response), usage=codec.usage(response))
            mine = codec.to_json(response)
            model = codec.model(response) or model
            kept = await asyncio.to_thread(self._record, step, mine, model, codec.usage(response))
        # Another process may have been faster: the recorded answer counts.
        return self._know(codec, response if kept == mine else codec.from_json(kept), index), False

    def _know(self, codec: ResponseCodec[ResponseT], response: ResponseT, index: int) -> ResponseT:
        counts: Counter[str] = Counter()
        for call in codec.tool_calls(response):
            self._positions[call.call_id] = _Position(index, counts[call.tool])
            counts[call.tool] += 1
        return response

    def _recall(self, step: _DecisionRequest) -> str | None:
        run = self.call.run
        found: pb.GetDecisionResponse = run.call(run.client.get_decision, decision_index=step.index)
        if not found.found:
            return None
        record = found.decision
        check = StepCheck(
            self.call,
            f"the decision {step.index}",
            on_change=self.on_change,
            position="",
            digest=step.digest,
            asked=step.request_json,
        )
        check.compare(seq=record.seq, digest=record.digest, position="", recorded_json=lambda: record.request_json)
        return record.response_json

    def _admit(self) -> None:
        run = self.call.run
        usd = run.budget.usd_of(1) if run.budget else 0.0
        answer = run.call(run.client.admit_budget, usd_estimate=usd, token_estimate=1)
        if not answer.admitted:
            raise BudgetExceeded(f"The budget of run {run.run_id!r} does not allow it: {answer.reason}.")

    def _record(self, step: _DecisionRequest, response_json: str, model: str, usage: TokenUsage) -> str:
        run = self.call.run
        if usage.total:
            # Spent also if this process dies before the decision is recorded and the model is asked again.
            usd = run.budget.usd_of(usage.total) if run.budget else 0.0
            run.settle(run.client.charge_budget, usd=usd, tokens=usage.total)
        recorded: pb.DecisionRecord = run.call(
            run.client.record_decision,
            decision_index=step.index,
            model=model,
            request_json=step.request_json,
            response_json=response_json,
            digest=step.digest,
        )
        return recorded.response_json

    def gate_name(self, kind: str, tool: str, call_id: str) -> str:
        """The gate at which a tool call waits: `<kind>:<tool>:<decision>:<number>`, the same in each execution."""
        position = self._positions.get(call_id)
        where = f"{position.decision_index}:{position.call_index}" if position else call_id
        return f"{kind}:{tool}:{where}"

    # ── effects ──────────────────────────────────────────────────────────────────────────────────

    async def perform(
        self,
        tool: str,
        call_id: str,
        arguments: dict[str, Any],
        body: Callable[[], Awaitable[Any]],
        *,
        declared: EffectMeta | None = None,
        leaves_open: tuple[type[Exception], ...] = (),
    ) -> Any:
        """The result of a tool call, a JSON value: recorded as an effect and performed once.

        After an exception of `leaves_open` the effect stays pending: the tool has not acted, and is called again.
        """
        meta = replace(declared, result_type=Any) if declared else EffectMeta(tool)
        meta = replace(meta, on_change=meta.on_change or self.on_change)
        position = self._positions.get(call_id, _Position(-1, 0))
        root = EffectCall(self.call.run, decision_index=position.decision_index, parent=self.call)
        if position.decision_index < 0 and meta.key_from is None:
            # No recorded decision of this agent asked for it: only the call's id identifies the call.
            within_key = self.call.idempotency_key or root.run_id
            meta = replace(meta, key_from=lambda: f"{within_key}/no-decision/{meta.name}/{call_id}")
        if meta.dispatch == "outbox":
            # Its function prepares the request and begins the effect itself, from here.
            root.counts[position.decision_index, meta.name] = position.call_index
            with within(root):
                return await body()
        begun = await asyncio.to_thread(BegunEffect.begin, meta, root, arguments, call_index=position.call_index)
        if not begun.is_to_be_performed:
            return begun.outcome()
        marks = {"tape.run_id": root.run_id, "tape.idempotency_key": begun.call.idempotency_key}
        with within(begun.call), tool_span(tool=tool, call_id=call_id, attributes=marks):
            try:
                result = await attempt_async(meta, body)
            except leaves_open:
                raise
            except (Exception, RunInterrupted) as error:
                if (failure := await finish_in_thread(begun.fail, error)) is error:
                    raise
                raise failure from error
        return await finish_in_thread(begun.confirm, result)
