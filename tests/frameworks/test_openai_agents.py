"""Agents of the OpenAI Agents SDK: what is recorded, where they park, and what a resumed one does."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, Runner, ToolOutputImage, function_tool, handoff
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.usage import Usage

import tape
from tape.base.ids import new_id
from tape.openai_agents import TapeRunner, TapeSession, durable_agent
from tape.proto import tape_pb2 as pb

APP = "openai"


class Bank:
    """The other side: it counts what it gets."""

    def __init__(self) -> None:
        self.received: list[str] = []

    def tool(self, **settings: Any) -> Any:
        def pay(invoice: str) -> str:
            self.received.append(f"{invoice} {tape.idempotency_key(None)}")
            return f"paid {invoice}"

        return function_tool(pay, **settings)

    @property
    def invoices(self) -> list[str]:
        return [line.partition(" ")[0] for line in self.received]


def pays(invoice: str, call_id: str = "c", tool: str = "pay") -> Any:
    return function_call(tool, {"invoice": invoice}, call_id=call_id)


def model(*steps: Any, tokens: int = 0) -> ScriptedModel:
    usage = Usage(requests=1, input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1) if tokens else None
    return ScriptedModel([step if isinstance(step, list) else [step] for step in steps], default_usage=usage)


def run_of(client: tape.TapeClient, invocation: str) -> pb.RunState:
    [run] = [run for run in client.list_runs(app_name=APP).runs if run.invocation_id == invocation]
    return run


async def test_a_tool_that_needs_approval_parks_the_run_and_does_nothing_until_it_is_given(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    bank, run_id, runner = Bank(), new_id(), TapeRunner(APP, url=server_url)
    for script in (model(pays("i-1")), model()):
        agent = Agent("a", model=script, tools=[bank.tool(needs_approval=True)])
        with pytest.raises(tape.RunParked, match="approve:pay:0:0"):
            await runner.run(agent, "go", run_id=run_id)
    assert bank.received == []
    assert run_of(tape_client, run_id).status == pb.RUN_STATUS_WAITING
    tape.send_signal(
        "approve:pay:0:0", run_id=run_of(tape_client, run_id).run_id, resolution={"approved": True}, url=server_url
    )
    last = model(assistant_message("done"))
    agent = Agent("a", model=last, tools=[bank.tool(needs_approval=True)])
    assert (await runner.run(agent, "go", run_id=run_id)).final_output == "done"
    assert bank.invoices == ["i-1"]
    assert len(last.calls) == 1
    assert run_of(tape_client, run_id).status == pb.RUN_STATUS_TERMINAL


async def test_a_rejected_call_is_not_made_and_the_model_learns_why(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    bank, run_id, runner = Bank(), new_id(), TapeRunner(APP, url=server_url)
    script = model(pays("i-1"), assistant_message("not paid"))
    agent = Agent("a", model=script, tools=[bank.tool(needs_approval=True)])
    with pytest.raises(tape.RunParked):
        await runner.run(agent, "go", run_id=run_id)
    answer = {"approved": False, "message": "too much"}
    tape.send_signal("approve:pay:0:0", run_id=run_of(tape_client, run_id).run_id, resolution=answer, url=server_url)
    assert (await runner.run(agent, "go", run_id=run_id)).final_output == "not paid"
    assert bank.received == []
    assert "too much" in str(script.calls[-1].input)


async def test_a_gate_in_a_tool_is_not_swallowed_by_the_handler_of_tool_errors(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    bank, run_id, runner = Bank(), new_id(), TapeRunner(APP, url=server_url)

    @function_tool
    def ask() -> str:
        return str(tape.gate("ok")["value"])

    script = model(function_call("ask", {}, call_id="q"), pays("i-1"), assistant_message("done"))
    agent = Agent("a", model=script, tools=[ask, bank.tool()])
    with pytest.raises(tape.RunParked):
        await runner.run(agent, "go", run_id=run_id)
    assert bank.received == []
    assert len(script.calls) == 1
    run = run_of(tape_client, run_id)
    assert run.status == pb.RUN_STATUS_WAITING
    tape.send_signal("ok", run_id=run.run_id, resolution="yes", url=server_url)
    assert (await runner.run(agent, "go", run_id=run_id)).final_output == "done"
    assert bank.invoices == ["i-1"]
    assert len(script.calls) == 3


async def test_a_tool_error_is_a_result_that_is_on_record(server_url: str) -> None:
    calls: list[int] = []

    @function_tool
    def look() -> str:
        calls.append(1)
        raise ValueError("nothing there")

    @function_tool
    def picture() -> Any:
        return ToolOutputImage(image_url="data:image/png;base64,AA==")

    run_id, runner = new_id(), TapeRunner(APP, url=server_url)
    steps = [[function_call("look", {}, call_id="1"), function_call("picture", {}, call_id="2")]]
    with pytest.raises(Exception, match="script"):
        await runner.run(Agent("a", model=model(*steps), tools=[look, picture]), "go", run_id=run_id)
    script = model(assistant_message("done"))
    resumed = Agent("a", model=script, tools=[look, picture])
    assert (await runner.run(resumed, "go", run_id=run_id)).final_output == "done"
    assert calls == [1]
    [shown] = script.calls
    assert "An error occurred while running the tool" in str(shown.input)
    assert "data:image/png" in str(shown.input)


async def test_agents_that_are_handed_to_or_called_as_tools_are_recorded_too(server_url: str) -> None:
    bank, run_id, runner = Bank(), new_id(), TapeRunner(APP, url=server_url)

    def clerk(inner: Any, payer: Any, first: Any) -> Agent[Any]:
        helper = Agent("helper", model=inner, tools=[bank.tool()])
        last = Agent("payer", model=payer, tools=[bank.tool()])
        tools = [helper.as_tool("ask_helper", "Asks the helper.")]
        return Agent("clerk", model=first, tools=tools, handoffs=[handoff(last)])

    asks = function_call("ask_helper", {"input": "x"}, call_id="h")
    moves = function_call("transfer_to_payer", {}, call_id="t")
    agent = clerk(model(pays("inner"), assistant_message("helped")), model(pays("outer")), model(asks, moves))
    with pytest.raises(Exception, match="script"):
        await runner.run(agent, "go", run_id=run_id)
    assert sorted(bank.invoices) == ["inner", "outer"]
    payer = model(assistant_message("done"))
    assert (await runner.run(clerk(model(), payer, model()), "go", run_id=run_id)).final_output == "done"
    assert sorted(bank.invoices) == ["inner", "outer"]
    assert len(payer.calls) == 1
    assert "helped" in str(payer.calls[0].input)


async def test_a_session_has_the_items_of_a_resumed_run_once(server_url: str) -> None:
    bank, runner, name = Bank(), TapeRunner(APP, url=server_url), new_id()

    def session() -> TapeSession:
        return TapeSession(name, app_name=APP, url=server_url)

    agent = Agent("a", model=model(assistant_message("hello")))
    await runner.run(agent, "hi", session=session())
    run_id = new_id()
    first = Agent("a", model=model(pays("i-1")), tools=[bank.tool()])
    with pytest.raises(Exception, match="script"):
        await runner.run(first, "pay", run_id=run_id, session=session())
    script = model(assistant_message("done"))
    await runner.run(Agent("a", model=script, tools=[bank.tool()]), "pay", run_id=run_id, session=session())
    items = await session().get_items()
    kinds = [item.get("type") or item.get("role") for item in items]
    assert kinds == ["user", "message", "user", "function_call", "function_call_output", "message"]
    assert str(script.calls[0].input).count("'pay'") == 2, "the question, and the name of the tool"
    assert await session().get_items(limit=1) == items[-1:]
    assert await session().pop_item() == items[-1]
    assert await session().get_items() == items[:-1]
    await session().clear_session()
    assert await session().get_items() == []
    assert await session().pop_item() is None


async def test_tokens_are_charged_and_an_exceeded_budget_stops_the_run(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    bank, run_id = Bank(), new_id()
    runner = TapeRunner(APP, url=server_url, budget=tape.Budget(token_cap=150))
    script = model(pays("i-1"), pays("i-2", "d"), assistant_message("done"), tokens=99)
    with pytest.raises(tape.BudgetExceeded, match="token"):
        await runner.run(Agent("a", model=script, tools=[bank.tool()]), "go", run_id=run_id)
    assert bank.invoices == ["i-1", "i-2"]
    assert len(script.calls) == 2
    run = run_of(tape_client, run_id)
    assert run.status == pb.RUN_STATUS_FAILED
    assert tape_client.charge_budget(run_id=run.run_id).tokens_spent == 200


async def test_streamed_events_come_once_the_response_is_on_record(server_url: str) -> None:
    bank, run_id, runner = Bank(), new_id(), TapeRunner(APP, url=server_url)

    async def drive(script: ScriptedModel) -> Any:
        agent = Agent("a", model=script, tools=[bank.tool()])
        async with runner.run_streamed(agent, "go", run_id=run_id) as result:
            async for _ in result.stream_events():
                pass
        return result.final_output

    with pytest.raises(Exception, match="script"):
        await drive(model(pays("i-1")))
    script = model(assistant_message("done"))
    assert await drive(script) == "done"
    assert bank.invoices == ["i-1"]
    assert len(script.calls) == 1


async def test_the_runner_of_the_sdk_works_within_a_run_and_outside_of_one(server_url: str) -> None:
    bank = Bank()
    invocation = new_id()

    async def drive(script: ScriptedModel) -> Any:
        async with tape.durable_run(APP, invocation_id=invocation, url=server_url):
            agent = Agent("a", model=script, tools=[bank.tool()])
            return (await TapeRunner(url=server_url).run(agent, "go")).final_output

    with pytest.raises(Exception, match="script"):
        await drive(model(pays("i-1")))
    assert await drive(model(assistant_message("done"))) == "done"
    assert bank.invoices == ["i-1"]
    outside = durable_agent(Agent("a", model=model(assistant_message("hi"))))
    assert (await Runner.run(outside, "go")).final_output == "hi"


async def test_a_failed_tool_without_a_handler_fails_the_run_with_the_error_of_tape(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    @function_tool(failure_error_function=None)
    def pay(invoice: str) -> str:
        raise ConnectionError("the bank is down")

    run_id = new_id()
    with pytest.raises(tape.EffectFailed, match="the bank is down"):
        await TapeRunner(APP, url=server_url).run(
            Agent("a", model=model(pays("i-1")), tools=[pay]), "go", run_id=run_id
        )
    assert run_of(tape_client, run_id).status == pb.RUN_STATUS_FAILED
