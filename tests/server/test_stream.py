"""GET /v1/events: frames, replay joined to live, scopes, and exact gap reports for slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import (
    ScopeRequired,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TapeError,
    TokenRejected,
)
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import Stream, call, parse

MINE = {"x_harbor_tenant": "shop", "x_harbor_user": "ada", "x_harbor_session": "s1"}


def drafts(count: int, subject: str = "/tape/order/created/{}", size: int = 0, **fields: str) -> list[Draft]:
    identity = {"tenant": "shop", "user": "ada", "session": "s1"} | fields
    payload = json.dumps({"n": 1, "fill": "x" * size}) if size else '{"n":1}'
    return [Draft(subject=subject.format(n), payload_json=payload, **identity) for n in range(count)]


def pass_a_minute(subscription: Any) -> None:
    """Let a subscription believe that its client has taken no byte for a minute."""
    subscription._taken = subscription.outlet.bytes_taken()
    subscription._paused_at -= 60


async def settled(server: Server, subscribers: int) -> None:
    """Wait until so many streams are open."""
    async with asyncio.timeout(120):
        while server.metrics.registry.get_sample_value("tape_live_subscriptions") != subscribers:
            await asyncio.sleep(0.005)


# ── frames ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_stream_is_byte_for_byte_as_documented(server: Server) -> None:
    await server.journal.append(
        [
            Draft(
                subject="/tape/order/created/a%3Cb",
                payload_json='{"b": "<&>\u2028é",\n "a": 1}',
                run_id="r<1",
                trace_id="a" * 32,
                span_id="b" * 16,
                tenant="shop",
                user="a&b",
                session="s1",
            )
        ]
    )
    async with Stream(server.http_address, last_event_id="0", **MINE | {"x_harbor_user": "a&b"}) as stream:
        await stream.frames(1)
        assert {name: value for name, value in stream.headers.items() if name != "date"} == {
            "cache-control": "no-cache",
            "connection": "keep-alive",
            "content-type": "text/event-stream",
            "x-accel-buffering": "no",
            "transfer-encoding": "chunked",
        }
        text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}000000Z", "TIME", stream.raw.decode())
    assert text == (
        "retry: 3000\n\n"
        "event: order.created\nid: 1\n"
        'data: {"type":"order.created","sequence":1,"occurred_at":"TIME","tenant":"shop","user":"a\\u0026b",'
        '"session":"s1","run":"r\\u003c1","payload":{"b": "\\u003c\\u0026\\u003e\\u2028é",  "a": 1},'
        '"extra":{"schema_version":"1","span_id":"bbbbbbbbbbbbbbbb","subject":"/tape/order/created/a%3Cb",'
        '"trace_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}\n\n'
    )


async def test_a_payload_that_is_no_object_travels_in_one(server: Server) -> None:
    await server.journal.append([Draft(subject="/tape/a/b", payload_json=text) for text in (" [1]", "null", "{}")])
    async with Stream(server.http_address, last_event_id="0") as stream:
        assert [frame.data["payload"] for frame in await stream.frames(3)] == [{"value": [1]}, {"value": None}, {}]


async def test_idle_streams_get_keepalives_and_their_cursor_advances(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, keepalive_s=0.05)) as server:
        async with Stream(server.http_address, x_harbor_event_type="order.paid") as stream:
            await settled(server, 1)
            await server.journal.append(drafts(3, tenant="", user="", session=""))
            seen = await stream.until("checkpoint")
            assert seen[-1].id == 3
            assert seen[-1].data["payload"] == {"Position": 3}
            assert any(frame.raw == b": keepalive" for frame in seen)
            await server.journal.append(drafts(1, "/tape/order/paid/{}", tenant="", user="", session=""))
            assert (await stream.until("order.paid"))[-1].id == 4
            for frame in await stream.frames(3):  # the cursor stands at the entry already: it is not said twice
                assert frame.raw == b": keepalive"


# ── what is seen ─────────────────────────────────────────────────────────────────────────────────


async def test_every_joiner_sees_every_id_once_whenever_it_joins(server: Server) -> None:
    async def write() -> None:
        for _ in range(40):
            await server.journal.append(drafts(11))

    async def read() -> list[int | None]:
        async with Stream(server.http_address, "/v1/events?resume_seq=0", **MINE) as stream:
            return await stream.ids(440)

    writing = asyncio.create_task(write())
    reading = []
    for _ in range(8):
        reading.append(asyncio.create_task(read()))
        await server.journal.append(drafts(1, session="other"))
    results = await asyncio.gather(*reading)
    await writing
    for ids in results:
        assert len(set(ids)) == 440
        assert ids == sorted(ids, key=int)  # type: ignore[arg-type]


async def test_a_caller_sees_its_own_session_only_and_can_narrow_it(server: Server) -> None:
    await server.journal.append(
        [
            *drafts(1),
            *drafts(1, session="s2"),
            *drafts(1, user="bob"),
            *drafts(1, tenant="other"),
            *drafts(1, run_id="r1"),
            *drafts(1, "/tape/order/paid/{}", run_id="r1"),
            *drafts(1, "/tape/order/shipped/{}"),
        ]
    )
    address = server.http_address

    async def ids(count: int, path: str = "/v1/events?resume_seq=0", **headers: str) -> list[int | None]:
        async with Stream(address, path, **MINE | headers) as stream:
            found = await stream.ids(count)
            await server.journal.append(drafts(1, "/tape/the/end"))  # and nothing else comes before this
            return found

    assert await ids(4) == [1, 5, 6, 7]
    assert await ids(2, x_harbor_run="r1") == [5, 6]
    assert await ids(2, x_harbor_event_type="order.paid, order.shipped") == [6, 7]
    assert await ids(2, x_harbor_event_type="order.paid\norder.shipped") == [6, 7]
    assert await ids(2, "/v1/events?resume_seq=0&type=order.paid&type=order.shipped") == [6, 7]
    assert await ids(1, "/v1/events?resume_seq=0&type=order.paid", x_harbor_run="r1") == [6]
    assert (await ids(7, "/v1/events?admin=1&resume_seq=0", x_harbor_run="r1"))[:7] == [1, 2, 3, 4, 5, 6, 7]


async def test_the_owner_of_an_open_server_sees_all_entries_unless_it_names_an_identity(server: Server) -> None:
    entries = [*drafts(1), *drafts(1, tenant="other", run_id="r1"), *drafts(1, tenant="", user="", session="")]
    await server.journal.append(entries)
    async with (
        Stream(server.http_address, "/v1/events?resume_seq=0") as owner,
        Stream(server.http_address, "/v1/events?resume_seq=0", x_harbor_run="r1") as run,
        Stream(server.http_address, "/v1/events?resume_seq=0", x_harbor_tenant="other") as tenant_alone,
        Stream(server.http_address, "/v1/events?resume_seq=0&tenant=other&user=ada&session=s1") as other,
    ):
        await settled(server, 4)
        await server.journal.append([*drafts(1, run_id="r1"), *drafts(1, tenant="other", user="", session="")])
        await server.journal.append(drafts(1, tenant="other"))
        assert await owner.ids(6) == [1, 2, 3, 4, 5, 6]  # and no audit entry: this is an ordinary read
        assert await run.ids(2) == [2, 4]
        assert await tenant_alone.ids(1) == [5]
        assert await other.ids(2) == [2, 6]


async def test_streams_of_an_open_servers_owner_are_limited_like_those_of_a_session(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, max_subscribers_per_session=1)) as server:
        async with Stream(server.http_address):
            await settled(server, 1)
            assert (await call(server.http_address, "GET", "/v1/events")).status == 429
            async with Stream(server.http_address, **MINE):
                await settled(server, 2)
        await settled(server, 0)
        assert not server.broadcast._per_session


async def test_live_entries_reach_exactly_those_who_may_see_them(server: Server) -> None:
    async with (
        Stream(server.http_address, **MINE) as mine,
        Stream(server.http_address, **MINE | {"x_harbor_session": "s2"}) as other,
        Stream(server.http_address, **MINE, x_harbor_run="r1") as run,
        Stream(server.http_address, **MINE, x_harbor_event_type="order.paid") as paid,
        Stream(server.http_address, "/v1/events?admin=1") as everything,
    ):
        await settled(server, 5)
        assert (await everything.frames(1))[0].event == "audit.admin_scope_used"
        await server.journal.append(
            [
                *drafts(1),
                *drafts(1, session="s2"),
                *drafts(1, "/tape/order/paid/{}", run_id="r1"),
                *drafts(1, user="bob"),
            ]
        )
        assert await everything.ids(4) == [2, 3, 4, 5]
        assert await mine.ids(2) == [2, 4]
        assert await other.ids(1) == [3]
        assert await run.ids(1) == [4]
        assert await paid.ids(1) == [4]


@pytest.mark.parametrize(
    ("cursor", "ids", "comment"),
    [
        ("", [6], ""),
        ("0", [1, 2, 3, 4, 5, 6], ""),
        ("2", [3, 4, 5, 6], ""),
        ("5", [6], ""),
        ("6", [6], "stream.replay_unavailable reconnect cursor beyond the head of this journal"),
        ("99999999999999999999", [6], "stream.replay_unavailable reconnect cursor is not a sequence number"),
        ("18446744073709551615", [6], "stream.replay_unavailable reconnect cursor beyond the head of this journal"),
        *[
            (bad, [6], "stream.replay_unavailable reconnect cursor is not a sequence number")
            for bad in ("abc", "-1", "+1", "1.0", "1_0", "\xb2")
        ],
    ],
)
async def test_a_cursor_is_resumed_or_the_reason_is_sent(
    server: Server, cursor: str, ids: list[int], comment: str
) -> None:
    await server.journal.append(drafts(5))
    async with Stream(server.http_address, last_event_id=cursor, **MINE) as stream:
        await settled(server, 1)
        seen = [] if not comment else await stream.frames(2)
        assert [frame.comment for frame in seen] == ([comment, ""] if comment else [])
        for notice in seen[1:]:  # a browser shows no comment to a page
            assert (notice.event, notice.id) == ("stream.replay_unavailable", None)
            assert notice.data["payload"] == {"Reason": comment.partition(" ")[2]}
        await server.journal.append(drafts(1))
        assert await stream.ids(len(ids)) == ids


async def test_pruned_entries_are_reported_and_the_rest_is_replayed(server: Server) -> None:
    await server.journal.append(drafts(9))
    await prune(server.database, before_seq=6)
    too_old = "stream.replay_unavailable reconnect cursor older than the retained window"
    for cursor in ("0", "3"):
        async with Stream(server.http_address, last_event_id=cursor, **MINE) as stream:
            frames = await stream.frames(6)
            assert [frame.comment for frame in frames] == [too_old, "", "", "", "", ""]
            assert [frame.id for frame in frames] == [None, None, 6, 7, 8, 9]
    async with Stream(server.http_address, last_event_id="5", **MINE) as stream:
        assert await stream.ids(4) == [6, 7, 8, 9]


async def test_pruned_entries_are_reported_to_those_who_could_have_seen_them(server: Server) -> None:
    await server.journal.append([*drafts(2), *drafts(3, tenant="other"), *drafts(1, run_id="r1")])
    await server.journal.append([*drafts(3, tenant="other"), *drafts(1, run_id="r2"), *drafts(1, "/tape/order/paid/x")])
    await prune(server.database, before_seq=10)  # 1, 2 and 6 of MINE, all of the other tenant, r1 but not r2
    await server.journal.append(drafts(1))  # 12
    run = {"x_harbor_run": "r2"}
    for cursor, narrowing, is_reported in (
        ("5", {}, True),
        ("6", {}, False),
        ("0", {"x_harbor_event_type": "order.created"}, True),
        ("0", {"x_harbor_event_type": "order.paid"}, False),
        ("0", {"x_harbor_run": "r1"}, True),
        ("0", run, False),
        ("0", {"x_harbor_session": "s9"}, False),
        ("0", {"x_harbor_tenant": "other"}, True),
    ):
        async with Stream(server.http_address, last_event_id=cursor, **MINE | narrowing) as stream:
            await settled(server, 1)
            await server.journal.append([*drafts(1, "/tape/order/created/end", **identity_of(narrowing))])
            await server.journal.append([*drafts(1, "/tape/order/paid/end", **identity_of(narrowing))])
            await stream.until("order.paid" if "order.paid" in narrowing.values() else "order.created")
            assert (b"stream.replay_unavailable" in stream.raw) == is_reported, (cursor, narrowing)
        await settled(server, 0)


def identity_of(headers: dict[str, str]) -> dict[str, str]:
    names = {"x_harbor_tenant": "tenant", "x_harbor_session": "session", "x_harbor_run": "run_id"}
    return {names[name]: value for name, value in headers.items() if name in names}


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "18446744073709551616", "1&resume_seq=2", "%00", "1%20"])
async def test_a_bad_first_cursor_is_refused_before_the_stream_opens(server: Server, value: str) -> None:
    answer = await call(server.http_address, "GET", f"/v1/events?resume_seq={value}")
    assert (answer.status, answer.json()["code"]) == (400, "invalid_request")


async def test_one_noisy_tenant_does_not_shorten_another_ones_replay(server: Server) -> None:
    await server.journal.append(drafts(3))
    for _ in range(20):
        await server.journal.append(drafts(1000, tenant="noisy"))
    server.hub.ring.clear()
    await server.journal.append(drafts(1))
    async with Stream(server.http_address, last_event_id="1", **MINE) as stream:
        assert await stream.ids(3) == [2, 3, 20_004]


async def test_a_database_that_cannot_answer_ends_the_stream_with_a_comment(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Server(settings_for(sqlite_url)) as server:
        await server.journal.append(drafts(1))

        async def damaged(question: object) -> None:
            raise StoreDamaged("a page is unreadable")

        monkeypatch.setattr(server.database, "read", damaged)
        async with Stream(server.http_address, last_event_id="0", **MINE) as stream:
            frames = await stream.frames(2)
            assert frames[0].comment == "stream.replay_unavailable replay failed"
            assert frames[1].data["payload"] == {"Reason": "replay failed"}
            assert await stream.frame() is None


@pytest.mark.parametrize("kind", [StoreUnavailable, StoreBusy, StoreFull])
async def test_a_replay_waits_for_a_database_that_is_unavailable_and_keeps_the_stream_alive(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, kind: type[StoreError]
) -> None:
    async with Server(settings_for(sqlite_url, keepalive_s=0.05)) as server:
        await server.journal.append(drafts(3))

        async def unavailable(question: object) -> None:
            raise kind("it is gone")

        with monkeypatch.context() as outage:
            outage.setattr(server.database, "read", unavailable)
            async with Stream(server.http_address, last_event_id="0", **MINE) as stream:
                assert {frame.comment for frame in await stream.frames(5)} == {"keepalive"}
                outage.undo()
                found: list[int] = []
                while len(found) < 3:
                    frame = await stream.frame()
                    assert frame is not None
                    assert frame.comment in ("", "keepalive")
                    found += [frame.id] if frame.id is not None else []
                assert found == [1, 2, 3]
        assert server.metrics.read_retries._value.get() > 0


async def test_a_client_that_leaves_in_an_outage_ends_its_replay(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Server(settings_for(sqlite_url, keepalive_s=0.05)) as server:
        await server.journal.append(drafts(1))

        async def unavailable(question: object) -> None:
            raise StoreUnavailable("it is gone")

        with monkeypatch.context() as outage:
            outage.setattr(server.database, "read", unavailable)
            async with Stream(server.http_address, last_event_id="0", **MINE) as stream:
                await stream.frames(1)
            await settled(server, 0)


# ── methods and limits ───────────────────────────────────────────────────────────────────────────


async def test_other_methods_are_refused_plainly(server: Server) -> None:
    for method in ("PUT", "DELETE", "OPTIONS"):
        answer = await call(server.http_address, method, "/v1/events")
        assert (answer.status, answer.body) == (405, b"Method Not Allowed\n")
        assert {"GET", "HEAD"} <= set(answer.headers["allow"].split(", "))
        assert answer.headers["x-content-type-options"] == "nosniff"
    answer = await call(server.http_address, "HEAD", "/v1/events")
    assert (answer.status, answer.headers["content-length"]) == (405, "30")
    answer = await call(server.http_address, "GET", "/v1/events/")
    assert (answer.status, answer.body) == (404, b"404 page not found\n")


async def test_a_session_has_a_limited_number_of_streams_and_gets_them_back(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, max_subscribers_per_session=2)) as server:
        async with Stream(server.http_address, **MINE) as first, Stream(server.http_address, **MINE):
            await settled(server, 2)
            refused = await call(server.http_address, "GET", "/v1/events", **MINE)
            assert (refused.status, refused.json()["code"]) == (429, "runtime_error")
            assert refused.headers["retry-after"] == "1"
            assert "per-session subscriber limit reached" in refused.json()["message"]
            async with (
                Stream(server.http_address, **MINE | {"x_harbor_session": "s2"}),
                Stream(server.http_address, "/v1/events?admin=1", **MINE),
            ):
                await settled(server, 4)
            await first.__aexit__()
            await settled(server, 1)
            async with Stream(server.http_address, **MINE):
                await settled(server, 2)


async def test_closed_connections_leave_nothing_behind(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url)) as server:
        await server.journal.append(drafts(1))
        broadcast = server.broadcast
        for number in range(300):
            async with Stream(server.http_address, last_event_id="0", **MINE | {"x_harbor_session": f"s{number % 7}"}):
                pass
        await settled(server, 0)
        assert not broadcast._audiences
        assert not broadcast._by_identity
        assert not broadcast._per_session
        assert not broadcast._open
        assert not broadcast._blocked


# ── slow readers ─────────────────────────────────────────────────────────────────────────────────


async def stalled(server: Server, stream: Stream) -> int:
    """Append until the client's socket is full; the number appended."""
    stream.pause_reading()
    appended = 0
    async with asyncio.timeout(120):
        while not server.broadcast._blocked:
            await server.journal.append(drafts(20, size=8000))
            appended += 20
    return appended


async def test_a_slow_subscriber_gets_a_report_of_the_exact_gap(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=10, drop_window_s=0.05)) as server:
        async with Stream(server.http_address, limit=1 << 12, **MINE) as stream:
            await settled(server, 1)
            before = await stalled(server, stream)
            await server.journal.append(drafts(100, size=8000))
            stream.resume_reading()
            seen = (await stream.until("bus.dropped"))[1:]
            notice = seen.pop()
            assert notice.id is None
            lost = notice.data["payload"]
            assert re.search(rb"^id:", notice.raw, re.MULTILINE) is None
            # Nothing else is appended: the tail of the burst is reported all the same, and the ids add up.
            rest = await stream.ids(10)
            total = before + 100
            assert rest == list(range(total - 9, total + 1))
            delivered = [frame.id for frame in seen if frame.id] + rest
            dropped = sorted(set(range(1, total + 1)) - set(delivered))  # type: ignore[type-var]
            assert lost["DroppedCount"] == len(dropped) > 0
            assert (lost["FromSeq"], lost["ToSeq"]) == (dropped[0], dropped[-1])
            assert lost["SubscriberID"] == 1
            assert delivered == sorted(delivered)  # type: ignore[type-var]
            dropped_total = server.metrics.registry.get_sample_value("tape_live_dropped_total")
            assert dropped_total == len(dropped)
            await server.journal.append(drafts(1))
            assert await stream.ids(1) == [total + 1]


async def lose(server: Server, stream: Stream) -> None:
    """Let a stream lose entries once, and read until it has no more to take."""
    before = server.metrics.registry.get_sample_value("tape_live_dropped_total") or 0
    await stalled(server, stream)
    await server.journal.append(drafts(40, size=8000))
    stream.resume_reading()
    async with asyncio.timeout(120):
        while server.metrics.registry.get_sample_value("tape_live_dropped_total") == before:
            await asyncio.sleep(0.005)


async def test_newer_frames_wait_for_the_report_of_a_loss(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=10, drop_window_s=0.5)) as server:
        async with Stream(server.http_address, limit=1 << 12, **MINE) as stream:
            await settled(server, 1)
            for _ in range(3):
                await lose(server, stream)
                await server.journal.append(drafts(1, "/tape/order/paid/{}"))
                seen = await stream.until("order.paid")
            head = (await server.journal.head()).global_seq
            ids, lost, position = 0, 0, 0
            for frame in [parse(raw) for raw in stream.raw.split(b"\n\n")]:
                if frame.event == "bus.dropped":
                    payload = frame.data["payload"]
                    assert payload["FromSeq"] > position  # nothing newer came before the report
                    position, lost = payload["ToSeq"], lost + payload["DroppedCount"]
                elif frame.id is not None:
                    assert frame.id > position
                    position, ids = frame.id, ids + 1
            assert seen[-1].id == position == head
            assert ids + lost == head


@pytest.mark.parametrize("how", ["idle", "stop"])
async def test_a_second_loss_within_the_window_is_reported_when_the_stream_ends(sqlite_url: str, how: str) -> None:
    server = Server(settings_for(sqlite_url, subscriber_buffer_size=10, drop_window_s=30, idle_timeout_s=8))
    await server.start()
    try:
        async with Stream(server.http_address, limit=1 << 12, **MINE) as stream:
            await settled(server, 1)
            await lose(server, stream)
            await stream.until("bus.dropped")
            await lose(server, stream)
            await server.journal.append(drafts(40, size=100))  # the stream waits for the end of the window
            (waiting,) = server.broadcast._open
            if how == "idle":
                waiting.pause()
                pass_a_minute(waiting)
                waiting.check_idle(asyncio.get_running_loop().time())
            else:
                await server.stop()
            second = (await stream.until("bus.dropped"))[-1].data["payload"]
            while (frame := await stream.frame()) is not None:
                assert frame.id is None or frame.id > second["ToSeq"]
            frames = [parse(raw) for raw in stream.raw.split(b"\n\n")]
            losses = [frame.data["payload"] for frame in frames if frame.event == "bus.dropped"]
            assert len(losses) == 2
            delivered = {frame.id for frame in frames if frame.id is not None}
            missing = set(range(1, losses[-1]["ToSeq"] + 1)) - delivered
            assert sum(loss["DroppedCount"] for loss in losses) == len(missing)
    finally:
        await server.stop()


async def test_a_slow_reader_that_takes_bytes_all_the_time_is_not_idle(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=10, idle_timeout_s=4)) as server:
        host, _, port = server.http_address.rpartition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
            client.connect((host, int(port)))
            names = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in MINE.items())
            client.sendall(f"GET /v1/events HTTP/1.1\r\nhost: {server.http_address}\r\n{names}\r\n".encode())
            await settled(server, 1)
            async with asyncio.timeout(120):
                while not server.broadcast._blocked:
                    await server.journal.append(drafts(20, size=8000))
            (slow,) = server.broadcast._blocked
            client.setblocking(False)
            for _ in range(3):
                async with asyncio.timeout(120):
                    while slow.outlet.bytes_taken() == slow._taken:  # far less than a third of the kernel's buffer
                        with contextlib.suppress(BlockingIOError):
                            client.recv(2_048)
                        await asyncio.sleep(0)
                slow._paused_at -= 60  # a minute has passed
                slow.check_idle(asyncio.get_running_loop().time())
                assert slow in server.broadcast._blocked
            assert server.metrics.registry.get_sample_value("tape_live_reaped_total") == 0
            pass_a_minute(slow)  # it takes nothing any more
            await settled(server, 0)
            assert server.metrics.registry.get_sample_value("tape_live_reaped_total") == 1


async def test_a_lagging_subscriber_without_loss_gets_a_report_of_its_lag(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=100)) as server:
        async with Stream(server.http_address, limit=1 << 12, **MINE) as stream:
            await settled(server, 1)
            total = await stalled(server, stream)
            await server.journal.append(drafts(60, size=100))
            stream.resume_reading()
            seen = await stream.until("bus.lag")
            assert 60 <= seen[-1].data["payload"]["Behind"] <= 80
            ids = [frame.id for frame in seen if frame.id]
            ids += await stream.ids(total + 60 - len(ids))
            assert ids == list(range(1, total + 61))


async def test_a_burst_larger_than_the_buffer_is_no_loss_for_a_fast_reader(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=4)) as server:
        async with Stream(server.http_address, **MINE) as stream:
            await settled(server, 1)
            await server.journal.append(drafts(500))
            assert await stream.ids(500) == list(range(1, 501))


async def test_a_slow_reader_does_not_hold_up_the_others(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=10)) as server:
        async with (
            Stream(server.http_address, limit=1 << 12, **MINE) as slow,
            Stream(server.http_address, **MINE) as fast,
        ):
            await settled(server, 2)
            total = await stalled(server, slow)
            await server.journal.append(drafts(50))
            assert await fast.ids(total + 50) == list(range(1, total + 51))


async def test_a_stalled_subscriber_is_disconnected_with_a_report(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=10, idle_timeout_s=60)) as server:
        async with Stream(server.http_address, limit=1 << 12, **MINE) as stream:
            await settled(server, 1)
            await stalled(server, stream)
            await server.journal.append(drafts(30, size=8000))
            (blocked,) = server.broadcast._blocked
            pass_a_minute(blocked)
            await settled(server, 0)
            stream.resume_reading()
            seen = await stream.until("bus.subscription_idle_closed")
            assert seen[-1].data["payload"]["IdleSeconds"] >= 60
            assert seen[-1].data["payload"]["SubscriberID"] == 1
            assert [frame.event for frame in seen[-12:-1]] == ["bus.dropped", *["order.created"] * 10]
            assert await stream.frame() is None
        assert server.metrics.registry.get_sample_value("tape_live_reaped_total") == 1


async def test_idle_subscribers_are_not_disconnected(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, idle_timeout_s=0.05, keepalive_s=0.05)) as server:
        async with Stream(server.http_address, **MINE) as stream:
            for frame in await stream.frames(6):
                assert frame.comment == "keepalive" or frame.event == "checkpoint"


async def test_streams_end_when_the_server_stops(sqlite_url: str) -> None:
    server = Server(settings_for(sqlite_url))
    await server.start()
    async with Stream(server.http_address, **MINE) as stream:
        await settled(server, 1)
        await server.stop()
        while (frame := await stream.frame()) is not None:
            assert frame.raw == b"retry: 3000"


# ── identity ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_key(tmp_path / "dev.key")[0]


@pytest.fixture
async def guarded(store_url: str, key: SigningKey, tmp_path: Path) -> AsyncIterator[Server]:
    """A server that demands tokens."""
    settings = settings_for(
        store_url, auth_jwks=str(jwks_path(tmp_path / "dev.key")), cors_origins="https://console.example"
    )
    async with Server(settings) as server:
        yield server


def bearer(key: SigningKey, **claims: object) -> str:
    return "Bearer " + key.mint(**{"tenant": "shop", "user": "ada", "session": "s1"} | claims)  # type: ignore[arg-type]


async def test_a_token_decides_what_is_seen_whatever_the_headers_say(guarded: Server, key: SigningKey) -> None:
    await guarded.journal.append([*drafts(1), *drafts(1, tenant="other"), *drafts(1, session="s2")])
    spoofed = {"x_harbor_tenant": "other", "x_harbor_user": "eve", "authorization": bearer(key)}
    async with Stream(guarded.http_address, last_event_id="0", **spoofed) as stream:
        await settled(guarded, 1)
        await guarded.journal.append(drafts(1))
        assert await stream.ids(2) == [1, 4]
    async with Stream(guarded.http_address, last_event_id="0", x_harbor_session="s2", **spoofed) as stream:
        assert await stream.ids(1) == [3]


async def test_refusals_have_a_stable_code_and_are_journaled_without_the_token(
    guarded: Server, key: SigningKey
) -> None:
    address = guarded.http_address
    missing = await call(address, "GET", "/v1/events")
    assert (missing.status, missing.json()["code"]) == (401, "identity_required")
    assert missing.headers["content-type"] == "application/json"
    other = await call(address, "GET", "/v1/events", authorization="Basic abc")
    assert (other.status, other.json()["code"]) == (401, "identity_required")
    head = (await guarded.journal.head()).global_seq
    assert head == 0
    for _ in range(50):
        bad = await call(address, "GET", "/v1/events?admin=1", authorization="Bearer abc.secret")
        assert (bad.status, bad.json()) == (
            401,
            {"code": "auth_rejected", "message": "jwt rejected: token_malformed"},
        )
    denied = await call(address, "GET", "/v1/events?admin=1", authorization=bearer(key))
    assert (denied.status, denied.json()["code"]) == (403, "identity_scope_required")
    admin = bearer(key, scopes=["admin"])
    async with Stream(address, "/v1/events?admin=1&resume_seq=0", authorization=admin) as stream:
        frames = await stream.until("audit.admin_scope_used")
        rejected = [frame for frame in frames if frame.event == "auth.rejected"]
        assert {frame.data["payload"]["Reason"] for frame in rejected} == {"token_malformed"}
        assert b"secret" not in stream.raw
        assert len(rejected) < 10  # a flood is counted, not repeated
        used = frames[-1].data
        assert (used["tenant"], used["user"], used["session"]) == ("shop", "ada", "s1")


async def test_a_browser_may_put_its_token_into_the_query_of_the_stream_only(guarded: Server, key: SigningKey) -> None:
    await guarded.journal.append([*drafts(1), *drafts(1, session="s2")])
    token = bearer(key).removeprefix("Bearer ")
    async with Stream(guarded.http_address, f"/v1/events?resume_seq=0&access_token={token}") as stream:
        assert await stream.ids(1) == [1]
    async with Stream(guarded.http_address, f"/v1/events?resume_seq=0&session=s2&access_token={token}") as stream:
        assert await stream.ids(1) == [2]
    answer = await call(
        guarded.http_address, "GET", f"/v1/events?access_token={token}", authorization="Bearer no.good.token"
    )
    assert answer.status == 401  # the header wins, also a bad one


async def test_a_stream_ends_with_its_token(guarded: Server, key: SigningKey) -> None:
    async with Stream(guarded.http_address, authorization=bearer(key, lifetime_s=4)) as stream:
        while (frame := await stream.frame()) is not None:
            assert frame.raw == b"retry: 3000"
    await settled(guarded, 0)


async def test_only_listed_origins_may_read(guarded: Server, key: SigningKey) -> None:
    address = guarded.http_address
    for origin, allowed in (("https://console.example", True), ("https://evil.example", False)):
        preflight = await call(address, "OPTIONS", "/v1/events", origin=origin, access_control_request_method="GET")
        assert preflight.status == 204
        answer = await call(address, "GET", "/v1/events", origin=origin)
        assert answer.status == (401 if allowed else 403)
        for headers in (preflight.headers, answer.headers):
            assert headers.get("access-control-allow-origin") == (origin if allowed else None)
            assert headers.get("vary") == ("Origin" if allowed else None)
            assert ("access-control-allow-credentials" in headers) == allowed
            assert ("Retry-After" in headers.get("access-control-expose-headers", "")) == allowed


async def test_a_server_without_keys_answers_to_this_machine_only(server: Server) -> None:
    port = server.http_address.rpartition(":")[2]
    for host, status in (("evil.example", 403), (f"localhost:{port}", 405), ("[::1]", 405), ("127.0.0.1", 405)):
        assert (await call(server.http_address, "HEAD", "/v1/events", host=host)).status == status


async def test_grpc_takes_the_same_tokens(guarded: Server, key: SigningKey) -> None:
    url = f"tape://{guarded.grpc_address}"
    scopes = ([], ["service"], ["service", "tenant:*"])
    plain, service, everywhere = (bearer(key, scopes=each).removeprefix("Bearer ") for each in scopes)
    async with AsyncTapeClient(url) as anonymous:
        with pytest.raises(TapeError, match="authorization metadata missing"):
            await anonymous.head()
    async with AsyncTapeClient(url, id_token="abc") as liar:
        with pytest.raises(TokenRejected, match="token_malformed"):
            await liar.head()
    async with AsyncTapeClient(url, id_token=plain) as ordinary:
        assert await ordinary.append("/tape/a/b") > 0
        with pytest.raises(ScopeRequired, match="'other'"):
            await ordinary.append("/tape/a/b", tenant="other")
        with pytest.raises(ScopeRequired, match="Follow"):
            async for _ in ordinary.follow():
                pass
        with pytest.raises(ScopeRequired, match="GetValue"):
            await ordinary.get_value(namespace="a", key="b")
    async with AsyncTapeClient(url, id_token=service) as trusted:
        with pytest.raises(ScopeRequired, match="'other'"):
            await trusted.append("/tape/a/b", tenant="other")
    async with AsyncTapeClient(url, id_token=everywhere) as unbound, AsyncTapeClient(url, id_token=service) as bound:
        await unbound.append("/tape/a/b", tenant="other")
        await bound.append("/tape/a/b", user="bob")
        ours = [("shop", "ada", "s1"), ("shop", "bob", "")]
        assert [identity async for identity in identities(bound, 2)] == ours
        assert [identity async for identity in identities(unbound, 3)] == [ours[0], ("other", "", ""), ours[1]]


async def identities(client: AsyncTapeClient, count: int) -> AsyncIterator[tuple[str, str, str]]:
    async for entry in client.follow("/tape/a/b"):
        yield entry.tenant, entry.user, entry.session
        if (count := count - 1) == 0:
            break


async def test_a_grpc_stream_says_nothing_after_its_token_has_expired(guarded: Server, key: SigningKey) -> None:
    token = bearer(key, scopes=["service"], lifetime_s=2).removeprefix("Bearer ")
    async with AsyncTapeClient(f"tape://{guarded.grpc_address}", id_token=token) as client:
        with pytest.raises(TokenRejected, match="token_expired"):
            await asyncio.wait_for(anext(client.follow(reconnect=False)), 120)
