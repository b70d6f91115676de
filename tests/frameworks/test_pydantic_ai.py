"""Agents of Pydantic AI: what is recorded, where they park, and what a resumed one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, BinaryContent, ModelRetry
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset
from pydantic_ai.usage import RequestUsage

import tape
from tape.base.ids import new_id
from tape.proto import tape_pb2 as pb
from tape.pydantic_ai import TapeAgent


class Script:
    """A model that gives its answers in turn, by the number of answers in the conversation, and counts the asks."""

    def __init__(self, *answers: list[Any], tokens: int = 0) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.seen: list[ModelMessage] = []
        self.tokens = tokens

    def __call__(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        self.asked.append(number)
        self.seen = messages
        usage = RequestUsage(input_tokens=self.tokens, output_tokens=1 if self.tokens else 0)
        return ModelResponse(self.answers[number], usage=usage, model_name="script-1")


def agent_of(script: Script, *tools: Any, url: str, name: str = "agent", **more: Any) -> TapeAgent[Any, Any]:
    settings = {key: more.pop(key) for key in ("budget", "lease_owner") if key in more}
    agent = Agent(FunctionModel(script, model_name="script-1"), name=name, tools=tools, **more)
    return TapeAgent(agent, app_name="pydantic", url=url, **settings)


def status_of(client: tape.TapeClient, run_id: str) -> int:
    [run] = [run for run in client.list_runs(app_name="pydantic").runs if run.invocation_id == run_id]
    return run.status


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments)


async def test_a_tool_that_needs_approval_parks_the_run_and_does_nothing_until_it_is_given(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    received: list[str] = []

    def pay(invoice: str) -> str:
        received.append(invoice)
        return "paid"

    script = Script([call("pay", invoice="i-1")], [TextPart("done")])
    agent = agent_of(script, url=server_url)
    agent.wrapped.tool_plain(requires_approval=True)(pay)  # type: ignore[attr-defined]
    run_id = new_id()
    for _ in range(2):
        with pytest.raises(tape.RunParked, match="approve:pay:0:0"):
            await agent.run("pay", run_id=run_id)
    assert received == []
    assert script.asked == [0]
    assert status_of(tape_client, run_id) == pb.RUN_STATUS_WAITING
    [run] = [run for run in tape_client.list_runs(app_name="pydantic").runs if run.invocation_id == run_id]
    tape.send_signal("approve:pay:0:0", run_id=run.run_id, resolution={"approved": True}, url=server_url)
    assert (await agent.run("pay", run_id=run_id)).output == "done"
    assert received == ["i-1"]
    assert script.asked == [0, 1]
    assert status_of(tape_client, run_id) == pb.RUN_STATUS_TERMINAL


async def test_a_denied_call_is_not_made_and_the_model_learns_why(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    received: list[str] = []
    script = Script([call("pay", invoice="i-1")], [TextPart("not paid")])
    agent = agent_of(script, url=server_url)

    @agent.wrapped.tool_plain(requires_approval=True)  # type: ignore[attr-defined]
    def pay(invoice: str) -> str:
        received.append(invoice)
        return "paid"

    run_id = new_id()
    with pytest.raises(tape.RunParked):
        await agent.run("pay", run_id=run_id)
    [run] = [run for run in tape_client.list_runs(app_name="pydantic").runs if run.invocation_id == run_id]
    tape.send_signal(
        "approve:pay:0:0", run_id=run.run_id, resolution={"approved": False, "message": "too much"}, url=server_url
    )
    assert (await agent.run("pay", run_id=run_id)).output == "not paid"
    assert received == []
    assert "too much" in str(script.seen)


async def test_the_answer_of_a_gate_is_the_result_of_an_external_tool(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    definition = ToolDefinition(name="ask_bank", parameters_json_schema={"type": "object", "properties": {}})
    script = Script([call("ask_bank")], [TextPart("known")])
    agent = agent_of(script, url=server_url, toolsets=[ExternalToolset([definition])])
    run_id = new_id()
    with pytest.raises(tape.RunParked, match="call:ask_bank:0:0"):
        await agent.run("balance?", run_id=run_id)
    [run] = [run for run in tape_client.list_runs(app_name="pydantic").runs if run.invocation_id == run_id]
    tape.send_signal("call:ask_bank:0:0", run_id=run.run_id, resolution={"balance": 7}, url=server_url)
    assert (await agent.run("balance?", run_id=run_id)).output == "known"
    [answer] = [part for message in script.seen for part in message.parts if isinstance(part, ToolReturnPart)]
    assert answer.content == {"balance": 7}


async def test_a_gate_in_a_tool_parks_the_run_and_other_calls_are_made_once(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    received: list[str] = []

    def ask() -> str:
        return str(tape.gate("ok")["value"])

    def pay(invoice: str) -> str:
        received.append(invoice)
        return "paid"

    script = Script([call("pay", invoice="i-1"), call("ask")], [call("pay", invoice="i-2")], [TextPart("done")])
    agent = agent_of(script, ask, pay, url=server_url)
    run_id = new_id()
    with pytest.raises(tape.RunParked):
        await agent.run("go", run_id=run_id)
    assert "i-2" not in received
    before = len(received)
    assert script.asked == [0]
    [run] = [run for run in tape_client.list_runs(app_name="pydantic").runs if run.invocation_id == run_id]
    tape.send_signal("ok", run_id=run.run_id, resolution="yes", url=server_url)
    assert (await agent.run("go", run_id=run_id)).output == "done"
    assert sorted(received) == ["i-1", "i-2"], before
    assert script.asked == [0, 1, 2]


async def test_a_resumed_agent_gets_results_as_they_were(server_url: str) -> None:
    attempts: list[str] = []

    def read() -> Any:
        return [BinaryContent(b"\x00\xff", media_type="image/png"), {"n": 1}]

    def explain() -> ToolReturn:
        return ToolReturn("short", content="long", metadata={"by": "tool"})

    def insist(text: str) -> str:
        attempts.append(text)
        if text == "bad":
            raise ModelRetry("try good")
        return "fine"

    script = Script(
        [call("read"), call("explain")], [call("insist", text="bad")], [call("insist", text="good")], [TextPart("done")]
    )
    first = Script(*script.answers[:3])
    run_id = new_id()
    with pytest.raises(IndexError):
        await agent_of(first, read, explain, insist, url=server_url).run("go", run_id=run_id)
    conversation = first.seen
    attempts.clear()
    resumed = agent_of(script, read, explain, insist, url=server_url)
    assert (await resumed.run("go", run_id=run_id)).output == "done"
    assert attempts == []
    assert script.asked == [3]
    assert [_plain(message) for message in script.seen] == [_plain(message) for message in conversation]
    assert "try good" in str(script.seen)


def _plain(message: ModelMessage) -> list[Any]:
    return [
        (type(part).__name__, getattr(part, "content", None), getattr(part, "args", None)) for part in message.parts
    ]


async def test_tokens_are_charged_and_an_exceeded_budget_stops_the_run(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    received: list[str] = []

    def pay(invoice: str) -> str:
        received.append(invoice)
        return "paid"

    script = Script([call("pay", invoice="i-1")], [call("pay", invoice="i-2")], [TextPart("done")], tokens=99)
    budget = tape.Budget(token_cap=150, usd_per_million_tokens=10_000)
    agent = agent_of(script, pay, url=server_url, budget=budget)
    run_id = new_id()
    with pytest.raises(tape.BudgetExceeded, match="token"):
        await agent.run("pay", run_id=run_id)
    assert received == ["i-1", "i-2"]
    assert script.asked == [0, 1]
    assert status_of(tape_client, run_id) == pb.RUN_STATUS_FAILED
    [run] = [run for run in tape_client.list_runs(app_name="pydantic").runs if run.invocation_id == run_id]
    state = tape_client.charge_budget(run_id=run.run_id)
    assert state.tokens_spent == 200
    assert state.usd_spent == pytest.approx(2.0)


async def test_streamed_events_come_once_the_response_is_on_record(server_url: str) -> None:
    asked: list[int] = []

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        asked.append(len(messages))
        if len(messages) == 1:
            yield {0: DeltaToolCall("note", '{"text": "x"}')}
            return
        yield "all "
        yield "done"

    agent = TapeAgent(Agent(FunctionModel(stream_function=stream), name="s"), app_name="pydantic", url=server_url)
    agent.wrapped.tool_plain(note := _noted())  # type: ignore[attr-defined]
    run_id = new_id()
    texts: list[str] = []
    async with agent.run_stream_events("go", run_id=run_id) as events:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                texts.append(event.part.content)
            elif isinstance(event, PartDeltaEvent):
                texts.append(str(getattr(event.delta, "content_delta", "")))
    assert "".join(texts) == "all done"
    assert asked == [1, 3]
    assert note.texts == ["x"]  # type: ignore[attr-defined]


def _noted() -> Any:
    def note(text: str) -> str:
        note.texts.append(text)  # type: ignore[attr-defined]
        return "noted"

    note.texts = []  # type: ignore[attr-defined]
    return note


async def test_agents_side_by_side_and_within_a_tool_have_records_of_their_own(server_url: str) -> None:
    received: list[str] = []

    def pay(invoice: str) -> str:
        received.append(f"{invoice} {tape.idempotency_key(None)}")
        return "paid"

    inner_script = Script([call("pay", invoice="inner")], [TextPart("inner done")])
    inner = agent_of(inner_script, pay, url=server_url, name="inner")

    async def delegate() -> str:
        return str((await inner.run("go")).output)

    outer_script = Script([call("delegate"), call("pay", invoice="outer")], [TextPart("outer done")])
    outer = agent_of(outer_script, delegate, pay, url=server_url, name="outer")
    invocation = new_id()

    async def work() -> list[str]:
        async with tape.durable_run("pydantic", invocation_id=invocation, url=server_url):
            results = await asyncio.gather(outer.run("a"), outer.run("b"))
            results.append(await outer.run("c"))
            if len(received) == 6 and not failed:
                failed.append(True)
                raise tape.AckLost("the process is gone")
            return [result.output for result in results]

    failed: list[bool] = []
    with pytest.raises(tape.AckLost):
        await work()
    keys = sorted(received)
    assert len(set(keys)) == 6
    assert await work() == ["outer done"] * 3
    assert sorted(received) == keys, "nothing is paid again"
    assert len(outer_script.asked) == 6
    assert len(inner_script.asked) == 6


async def test_spans_follow_the_conventions_for_generative_ai(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    script = Script([call("note", text="x")], [TextPart("done")], tokens=12)
    await agent_of(script, _noted(), url=server_url).run("go")
    chat, tool, last = exporter.get_finished_spans()
    assert [span.name for span in (chat, tool, last)] == ["chat script-1", "execute_tool note", "chat script-1"]
    assert chat.attributes is not None
    assert tool.attributes is not None
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "function",
        "gen_ai.request.model": "script-1",
        "gen_ai.response.model": "script-1",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.agent.name": "agent",
    }
    assert expected.items() <= dict(chat.attributes).items()
    assert tool.attributes["gen_ai.tool.name"] == "note"
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert str(tool.attributes["tape.idempotency_key"]).endswith("/decision-0/note/0")


async def test_a_tool_that_fails_is_on_record_as_failed_and_fails_the_run(
    server_url: str, tape_client: tape.TapeClient
) -> None:
    def pay() -> str:
        raise ConnectionError("the bank is down")

    run_id = new_id()
    agent = agent_of(Script([call("pay")]), pay, url=server_url)
    with pytest.raises(tape.EffectFailed, match="the bank is down"):
        await agent.run("go", run_id=run_id)
    assert status_of(tape_client, run_id) == pb.RUN_STATUS_FAILED


async def test_the_test_model_of_the_library_works_as_it_is(server_url: str) -> None:
    agent = TapeAgent(Agent(TestModel(), name="t", tools=[_noted()]), app_name="pydantic", url=server_url)
    assert '"note":"noted"' in (await agent.run("go")).output


async def test_an_agent_without_a_name_and_a_prompt_keeps_the_run_of_its_caller(server_url: str) -> None:
    script = Script([TextPart("hi")])
    agent = TapeAgent(Agent(FunctionModel(script)), url=server_url)
    async with tape.durable_run("pydantic", url=server_url) as run:
        await agent.run("hello")
        assert run.decide(lambda: 3) == 3
    assert any(isinstance(part, UserPromptPart) for message in script.seen for part in message.parts)


async def test_a_resumed_agent_that_shows_its_model_something_else_warns_or_stops(
    server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = new_id()
    with pytest.raises(IndexError):
        await agent_of(Script([call("note", text="x")]), _noted(), url=server_url).run("pay 1", run_id=run_id)
    strict = Agent(FunctionModel(Script()), name="agent", tools=[_noted()])
    stopping = TapeAgent(strict, app_name="pydantic", url=server_url, on_change="stop", lease_owner="one")
    with pytest.raises(tape.RunChanged, match="pay 2"):
        await stopping.run("pay 2", run_id=run_id)
    agent = agent_of(Script([], [TextPart("done")]), _noted(), url=server_url, lease_owner="one")
    assert (await agent.run("pay 2", run_id=run_id)).output == "done"
    assert "has changed" in caplog.text
    caplog.clear()
