"""The journal as an MCP server: tools, resources and prompts, with the clients of the SDK."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client import Client
from mcp_types import PromptReference, ResourceTemplateReference

from mcp import StdioServerParameters
from tape.client import AsyncTapeClient
from tape.mcp import journal_server
from tape.mcp.bounds import MAX_ANSWER, cut_json
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
async def journal() -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient("sqlite::memory:") as client:
        await client.head()
        yield client


@pytest.fixture
async def agent(journal: AsyncTapeClient) -> AsyncIterator[Client]:
    ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def hold() -> None:  # a client of the SDK ends in the task that began it
        async with Client(journal_server(lambda _: journal)) as client:
            ready.set_result(client)
            await done.wait()

    task = asyncio.create_task(hold())
    yield await ready
    done.set()
    await task


async def ask(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return dict(result.structured_content)


async def refusal(client: Client, tool: str, /, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    return str(result.content[0].text)  # type: ignore[union-attr]


async def test_every_tool_has_schemas_and_says_what_it_does(agent: Client) -> None:
    tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
    assert set(tools) == {"append", "tail", "search", "runs", "explain"}
    for name, tool in tools.items():
        assert tool.output_schema is not None
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (name != "append")
        assert "untrusted" in (tool.description or "")
        assert "ctx" not in tool.input_schema["properties"]


async def test_an_appended_entry_is_found_by_tail_and_search(agent: Client) -> None:
    first = await ask(agent, "append", type="order.paid", payload={"total": 7}, run_id="r1")
    await ask(agent, "append", subject="/tape/order/created/42", payload={"note": "Needle"})
    assert first == {"global_seq": 1}
    newest = await ask(agent, "tail")
    assert [entry["global_seq"] for entry in newest["entries"]] == [1, 2]
    assert (newest["next"], newest["older"]) == (2, 0)
    assert [e["payload"] for e in (await ask(agent, "tail", pattern="/tape/order/paid"))["entries"]] == [{"total": 7}]
    assert len((await ask(agent, "tail", after=1))["entries"]) == 1
    assert len((await ask(agent, "tail", run_id="r1", where="payload.total > 5"))["entries"]) == 1
    assert [e["global_seq"] for e in (await ask(agent, "search", text="needle", since="1h"))["entries"]] == [2]
    assert (await ask(agent, "search", text="needle", types=["order.paid"]))["entries"] == []
    assert "untrusted" in newest["notice"]


async def test_the_same_key_appends_once(agent: Client) -> None:
    one = await ask(agent, "append", type="order.paid", idempotency_key="k")
    assert await ask(agent, "append", type="order.paid", idempotency_key="k") == one
    assert "TAPE-" in await refusal(agent, "append", type="order.paid", payload=1, idempotency_key="k")


async def test_tail_waits_for_news(agent: Client, journal: AsyncTapeClient) -> None:
    waiting = asyncio.create_task(ask(agent, "tail", after=0, wait_s=20))
    await asyncio.sleep(0)
    await journal.append("/tape/note/made/1", {})
    assert len((await waiting)["entries"]) == 1
    assert (await ask(agent, "tail", after=1, wait_s=0.05))["entries"] == []


async def test_answers_are_bounded_and_a_cursor_gets_the_rest(agent: Client, journal: AsyncTapeClient) -> None:
    draft = Draft(subject="/tape/note/made/1", payload_json=json.dumps({"text": "y" * 900}))
    await journal.append_many([draft] * 150)
    seen: list[int] = []
    cursor = 0
    while cursor < 150:
        page = await ask(agent, "tail", after=cursor, limit=200)
        assert len(json.dumps(page)) < 1.3 * MAX_ANSWER
        seen += [entry["global_seq"] for entry in page["entries"]]
        cursor = page["next"]
    assert seen == list(range(1, 151))
    backwards: list[int] = []
    older = 0
    while not backwards or older:
        page = await ask(agent, "tail", last=100, limit=100, before=older)
        backwards = [entry["global_seq"] for entry in page["entries"]] + backwards
        older = page["older"]
    assert backwards == seen


async def test_a_filtered_tail_finds_an_entry_far_back(agent: Client, journal: AsyncTapeClient) -> None:
    await journal.append("/tape/rare/seen/1", {})
    await journal.append_many([Draft(subject="/tape/note/made/1", payload_json="{}")] * 3_000)
    page = await ask(agent, "tail", pattern="/tape/rare/**", last=5)
    assert ([entry["global_seq"] for entry in page["entries"]], page["older"]) == ([1], 0)


async def test_reserved_kinds_and_contradicting_arguments_are_refused(agent: Client) -> None:
    assert "reserved" in await refusal(agent, "append", subject="/tape/run/started/1")
    assert "either" in await refusal(agent, "append", type="a.b", subject="/tape/a/b")
    assert "either" in await refusal(agent, "explain")
    assert "TAPE-" in await refusal(agent, "tail", where="payload.", after=0)
    assert "no such run" in await refusal(agent, "runs", run_id="nowhere")
    await refusal(agent, "tail", limit=201)
    await refusal(agent, "tail", wait_s=26)
    await refusal(agent, "append", type="x" * 501)


async def test_a_waiting_run_is_explained_with_the_entries_that_prove_it(
    agent: Client, journal: AsyncTapeClient
) -> None:
    begun = await journal.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="1", lease_owner="w")
    owned = journal.with_lease_owner("w")
    await owned.begin_effect(run_id=begun.run_id, decision_index=0, tool_name="charge", request_json="{}")
    await owned.await_signal(run_id=begun.run_id, gate_name="approve")
    said = " ".join((await ask(agent, "explain", run_id=begun.run_id))["sentences"])
    assert "WAITING" in said
    assert "'approve'" in said
    assert "has no outcome yet" in said
    assert "[1]" in said or "[2]" in said
    shown = await ask(agent, "runs", run_id=begun.run_id)
    assert shown["runs"][0]["status"] == "WAITING"
    assert shown["gates"][0]["gate_name"] == "approve"
    assert [each["run_id"] for each in (await ask(agent, "runs", app="shop", status="WAITING"))["runs"]] == [
        begun.run_id
    ]
    completed = await agent.complete(
        ResourceTemplateReference(uri="tape://runs/{run_id}"), {"name": "run_id", "value": begun.run_id[:5]}
    )
    assert completed.completion.values == [begun.run_id]


async def test_a_reaction_is_explained(agent: Client, journal: AsyncTapeClient) -> None:
    await journal.register_reaction(
        reaction_id="r", subject_pattern="/tape/order/created/**", handler_kind=pb.HANDLER_KIND_TASK
    )
    seq = await journal.append("/tape/note/made/1", {})
    said = (await ask(agent, "explain", reaction_id="r", global_seq=seq))["sentences"]
    assert f"[{seq}]" in said[0]


async def test_resources_and_prompts(agent: Client, journal: AsyncTapeClient) -> None:
    await journal.append("/tape/note/made/1", {"text": "hello"}, run_id="r1")
    entry = json.loads((await agent.read_resource("tape://entries/1")).contents[0].text)  # type: ignore[union-attr]
    assert entry["payload"] == {"text": "hello"}
    page = json.loads(
        (await agent.read_resource("tape://runs/r1/journal?after=0")).contents[0].text  # type: ignore[union-attr]
    )
    assert page["next"] == 1
    for uri in ("tape://entries/2", "tape://entries/x", "tape://runs/nowhere"):
        with pytest.raises(Exception, match=r"no entry|not a global_seq|no such run"):
            await agent.read_resource(uri)
    assert {each.name for each in (await agent.list_prompts()).prompts} == {"what_happened", "why_not_fired"}
    prompt = await agent.get_prompt("what_happened", {"run_id": "r1"})
    assert "'r1'" in prompt.messages[0].content.text  # type: ignore[union-attr]
    assert (
        await agent.complete(PromptReference(name="what_happened"), {"name": "x", "value": ""})
    ).completion.values == []


def test_long_and_deep_payloads_are_cut() -> None:
    deep = "[" * 90 + "]" * 90
    for text in (json.dumps({"a": "x" * 5_000}), json.dumps(["y"] * 10_000), deep, "{", json.dumps({"k" * 9_000: 1})):
        value, is_cut = cut_json(text)
        assert is_cut
        assert len(json.dumps(value)) < 5_000


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tape_mcp_serves_desktop_clients_over_stdio(tmp_path: Any, mode: str) -> None:
    url = f"sqlite:{tmp_path / 'agent.db'}"
    arguments = ["-m", "tape", "mcp", "--url", url]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ), cwd=str(tmp_path))
    async with Client(server, mode=mode) as client:
        assert await ask(client, "append", type="note.made", payload={"text": "hi"}) == {"global_seq": 1}
        assert (await ask(client, "tail"))["entries"][0]["payload"] == {"text": "hi"}
