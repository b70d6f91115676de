"""Every tool call of an MCP server is on the journal, and so is how it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.subscriptions import ServerEvent
from mcp.shared.subscriptions import ResourceUpdated, ToolsListChanged

from tape.client import AsyncTapeClient
from tape.mcp import CallRecorder, JournalBus
from tests.calls import until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

URL = "sqlite::memory:"


@pytest.fixture
async def journal() -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(URL) as client:
        await client.head()
        yield client


def server_with(recorder: CallRecorder) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("shop", middleware=[recorder])

    @server.tool()
    async def charge(amount: int, password: str = "", note: Any = None) -> str:
        if amount < 0:
            raise ToolError("negative")
        return f"charged {amount}"

    return server


async def calls(journal: AsyncTapeClient, count: int) -> list[tuple[str, dict[str, Any]]]:
    found = []
    async for entry in journal.follow("/tape/mcp/**"):
        found.append((entry.subject.removeprefix("/tape/mcp/"), json.loads(entry.payload_json)))
        if len(found) == count:
            break
    return found


async def test_a_call_is_recorded_with_its_arguments_before_and_its_outcome_after(journal: AsyncTapeClient) -> None:
    async with Client(server_with(CallRecorder(client=journal, server="shop-1"))) as client:
        await client.list_tools()
        await client.call_tool("charge", {"amount": 5, "password": "hunter2hunter2"})
        await client.call_tool("charge", {"amount": -5})
    called, answered, _, failed = await calls(journal, 4)
    assert called[0] == "called/charge"
    assert called[1]["arguments"]["amount"] == 5
    assert "hunter2" not in json.dumps(called[1]), "arguments are redacted"
    assert called[1]["server"] == "shop-1"
    assert (answered[0], answered[1]["outcome"]) == ("answered/charge", "ok")
    assert answered[1]["call_id"] == called[1]["call_id"]
    assert failed[1]["outcome"] == "error"


async def test_hostile_names_and_arguments_are_recorded_without_failing_the_server(journal: AsyncTapeClient) -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    async with Client(server_with(CallRecorder(client=journal))) as client:
        await client.call_tool("x" * 5_000, {})
        await client.call_tool("../a/b\n", {})
        await client.call_tool("charge", {"amount": 1, "note": "x" * 300_000})
        await client.call_tool("charge", {"amount": 1, "note": deep})
    found = await calls(journal, 8)
    assert found[0][0].startswith("called/sha256")
    assert found[0][1]["tool"] == "x" * 100
    assert (found[4][1]["arguments"], found[4][1]["bytes"] > 300_000) == (None, True)
    assert "deep" in found[6][1]["omitted"]


async def test_a_call_that_cannot_be_recorded_is_not_made() -> None:
    broken = AsyncTapeClient("tape://127.0.0.1:1", append_timeout_s=0.05)
    recorder = CallRecorder(client=broken)
    async with Client(server_with(recorder)) as client:
        with pytest.raises(Exception, match="cannot be recorded"):
            await client.call_tool("charge", {"amount": 1})
    lenient = CallRecorder(client=broken, required=False)
    async with Client(server_with(lenient)) as client:
        result = await client.call_tool("charge", {"amount": 1})
    assert result.content[0].text == "charged 1"  # type: ignore[union-attr]
    assert lenient.unrecorded == 2
    await broken.close()


async def test_a_notification_reaches_the_listeners_of_every_replica(journal: AsyncTapeClient) -> None:
    seen: dict[str, list[ServerEvent]] = {"one": [], "other": []}
    async with JournalBus("shop", client=journal) as one, JournalBus("shop", client=journal) as other:
        one.subscribe(seen["one"].append)
        stop = other.subscribe(seen["other"].append)
        await one.publish(ToolsListChanged())
        await other.publish(ResourceUpdated(uri="tape://runs/1"))
        await journal.append("/tape/mcp/notified/shop", {"changed": ["?"]})
        await until(lambda: all(len(each) == 2 for each in seen.values()))
        await until(lambda: one.malformed == other.malformed == 1)
        stop()
        await one.publish(ToolsListChanged())
        await until(lambda: len(seen["one"]) == 3)
    assert seen["one"][:2] == seen["other"] == [ToolsListChanged(), ResourceUpdated(uri="tape://runs/1")]
    await asyncio.sleep(0)
