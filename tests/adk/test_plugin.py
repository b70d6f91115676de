"""What the plugin makes of an agent's life: decisions, tools, failures, gates, budgets, cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import threading
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

import tape
from tape import Budget, TapeClient
from tape.adk import RunIdentity, durable_app
from tape.durable.registry import get_tool_compensator
from tape.durable.runs import adopted_owner
from tape.errors import (
    AckLost,
    BudgetExceeded,
    EffectFailed,
    EffectUnknown,
    LeaseHeld,
    RunCancelled,
    RunEnded,
    RunParked,
    ScopeDenied,
)
from tape.proto import tape_pb2 as pb
from tests.adk.driving import (
    SESSION_KEY,
    Death,
    DieAfterTool,
    agent_of,
    asked,
    begin,
    effects_of,
    events_of,
    resume,
    run_of,
    runner_of,
    state_of,
)
from tests.adk.scripted import Scripted, calls, message, says, texts
from tests.services import wait_for

PAY = calls(("pay", {"amount": 5}))


class Bank:
    """Counts what is done, by idempotency key."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tool(self, **declared: Any) -> Any:
        """A declared tool that pays."""

        @tape.effect(**declared)
        def pay(amount: int, tool_context: Any = None) -> dict[str, Any]:
            """Pay an amount."""
            self.done.append(tape.idempotency_key(tool_context))
            tool_context.state["paid"] = amount
            return {"paid": amount}

        return pay


# ── decisions and tools ──────────────────────────────────────────────────────────────────────────


async def test_a_run_has_its_decisions_and_effects_on_record_and_ends(url: str, observer: TapeClient) -> None:
    bank = Bank()
    agent = agent_of(PAY, says("done"), tools=[bank.tool()])
    assert texts(await begin(runner_of(url, agent))) == ["done"]
    run = run_of(observer)
    assert run.status == pb.RUN_STATUS_TERMINAL
    assert bank.done == [f"{run.run_id}/decision-0/pay/0"]
    assert effects_of(observer) == [("pay", "pending"), ("pay", "confirmed")]
    decision = observer.get_decision(run_id=run.run_id, decision_index=1).decision
    assert decision.model == "scripted"
    assert json.loads(decision.response_json)["response"]["content"]["parts"] == [{"text": "done"}]
    with pytest.raises(RunEnded, match="TERMINAL"):
        await resume(runner_of(url, agent))


async def test_a_tool_that_is_not_declared_is_an_effect_too(url: str, observer: TapeClient) -> None:
    seen = []

    @tape.effect
    def inner() -> str:
        return tape.idempotency_key(None)

    async def plain(x: int) -> list[str]:
        """Do something."""
        seen.append(x)
        return [tape.idempotency_key(None), inner()]

    agent = agent_of(calls(("plain", {"x": 1}), ("plain", {"x": 2})), says("done"), tools=[plain])
    runner = runner_of(url, agent, DieAfterTool())
    with pytest.raises(Death):
        await begin(runner)
    await resume(runner)
    answers = [answer for event in await events_of(runner) for answer in event.get_function_responses()]
    run_id = run_of(observer).run_id
    assert [answer.response for answer in answers] == [
        {"result": [f"{run_id}/decision-0/plain/{n}", f"{run_id}/decision-0/plain/{n}/inner/0"]} for n in (0, 1)
    ]
    assert set(seen) == {1, 2}
    assert len(seen) <= 3  # one was cancelled when the other died, maybe in its middle


async def test_what_a_tool_did_to_the_state_survives_that_its_answer_was_lost(url: str) -> None:
    bank = Bank()
    runner = runner_of(url, agent_of(PAY, says("done"), tools=[bank.tool()]), DieAfterTool())
    with pytest.raises(Death):
        await begin(runner)
    assert await state_of(runner) == {}
    assert texts(await resume(runner)) == ["done"]
    assert await state_of(runner) == {"paid": 5}
    assert len(bank.done) == 1


async def test_what_a_tool_asked_of_the_agent_survives_too(url: str) -> None:
    def leave(tool_context: Any) -> dict[str, Any]:
        """Leave without a word from the model."""
        tool_context.actions.skip_summarization = True
        return {"picture": types.Part.from_bytes(data=b"\x00\xff", mime_type="image/png")}

    agent = agent_of(calls(("leave", {})), says("never"), tools=[leave])
    runner = runner_of(url, agent, DieAfterTool())
    with pytest.raises(Death):
        await begin(runner)
    await resume(runner)
    assert asked(agent) == [0]
    (answer,) = [answer for event in await events_of(runner) for answer in event.get_function_responses()]
    assert answer.parts is not None
    assert answer.parts[0].inline_data is not None
    assert answer.parts[0].inline_data.data == b"\x00\xff"


async def test_the_agents_own_callbacks_have_their_say_in_every_drive(url: str) -> None:
    heard: list[str] = []

    def after_model(callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
        heard.append("model")
        if not llm_response.content or not llm_response.content.parts or not llm_response.content.parts[0].text:
            return None
        return says(llm_response.content.parts[0].text.upper())

    async def after_tool(**given: Any) -> dict[str, Any]:
        heard.append("tool")
        return {"seen": given["tool_response"]}

    class DieOnce(BasePlugin):
        """Dies when the last decision is on record."""

        died = False

        async def after_model_callback(self, *, llm_response: LlmResponse, **_: Any) -> None:
            if texts([llm_response]) == ["done"] and not self.died:
                self.died = True
                raise Death

    bank = Bank()
    agent = agent_of(
        PAY,
        says("done"),
        tools=[bank.tool()],
        after_model_callback=after_model,
        after_tool_callback=after_tool,
    )
    runner = runner_of(url, agent, DieOnce(name="death"))
    with pytest.raises(Death):
        await begin(runner)
    assert texts(await resume(runner)) == ["DONE"]
    assert asked(agent) == [0, 1]
    assert heard == ["model", "tool", "model"]
    (answer,) = [answer for event in await events_of(runner) for answer in event.get_function_responses()]
    assert answer.response == {"seen": {"paid": 5}}


async def test_an_invented_tool_and_an_error_of_the_model_are_the_models_own_business(
    url: str, observer: TapeClient
) -> None:
    broken = LlmResponse(error_code="SAFETY", error_message="no")
    agent = agent_of(calls(("invented", {})), broken)
    events = await begin(runner_of(url, agent))
    assert [event.error_code for event in events if event.error_code] == ["SAFETY"]
    run = run_of(observer)
    assert run.status == pb.RUN_STATUS_TERMINAL
    assert not observer.get_decision(run_id=run.run_id, decision_index=1).found
    assert effects_of(observer) == []


async def test_answers_of_a_callback_instead_of_the_model_are_nobodys_decision(url: str, observer: TapeClient) -> None:
    bank = Bank()
    answers = iter([PAY.model_copy(deep=True), says("done")])
    agent = agent_of(tools=[bank.tool()], before_model_callback=lambda **_: next(answers))
    assert texts(await begin(runner_of(url, agent))) == ["done"]
    run_id = run_of(observer).run_id
    assert bank.done[0].startswith(f"{run_id}/no-decision/pay/adk-")


# ── streaming ────────────────────────────────────────────────────────────────────────────────────


async def test_a_streamed_answer_is_one_decision(url: str, observer: TapeClient) -> None:
    agent = agent_of(PAY, says("done"), tools=[Bank().tool()])
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    events = await begin(runner_of(url, agent), run_config=config)
    assert [event.partial for event in events if texts([event.model_copy(update={"partial": None})])] == [
        True,
        True,
        None,
    ]
    run_id = run_of(observer).run_id
    assert observer.get_decision(run_id=run_id, decision_index=1).found
    assert not observer.get_decision(run_id=run_id, decision_index=2).found


async def test_a_streamed_answer_in_several_parts_is_resumed_as_one(url: str, observer: TapeClient) -> None:
    bank = Bank()

    class InParts(Scripted):
        """Says something before it asks for a tool, each as a response of its own."""

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            async for answer in super().generate_content_async(llm_request, False):
                if self.asked[-1] == 0:
                    yield says("let me see")
                yield answer

    class DieOnce(BasePlugin):
        """Dies when both parts are on record and none is kept in the session."""

        died = False

        async def on_event_callback(self, *, event: Any, **_: Any) -> None:
            if event.get_function_calls() and not self.died:
                self.died = True
                raise Death

    agent = LlmAgent(name="agent", model=InParts(answers=[PAY, says("no"), says("done")]), tools=[bank.tool()])
    runner = runner_of(url, agent, DieOnce(name="death"))
    with pytest.raises(Death):
        await begin(runner, run_config=RunConfig(streaming_mode=StreamingMode.SSE))
    # The first part was kept, so the second one is what comes next.
    assert texts(await resume(runner)) == ["done"]
    assert asked(agent)[0] == 0
    assert asked(agent).count(0) == 1
    assert len(bank.done) == 1


# ── failure ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_tool_that_raises_fails_the_run_and_does_so_again_without_acting(
    url: str, observer: TapeClient
) -> None:
    tries = []

    async def pay(amount: int) -> None:
        """Fail to pay."""
        tries.append(amount)
        raise ValueError("no funds")

    async def other() -> str:
        """Succeed."""
        tries.append(0)
        return "fine"

    runner = runner_of(url, agent_of(calls(("other", {}), ("pay", {"amount": 5})), says("done"), tools=[pay, other]))
    for _ in range(2):
        with pytest.raises(EffectFailed, match="ValueError: no funds"):
            await (resume if tries else begin)(runner)
        assert run_of(observer).status == pb.RUN_STATUS_FAILED
    assert sorted(tries) == [0, 5]
    assert not any(event.error_code or event.get_function_responses() for event in await events_of(runner))


async def test_who_answers_for_a_failed_tool_answers_again_in_a_resumed_run(url: str, observer: TapeClient) -> None:
    answered = []

    def pay() -> None:
        """Fail to pay."""
        raise ValueError("no funds")

    def answer(tool: Any, args: Any, tool_context: Any, error: Exception) -> dict[str, Any]:
        answered.append(str(error))
        return {"sorry": True}

    agent = agent_of(calls(("pay", {})), says("done"), tools=[pay], on_tool_error_callback=answer)
    runner = runner_of(url, agent, DieAfterTool())
    with pytest.raises(Death):
        await begin(runner)
    assert texts(await resume(runner)) == ["done"]
    assert run_of(observer).status == pb.RUN_STATUS_TERMINAL
    assert answered == ["no funds", "The effect 'pay' failed: ValueError: no funds"]


async def test_a_lost_answer_leaves_the_run_open_until_the_outcome_is_known(url: str, observer: TapeClient) -> None:
    known: list[Any] = [None]
    done = []

    @tape.effect(status_check=lambda idempotency_key: known[-1])
    def pay(tool_context: Any = None) -> dict[str, Any]:
        """Pay, and not hear of it."""
        done.append(tape.idempotency_key(tool_context))
        raise AckLost("the line went dead")

    agent = agent_of(calls(("pay", {})), says("done"), tools=[pay])
    runner = runner_of(url, agent)
    with pytest.raises(EffectUnknown):
        await begin(runner)
    assert run_of(observer).status == pb.RUN_STATUS_RUNNING
    with pytest.raises(EffectUnknown):
        await resume(runner)
    known.append({"paid": 5})
    assert texts(await resume(runner)) == ["done"]
    assert len(done) == 1
    assert asked(agent) == [0, 1]


# ── gates and other waiting ──────────────────────────────────────────────────────────────────────


async def test_a_run_parks_at_a_gate_in_a_tool_and_goes_on_with_the_answer(url: str, observer: TapeClient) -> None:
    bank = Bank()
    entered = []

    @tape.effect
    def transfer(tool_context: Any = None) -> dict[str, Any]:
        """Ask, then act."""
        entered.append(1)
        answer = tape.gate("transfer", tool_context=tool_context, payload={"usd": 7})
        return {"transferred": answer["approved"]}

    agent = agent_of(calls(("pay", {"amount": 1}), ("transfer", {})), says("done"), tools=[bank.tool(), transfer])
    runner = runner_of(url, agent)
    with pytest.raises(RunParked, match="transfer"):
        await begin(runner)
    run = run_of(observer)
    assert (run.status, run.waiting_on_gate) == (pb.RUN_STATUS_WAITING, "transfer")
    observer.send_signal(run_id=run.run_id, gate_name="transfer", resolution_json='{"approved": true}')
    assert texts(await resume(runner)) == ["done"]
    answers = [answer for event in await events_of(runner) for answer in event.get_function_responses()]
    assert [answer.response for answer in answers] == [{"paid": 1}, {"transferred": True}]
    assert (len(entered), len(bank.done)) == (2, 1)
    assert asked(agent) == [0, 1]
    assert run_of(observer).status == pb.RUN_STATUS_TERMINAL


async def test_an_agent_asks_for_leave_with_a_gate_tool(url: str, observer: TapeClient) -> None:
    agent = agent_of(calls(("approval", {"reason": "big"})), says("done"), tools=[tape.gate_tool("approval")])
    runner = runner_of(url, agent)
    with pytest.raises(RunParked):
        await begin(runner)
    observer.send_signal(run_id=run_of(observer).run_id, gate_name="approval", resolution_json='{"ok": 1}')
    assert texts(await resume(runner)) == ["done"]


async def test_a_long_running_call_waits_on_record_for_its_answer(url: str, observer: TapeClient) -> None:
    asked_for = []

    def ask(question: str) -> None:
        """Ask for approval."""
        asked_for.append(question)

    agent = agent_of(calls(("ask", {"question": "?"})), says("done"), tools=[LongRunningFunctionTool(ask)])
    runner = runner_of(url, agent)
    (call,) = [call for event in await begin(runner) for call in event.get_function_calls()]
    run = run_of(observer)
    assert (run.status, run.waiting_on_gate) == (pb.RUN_STATUS_WAITING, f"adk-call:{call.id}")
    response = types.FunctionResponse(id=call.id, name="ask", response={"answer": "yes"})
    answer = types.Content(role="user", parts=[types.Part(function_response=response)])
    assert texts([event async for event in runner.run_async(**SESSION_KEY, new_message=answer)]) == ["done"]
    assert run_of(observer).status == pb.RUN_STATUS_TERMINAL
    assert asked_for == ["?"]


async def test_a_tool_that_needs_a_confirmation_acts_once_when_it_has_one(url: str, observer: TapeClient) -> None:
    bank = Bank()
    tool = FunctionTool(bank.tool(), require_confirmation=True)
    agent = agent_of(PAY, says("done"), tools=[tool])
    runner = runner_of(url, agent)
    events = await begin(runner)
    assert bank.done == []
    (request,) = [
        call for event in events for call in event.get_function_calls() if call.name == "adk_request_confirmation"
    ]
    assert run_of(observer).status == pb.RUN_STATUS_WAITING
    response = types.FunctionResponse(id=request.id, name=request.name, response={"confirmed": True})
    answer = types.Content(role="user", parts=[types.Part(function_response=response)])
    assert texts([event async for event in runner.run_async(**SESSION_KEY, new_message=answer)]) == ["done"]
    assert len(bank.done) == 1
    assert run_of(observer).status == pb.RUN_STATUS_TERMINAL


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_whose_budget_is_spent_fails_before_the_model_is_asked_again(
    url: str, observer: TapeClient
) -> None:
    agent = agent_of(calls(("pay", {"amount": 5}), tokens=100), says("never"), tools=[Bank().tool()])
    runner = runner_of(url, agent, budget=Budget(token_cap=100))
    with pytest.raises(BudgetExceeded, match="token cap 100 would be exceeded"):
        await begin(runner)
    assert asked(agent) == [0]
    assert run_of(observer).status == pb.RUN_STATUS_FAILED


async def test_a_replayed_decision_is_not_charged_again_and_the_runs_own_budget_is_remembered(
    url: str, observer: TapeClient
) -> None:
    agent = agent_of(calls(("pay", {"amount": 5}), tokens=100), says("done", tokens=200), tools=[Bank().tool()])
    runner = runner_of(url, agent, DieAfterTool(), budget=Budget(token_cap=1))
    config = tape.with_budget(usd_cap=5.0, usd_per_million_tokens=10_000)
    with pytest.raises(Death):
        await begin(runner, run_config=config)
    await resume(runner)
    budget = observer.admit_budget(run_id=run_of(observer).run_id).budget
    assert (budget.tokens_spent, budget.usd_spent, budget.usd_cap, budget.token_cap) == (300, 3.0, 5.0, 0)


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated")  # AgentTool itself uses it
async def test_an_agent_as_a_tool_spends_from_the_budget_of_the_run(url: str, observer: TapeClient) -> None:
    inner = agent_of(says("paid", tokens=100), name="inner")
    agent = agent_of(
        calls(("inner", {"request": "pay"}), tokens=100), says("done", tokens=100), tools=[AgentTool(inner)]
    )
    with pytest.raises(BudgetExceeded):
        await begin(runner_of(url, agent, budget=Budget(usd_cap=2.0, usd_per_million_tokens=10_000)))
    assert (asked(agent), asked(inner)) == ([0], [0])
    assert observer.admit_budget(run_id=run_of(observer).run_id).budget.usd_spent == 2.0


# ── outbox, scopes, identity ─────────────────────────────────────────────────────────────────────


def outbox() -> Any:
    """A tool whose request is sent by a dispatcher."""

    @tape.outbox_tool(connector="bank", business_key="{invoice}")
    def transfer(invoice: str, tool_context: Any = None) -> dict[str, Any]:
        """Transfer money."""
        return {"iban": "x", "invoice": invoice}

    return transfer


async def test_outbox_tools_leave_their_requests_to_the_dispatcher(url: str, observer: TapeClient) -> None:
    agent = agent_of(
        calls(("transfer", {"invoice": "a"}), ("transfer", {"invoice": "b"})), says("done"), tools=[outbox()]
    )
    runner = runner_of(url, agent, DieAfterTool(), identity=RunIdentity(tenant_id="acme", scopes=["bank"]))
    with pytest.raises(Death):
        await begin(runner)
    assert texts(await resume(runner)) == ["done"]
    waiting = observer.list_effects_to_dispatch().effects
    run = run_of(observer)
    assert run.tenant_id == "acme"
    assert sorted((effect.idempotency_key, effect.business_key, effect.request_json) for effect in waiting) == [
        (f"{run.run_id}/decision-0/transfer/{n}", name, f'{{"iban":"x","invoice":"{name}"}}')
        for n, name in enumerate("ab")
    ]
    answers = [answer for event in await events_of(runner) for answer in event.get_function_responses()]
    assert [answer.response["status"] for answer in answers if answer.response] == ["pending", "pending"]


async def test_a_run_without_the_scope_may_not_send(url: str, observer: TapeClient) -> None:
    agent = agent_of(calls(("transfer", {"invoice": "a"})), says("never"), tools=[outbox()])
    with pytest.raises(ScopeDenied, match='"bank"'):
        await begin(runner_of(url, agent, identity=RunIdentity()))
    assert run_of(observer).status == pb.RUN_STATUS_FAILED


async def test_compensations_of_an_agents_tools_are_registered(url: str, observer: TapeClient) -> None:
    def refund(payload: dict[str, Any]) -> None:
        """Take it back."""

    agent = agent_of(PAY, says("done"), tools=[Bank().tool(compensate=refund)])
    await begin(runner_of(url, agent))
    (owed,) = observer.list_obligations(run_id=run_of(observer).run_id).obligations
    assert (owed.kind, json.loads(owed.payload_json)) == ("refund", {"amount": 5})
    assert get_tool_compensator("pay") is not None


# ── cancelling, leaving, leases ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("looks", [True, False])
async def test_a_cancelled_run_stops_before_its_next_step(url: str, observer: TapeClient, looks: bool) -> None:
    @tape.effect
    def cancel() -> str:
        """Cancel the run."""
        observer.end_run(run_id=run_of(observer).run_id, status=pb.RUN_STATUS_CANCELLED)
        return "ok"

    bank = Bank()
    agent = agent_of(calls(("cancel", {})), PAY, says("never"), tools=[cancel, bank.tool()])
    with pytest.raises(RunCancelled):
        await begin(runner_of(url, agent, check_cancellation=looks, cancel_check_interval_s=0))
    assert run_of(observer).status == pb.RUN_STATUS_CANCELLED
    assert asked(agent) == ([0] if looks else [0, 1])
    assert bank.done == []


async def test_a_run_that_was_cancelled_does_not_pass_for_finished(url: str, observer: TapeClient) -> None:
    agent = agent_of(says("done"))
    model = agent.model
    assert isinstance(model, Scripted)
    model.on_ask(lambda _: observer.end_run(run_id=run_of(observer).run_id, status=pb.RUN_STATUS_CANCELLED) and None)
    with pytest.raises(RunCancelled):
        await begin(runner_of(url, agent))
    assert run_of(observer).status == pb.RUN_STATUS_CANCELLED


async def test_no_two_drive_the_same_run_at_once(url: str, observer: TapeClient) -> None:
    second: list[BaseException] = []
    agent = agent_of(calls(("meddle", {})), says("done"))
    runner = runner_of(url, agent, lease_owner=None)

    async def meddle() -> str:
        """Drive the run that is being driven."""
        with pytest.raises(LeaseHeld) as caught:
            # Another run, without the context of this call.
            await asyncio.get_running_loop().create_task(resume(runner), context=contextvars.Context())
        second.append(caught.value)
        return "ok"

    agent.tools = [meddle]
    assert texts(await begin(runner)) == ["done"]
    assert len(second) == 1
    assert run_of(observer).status == pb.RUN_STATUS_TERMINAL


async def wait_until_left(observer: TapeClient, run_id: str) -> None:
    """Wait until the lease of a run is no longer renewed and has expired."""

    def is_left() -> bool:
        gc.collect()
        return all(thread.name != f"tape-lease-{run_id[:8]}" for thread in threading.enumerate())

    await asyncio.to_thread(wait_for, is_left, "the drive to be forgotten")  # the loop has to clear up meanwhile
    wait_for(lambda: observer.list_runs_to_recover().runs, "the lease to run out")


async def test_recovery_drives_a_run_under_its_own_name(url: str, observer: TapeClient) -> None:
    runner = runner_of(url, agent_of(PAY, says("done"), tools=[Bank().tool()]), DieAfterTool(), lease_ttl_ms=300)
    with pytest.raises(Death):
        await begin(runner)
    run = run_of(observer)
    await wait_until_left(observer, run.run_id)
    observer.resume_run(run_id=run.run_id, lease_owner="recovery")
    with pytest.raises(LeaseHeld):
        await resume(runner)
    token = adopted_owner.set("recovery")
    try:
        assert texts(await resume(runner)) == ["done"]
    finally:
        adopted_owner.reset(token)


async def test_a_stream_that_is_closed_early_leaves_a_run_that_can_be_recovered(url: str, observer: TapeClient) -> None:
    bank = Bank()
    runner = runner_of(url, agent_of(PAY, says("done"), tools=[bank.tool()]), lease_ttl_ms=300)
    events = runner.run_async(**SESSION_KEY, new_message=message())
    async for _ in events:
        break
    await events.aclose()
    assert run_of(observer).status == pb.RUN_STATUS_RUNNING
    wait_for(lambda: observer.list_runs_to_recover().runs, "the lease to run out")
    assert texts(await resume(runner)) == ["done"]
    assert len(bank.done) == 1


async def test_a_cancelled_task_lets_go_of_its_run(url: str, observer: TapeClient) -> None:
    entered = asyncio.Event()

    async def wait() -> None:
        """Wait for ever."""
        entered.set()
        await asyncio.Event().wait()

    runner = runner_of(url, agent_of(calls(("wait", {})), says("done"), tools=[wait]), lease_ttl_ms=300)
    task = asyncio.create_task(begin(runner))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    await wait_until_left(observer, run_of(observer).run_id)
    assert effects_of(observer) == [("wait", "pending")]


async def test_an_aborted_invocation_is_a_cancelled_run(url: str, observer: TapeClient) -> None:
    stop = asyncio.Event()

    async def pull() -> str:
        """Pull the brake."""
        stop.set()
        return "ok"

    runner = runner_of(url, agent_of(calls(("pull", {})), says("never"), tools=[pull]))
    await begin(runner, abort_signal=stop)
    assert run_of(observer).status == pb.RUN_STATUS_CANCELLED


# ── all in one ───────────────────────────────────────────────────────────────────────────────────


async def test_a_durable_app_needs_an_agent_and_a_name(url: str, observer: TapeClient, monkeypatch: Any) -> None:
    monkeypatch.setenv("TAPE_URL", url)
    monkeypatch.setenv("TAPE_ACTOR", "ann")
    other = DieAfterTool(times=0)
    agent = agent_of(PAY, says("done"), tools=[Bank().tool()])
    app, runner = durable_app(
        name="app", agent=agent, app_kwargs={"plugins": [other]}, runner_kwargs={"auto_create_session": True}
    )
    assert app.plugins[1] is other
    assert app.resumability_config is not None
    assert texts(await begin(runner)) == ["done"]
    assert other.times == -1
    assert run_of(observer).actor == "ann"
    with pytest.raises(tape.adk.MissingIdentity, match=r"tenant_id \(TAPE_TENANT_ID\), agent_id"):
        durable_app(name="app", agent=agent, require_identity=True)
    with pytest.raises(tape.adk.MissingIdentity):
        durable_app(name="app", agent=agent, identity=RunIdentity(actor="ann"), require_identity=True)


# ── recovery ─────────────────────────────────────────────────────────────────────────────────────


async def test_recovery_finishes_what_a_dead_process_left(url: str, observer: TapeClient) -> None:
    bank = Bank()
    agent = agent_of(PAY, says("done"), tools=[bank.tool()])
    runner = runner_of(url, agent, DieAfterTool(), lease_ttl_ms=300, lease_owner=None)
    with pytest.raises(Death):
        await begin(runner)
    run_id = run_of(observer).run_id
    await wait_until_left(observer, run_id)
    (report,) = await asyncio.to_thread(tape.recover_once, runner=runner, url=url)
    assert (report["run_id"], report["outcome"], report["status"]) == (run_id, "recovered", "TERMINAL")
    assert asked(agent) == [0, 1]
    assert len(bank.done) == 1


async def test_recovery_carries_on_a_run_whose_gate_was_answered(url: str, observer: TapeClient) -> None:
    agent = agent_of(
        calls(("first", {})),
        calls(("second", {})),
        says("done"),
        tools=[tape.gate_tool("first"), tape.gate_tool("second")],
    )
    runner = runner_of(url, agent, lease_owner=None)
    with pytest.raises(RunParked):
        await begin(runner)
    run = run_of(observer)
    assert await asyncio.to_thread(tape.recover_once, runner=runner, url=url) == []
    for gate, outcome in (("first", "parked"), ("second", "recovered")):
        observer.send_signal(run_id=run.run_id, gate_name=gate, resolution_json='{"ok": true}')
        (report,) = await asyncio.to_thread(tape.recover_once, runner=runner, url=url)
        assert report["outcome"] == outcome
    assert run_of(observer).status == pb.RUN_STATUS_TERMINAL
    assert asked(agent) == [0, 1, 2]


async def test_one_invocation_can_be_resumed_by_its_id(url: str, observer: TapeClient) -> None:
    runner = runner_of(url, agent_of(PAY, says("done"), tools=[Bank().tool()]), DieAfterTool(), lease_ttl_ms=300)
    with pytest.raises(Death):
        await begin(runner)
    run = run_of(observer)
    await wait_until_left(observer, run.run_id)
    await asyncio.to_thread(tape.resume, run.invocation_id, runner=runner, url=url)
    assert run_of(observer).status == pb.RUN_STATUS_TERMINAL
