"""GET /v1/events: parameters that narrow a stream, say where it starts and how its frames look."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tape.engine.fanout.audience import LiveScope
from tape.server.http.stream_request import MAX_SUBJECTS, MAX_TYPES
from tape.server.server import Server
from tests.conftest import settings_for
from tests.server.test_stream import MINE, drafts, settled
from tests.web import Stream, call

SUBJECTS = ("/tape/order/created/1", "/tape/order/paid/1", "/tape/mail/sent/1", "/tape/order/created/2")


@pytest.fixture
async def sqlite_server(sqlite_url: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url)) as server:
        yield server


async def fill(server: Server) -> None:
    for subject in SUBJECTS:
        await server.journal.append(drafts(1, subject, run_id="r1" if subject.endswith("1") else "r2"))


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("subject=/tape/order/**", [1, 2, 4]),
        ("subject=/tape/*/*/1&subject=/tape/order/created/2", [1, 2, 3, 4]),
        ("subject=/tape/order/**&type=*.created", [1, 4]),
        ("type=order.*", [1, 2, 4]),
        ("type=*r*.*a*d", [1, 2, 4]),
        ("type=mail.sent&type=order.p*", [2, 3]),
        ("run=r1", [1, 2, 3]),
        ("run=r1&subject=/tape/mail/**", [3]),
    ],
)
async def test_a_stream_is_narrowed_in_replay_and_live(server: Server, query: str, ids: list[int]) -> None:
    await fill(server)
    async with Stream(server.http_address, f"/v1/events?from=start&{query}", **MINE) as stream:
        assert await stream.ids(len(ids)) == ids
        await fill(server)
        assert await stream.ids(len(ids)) == [4 + number for number in ids]


async def test_a_stream_starts_where_from_says(server: Server) -> None:
    await fill(server)
    for begin, first in (("start", 1), ("2", 3), ("2020-01-01T00:00:00Z", 1), ("now", 5)):
        async with Stream(server.http_address, f"/v1/events?from={begin}", **MINE) as stream:
            await settled(server, 1)
            if begin == "now":
                await server.journal.append(drafts(1))
            assert await stream.ids(1) == [first]
        await settled(server, 0)
    async with Stream(server.http_address, "/v1/events?from=start", last_event_id="4", **MINE) as stream:
        assert await stream.ids(1) == [5]  # a browser that reconnects sends both


async def test_unnamed_frames_have_no_event_line_in_replay_live_and_notices(sqlite_server: Server) -> None:
    server = sqlite_server
    await server.journal.append(drafts(1, "/tape/order/created/x%0Aevent:%20evil"))
    async with (
        Stream(server.http_address, "/v1/events?named=0", last_event_id="0", **MINE) as stream,
        Stream(server.http_address, "/v1/events?named=0", last_event_id="99", **MINE) as ahead,
        Stream(server.http_address, "/v1/events", last_event_id="0", **MINE) as named,
    ):
        await settled(server, 3)
        await server.journal.append(drafts(1))
        frames = await stream.frames(2)
        assert [(frame.event, frame.id, frame.data["type"]) for frame in frames] == [
            ("", 1, "order.created"),
            ("", 2, "order.created"),
        ]
        _, notice = await ahead.frames(2)
        assert (notice.event, notice.data["type"]) == ("", "stream.replay_unavailable")
        assert b"event:" not in ahead.raw + stream.raw.replace(b"event:%20evil", b"")
        assert [frame.event for frame in await named.frames(2)] == ["order.created", "order.created"]


async def test_parameters_that_are_not_known_are_named_in_a_comment(server: Server) -> None:
    await fill(server)
    path = "/v1/events?from=start&typ=order.paid&x%0A%0Aevent:%20evil=1&" + "&".join(f"p{n}=1" for n in range(40))
    async with Stream(server.http_address, path, **MINE) as stream:
        remark, first = await stream.frames(2)
        assert remark.comment.startswith("stream.parameters_ignored p0, p1, ")
        assert "and 26 more; known are access_token, admin, from" in remark.comment
        assert first.id == 1
        assert b"\nevent: evil" not in stream.raw
    async with Stream(server.http_address, "/v1/events?typ=order.paid&from=start", **MINE) as stream:
        assert "parameters_ignored typ;" in (await stream.frames(1))[0].comment


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("from=x", "from 'x' must be a global_seq"),
        ("from=99999999999999999999999", "from"),
        ("from=2026-13-01T00:00:00Z", "is not a time"),
        ("from=1&resume_seq=1", "send one of them"),
        ("from=1&from=2", "from is given 2 times"),
        ("named=yes", "named 'yes' must be 0"),
        ("subject=/tape/**/x", "/tape/**/x"),
        ("run=%00", "run"),
        ("run=a&run=b", "run is given 2 times"),
        ("&".join(f"subject=/tape/a/{n}" for n in range(MAX_SUBJECTS + 1)), "65 subject patterns"),
        ("&".join(f"type=a.{n}" for n in range(MAX_TYPES + 1)), "257 event types"),
    ],
)
async def test_a_parameter_that_makes_no_sense_is_refused_by_name(
    sqlite_server: Server, query: str, words: str
) -> None:
    answer = await call(sqlite_server.http_address, "GET", f"/v1/events?{query}", **MINE)
    assert (answer.status, answer.json()["code"]) == (400, "invalid_request")
    assert words in answer.json()["message"]


async def test_a_subject_pattern_shows_nothing_of_others(server: Server) -> None:
    await server.journal.append([*drafts(1, tenant="other"), *drafts(1)])
    async with Stream(server.http_address, "/v1/events?from=start&subject=/tape/**&run=log", **MINE) as stream:
        assert await stream.ids(1) == [2]


def test_a_star_stands_for_any_text() -> None:
    def fits(pattern: str, type_: str) -> bool:
        return LiveScope(None, types=frozenset({pattern})).has_type(type_)

    assert fits("*", "a.b")
    assert fits("a.*", "a.b.c")
    assert fits("a*a", "aa")
    assert not fits("a*a", "a")
    assert not fits("ab*ba", "aba")
    assert not fits("a.*.z", "a.z")
    assert not fits("*" + "a*" * 5_000 + "b", "a" * 5_000)
