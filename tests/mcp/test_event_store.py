"""Sessions of an MCP server that resume from the journal, each its own messages only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCNotification, JSONRPCResponse

from tape.client import AsyncTapeClient
from tape.errors import InvalidConfig, InvalidInput
from tape.mcp import JournalEventStore, streamable_http_app
from tape.mcp.event_ids import EventId, stream_id_of, stream_token
from tests.calls import until
from tests.mcp.support import Event, WireClient, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

URL = "sqlite::memory:"


@pytest.fixture
async def journal() -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(URL) as client:
        await client.head()
        yield client


def counting_server() -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("counting")

    @server.tool()
    async def count(to: int, ctx: Context[Any, Any]) -> str:
        for number in range(1, to + 1):
            await ctx.report_progress(number, to)
            await asyncio.sleep(0)
        return f"counted to {to} for {ctx.request_id}"

    @server.tool()
    async def repeat(text: str, times: int) -> str:
        return text * times

    @server.tool()
    async def nested(depth: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(depth):
            value = {"in": value}
        return value

    return server


def progress(events: list[Event]) -> list[int]:
    return [
        int(event.message["params"]["progress"])
        for event in events
        if event.message is not None and event.message.get("method") == "notifications/progress"
    ]


def answers(events: list[Event]) -> list[Any]:
    return [event.message for event in events if event.message is not None and "id" in event.message]


async def test_a_call_cut_off_in_the_middle_is_resumed_with_nothing_twice_and_nothing_missing(
    journal: AsyncTapeClient,
) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    async with serving(app) as url, WireClient(url) as client:
        await client.initialize()
        before: list[Event] = []
        async with client.calling("count", {"to": 100}) as stream:
            async for event in stream:
                before.append(event)
                if len(progress(before)) == 37:
                    break
        after = await client.resume(before[-1].id)
        assert progress(before) + progress(after) == list(range(1, 101))
        (answer,) = answers(after)
        assert answer["result"]["content"][0]["text"] == "counted to 100 for 1"
        again = await client.resume(before[0].id, cut_after=7)
        assert progress(again) == list(range(1, 101)), "from the priming event on, everything is sent again"


async def test_a_client_that_is_cut_off_again_and_again_gets_everything_once(journal: AsyncTapeClient) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    async with serving(app) as url, WireClient(url) as client:
        await client.initialize()
        async with client.calling("count", {"to": 100}) as stream:
            first = await anext(stream)
        found = await client.resume(first.id, cut_after=3)
        assert progress(found) == list(range(1, 101))
        assert len(answers(found)) == 1


async def test_two_clients_with_equal_request_ids_get_their_own_messages_only(journal: AsyncTapeClient) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    async with serving(app) as url, WireClient(url) as one, WireClient(url) as other:
        await one.initialize()
        await other.initialize()
        first = await one.call("repeat", {"text": "mine", "times": 1})
        second = await other.call("repeat", {"text": "yours", "times": 1})
        assert "mine" in json.dumps(answers(await one.resume(first[0].id)))
        assert "yours" in json.dumps(answers(await other.resume(second[0].id)))
        headers = {**other.headers, "last-event-id": first[0].id}
        stolen = await other._http.get(other.url, headers=headers)
        assert "mine" not in stolen.text
        assert stolen.text.strip() in ("", ": ping")


async def test_what_was_sent_is_on_the_journal_as_it_was_sent(journal: AsyncTapeClient) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    async with serving(app) as url, WireClient(url) as client:
        await client.initialize()
        sent = await client.call("repeat", {"text": secret, "times": 1})
        assert answers(await client.resume(sent[0].id)) == answers(sent)
        subjects = []
        async for batch in journal.follow_batches("/tape/mcp/**"):
            subjects += [entry.subject.split("/")[3] for entry in batch.entries]
            if batch.position >= (await journal.head()).global_seq:
                break
        assert subjects[:2] == ["primed", "message"]


@pytest.mark.parametrize("times", [40_000, 400_000])
async def test_a_message_of_more_than_a_payload_is_stored_in_parts(journal: AsyncTapeClient, times: int) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    async with serving(app) as url, WireClient(url) as client:
        await client.initialize()
        sent = await client.call("repeat", {"text": 'ä"\n', "times": times})
        assert answers(await client.resume(sent[0].id)) == answers(sent)


async def test_a_message_over_the_limit_is_sent_and_a_replay_says_that_it_was_not_stored(
    journal: AsyncTapeClient,
) -> None:
    store = JournalEventStore(URL, max_message_bytes=10_000)
    async with serving(streamable_http_app(counting_server(), store)) as url, WireClient(url) as client:
        await client.initialize()
        sent = await client.call("repeat", {"text": "x", "times": 20_000})
        assert "x" * 20_000 in json.dumps(answers(sent))
        (replayed,) = answers(await client.resume(sent[0].id))
        assert "was not stored" in replayed["error"]["message"]
        assert store.counts["oversized"] == 1


async def test_a_deeply_nested_answer_is_stored_and_replayed(journal: AsyncTapeClient) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    async with serving(app) as url, WireClient(url) as client:
        await client.initialize()
        sent = await client.call("nested", {"depth": 120})
        assert answers(await client.resume(sent[0].id)) == answers(sent)


async def test_messages_queued_without_waiting_are_replayed_in_order(journal: AsyncTapeClient) -> None:
    store = JournalEventStore(URL, durable=False)
    async with serving(streamable_http_app(counting_server(), store)) as url, WireClient(url) as client:
        await client.initialize()
        sent = await client.call("count", {"to": 50})
        assert progress(await client.resume(sent[0].id)) == list(range(1, 51))
        assert store.counts["unstored"] == 0


async def test_the_end_of_a_session_is_on_the_journal(journal: AsyncTapeClient) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    async with serving(app) as url, WireClient(url) as client:
        await client.initialize()
        await client._http.delete(client.url, headers=client.headers)
        ended = await anext(aiter(journal.follow("/tape/mcp/ended/**")))
        assert json.loads(ended.payload_json)["messages"] >= 1


async def test_the_clients_of_the_sdk_work_in_both_eras(journal: AsyncTapeClient) -> None:
    app = streamable_http_app(counting_server(), JournalEventStore(URL))
    async with serving(app) as url:
        for mode in ("legacy", "auto"):
            seen: list[float] = []

            async def note(done: float, total: float | None, message: str | None, seen: list[float] = seen) -> None:
                seen.append(done)

            async with Client(f"{url}/mcp", mode=mode) as client:
                result = await client.call_tool("count", {"to": 20}, progress_callback=note)
                assert result.content[0].text.startswith("counted to 20")
            await until(lambda seen=seen: len(seen) == 20)
            assert seen == list(range(1, 21)), mode


async def test_the_manager_of_the_sdk_is_refused(journal: AsyncTapeClient) -> None:
    store = JournalEventStore(URL)
    manager = StreamableHTTPSessionManager(counting_server()._lowlevel_server, event_store=store)
    with pytest.raises(InvalidConfig, match="SessionManager"):
        await manager.event_store.store_event("1", None)  # type: ignore[union-attr]


async def test_ids_of_other_sessions_and_hostile_texts_are_unknown(journal: AsyncTapeClient) -> None:
    parent = JournalEventStore(client=journal)
    one, other = parent.for_session(), parent.for_session()
    primed = await one.store_event("1", None)
    await one.store_event("1", JSONRPCNotification(jsonrpc="2.0", method="notifications/x"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for event_id in (primed, "", "1", "x" * 10_000, f"{other.scope}.99.1", f"{other.scope}.0.~%%", "\0"):
        assert await other.replay_events_after(event_id, send) is None
    assert sent == []
    assert await one.replay_events_after(primed, send) == "1"
    assert [type(each.message) for each in sent] == [JSONRPCNotification]


async def test_a_request_id_of_any_text_keeps_its_own_stream(journal: AsyncTapeClient) -> None:
    store = JournalEventStore(client=journal).for_session()
    names = ["1", "~1", "a/b", "a b", "", "é", "_GET_stream", "..", "%2F"]
    primed = {name: await store.store_event(name, None) for name in names}
    for name in names:
        await store.store_event(name, JSONRPCResponse(jsonrpc="2.0", id=name, result={"of": name}))
    for name in names:
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        assert await store.replay_events_after(primed[name], send) == name
        assert [each.message.result for each in sent] == [{"of": name}]
    with pytest.raises(InvalidInput, match="128"):
        await store.store_event("x" * 129, None)


def test_tokens_of_streams_are_reversible() -> None:
    for name in ("1", "a/b", "~x", "é", ""):
        assert stream_id_of(stream_token(name)) == name
    assert stream_id_of("~!!") is None
    assert EventId.parse("a.b.c") is None
