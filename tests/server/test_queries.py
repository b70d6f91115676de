"""POST /v1/events/list, /aggregate and /v1/control/runtime.info."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tape.engine.ledgers.counts import fold
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.journal.retention import prune
from tape.server.http.request_bodies import to_time
from tape.server.server import Server
from tests.conftest import settings_for
from tests.engine.ledgers.test_counts import roll_up
from tests.history import Past, write_past
from tests.server.test_stream import MINE, bearer, drafts
from tests.web import call

HOUR = 3_600_000_000_000
QUARTER = HOUR // 4


async def ask(server: Server, method: str, body: Any, **headers: str) -> tuple[int, Any]:
    answer = await call(server.http_address, "POST", f"/v1/events/{method}", body, **headers)
    return answer.status, answer.json()


# ── list ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_list_goes_back_page_by_page_and_misses_nothing(server: Server) -> None:
    await server.journal.append([*drafts(130), *drafts(20, session="other"), *drafts(5)])
    pages, cursor = [], 0
    while True:
        status, page = await ask(server, "list", {"identity": {}, "filter": {}, "cursor": cursor, "limit": 40}, **MINE)
        assert status == 200
        pages.append([event["sequence"] for event in page["events"]])
        cursor = page["next_cursor"]
        if not page["has_more"]:
            break
    assert [len(page) for page in pages] == [40, 40, 40, 15]
    assert all(page == sorted(page) for page in pages)
    assert sorted(sequence for page in pages for sequence in page) == [*range(1, 131), *range(151, 156)]
    assert cursor == 0


async def test_an_empty_request_is_the_newest_fifty_and_a_large_limit_is_cut(server: Server) -> None:
    await server.journal.append(drafts(300))
    status, page = await ask(server, "list", b"", **MINE)
    assert (status, len(page["events"]), page["has_more"]) == (200, 50, True)
    assert page["events"][-1]["type"] == "order.created"
    assert page["events"][-1]["sequence"] == 300
    assert len((await ask(server, "list", {"limit": 100_000}, **MINE))[1]["events"]) == 200


async def test_a_list_can_be_narrowed_by_type_run_and_time(server: Server) -> None:
    now = time.time_ns() // 1_000_000
    past = [(now - 5000 + n, "order", "paid" if n % 100 == 0 else "made", "shop", "ada", "s1") for n in range(4000)]
    await write_past(server.database, past)

    async def sequences(**wanted: Any) -> list[int]:
        status, page = await ask(server, "list", {"filter": wanted, "limit": 200}, **MINE)
        assert status == 200, page
        return [event["sequence"] for event in page["events"]]

    assert await sequences(event_types=["order.paid"]) == list(range(1, 4001, 100))
    assert await sequences(event_types=["nothing.such"]) == []
    assert await sequences(run_ids=["run-1"], event_types=["order.paid"]) == list(range(1, 4000, 300))
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((now - 5000) // 1000))
    fraction = f".{(now - 5000) % 1000:03d}Z"
    assert (await sequences(until=f"{since}{fraction}")) == []
    assert len(await sequences(since=f"{since}{fraction}", event_types=["order.paid"])) == 40


@pytest.mark.parametrize(
    "body",
    [
        {"limit": -1},
        {"cursor": -1},
        {"limit": "5"},
        {"limit": 1.5},
        {"cursor": 2**64},
        {"unknown": 1},
        {"filter": {"unknown": 1}},
        {"identity": {"unknown": 1}},
        {"filter": {"since": "yesterday"}},
        {"filter": {"since": "2026-13-01T00:00:00Z"}},
        {"filter": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-02T00:00:00Z"}},
        {"filter": {"event_types": "order.paid"}},
        {"filter": {"session_ids": ["a\0b"]}},
        [],
        b"{",
        b"\xff",
        b"[" * 5000,
        b'{"filter": {"run_ids": ["' + b"x" * 70_000 + b'"]}}',
    ],
)
async def test_a_bad_request_is_refused(server: Server, body: Any) -> None:
    status, answer = await ask(server, "list", body)
    assert (status, answer["code"]) == (400, "invalid_request")


# ── aggregate ────────────────────────────────────────────────────────────────────────────────────


async def test_counts_by_type_in_buckets_that_end_now(server: Server) -> None:
    now = time.time_ns() // 1_000_000
    await write_past(
        server.database,
        [
            (now - 50 * 60_000, "order", "created", "shop", "ada", "s1"),
            (now - 5 * 60_000, "order", "paid", "shop", "ada", "s1"),
            (now - 5 * 60_000, "order", "paid", "shop", "ada", "s2"),
        ],
    )
    await fold(server.database)
    await server.journal.append(drafts(2))
    answer = await call(
        server.http_address,
        "POST",
        "/v1/events/aggregate",
        {"identity": {"tenant": "other"}, "filter": {}, "window": HOUR, "bucket": QUARTER},
        **MINE,
    )
    assert answer.status == 200
    assert answer.body.endswith(b"\n")
    body = answer.json()
    assert [bucket["counts"] for bucket in body["buckets"]] == [
        {"order.created": 1},
        {},
        {},
        {"order.created": 2, "order.paid": 1},
    ]
    assert body["protocol_version"] == "0.1.0"
    assert "truncated" not in body
    ends = [bucket["bucket_end"] for bucket in body["buckets"]]
    assert [bucket["bucket_start"] for bucket in body["buckets"]][1:] == ends[:-1]


async def test_anchored_buckets_are_the_same_when_they_are_requested_twice(server: Server) -> None:
    now = time.time_ns() // 1_000_000
    await write_past(server.database, [(now - 35 * 60_000, "order", "created", "shop", "ada", "s1")] * 2)
    request = {"window": HOUR, "bucket": QUARTER, "anchor": "2026-01-01T00:00:00Z"}
    first = (await ask(server, "aggregate", request, **MINE))[1]["buckets"]
    second = (await ask(server, "aggregate", request, **MINE))[1]["buckets"]
    assert all(bucket["bucket_start"].endswith((":00:00Z", ":15:00Z", ":30:00Z", ":45:00Z")) for bucket in first)
    assert sum(bucket["counts"].get("order.created", 0) for bucket in first) == 2
    # The window ends now: a quarter of an hour may pass between the requests, and then the last bucket is new.
    known = {bucket["bucket_start"]: bucket for bucket in first}
    common = [bucket for bucket in second if bucket["bucket_start"] in known]
    assert len(common) >= len(first) - 1
    assert [known[bucket["bucket_start"]] for bucket in common] == common


async def test_a_window_before_the_oldest_entry_is_marked_truncated(server: Server) -> None:
    await server.journal.append(drafts(5))
    await prune(server.database, before_seq=3)
    status, body = await ask(server, "aggregate", {"window": HOUR, "bucket": QUARTER}, **MINE)
    assert (status, body["truncated"]) == (200, True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Window=0ns must be > 0"),
        (b"", "Window=0ns must be > 0"),
        ({"window": HOUR}, "Bucket=0ns must be > 0"),
        ({"window": HOUR, "bucket": 7 * 60 * 10**9}, "not evenly divisible"),
        ({"window": HOUR, "bucket": 1}, "10000 is the limit"),
        ({"window": 2**62, "bucket": 2**62}, "100 years"),
        (b'{"window": 3.6e12, "bucket": 1}', "failed to decode request body"),
        ({"window": "1h", "bucket": 1}, "failed to decode request body"),
        ({"window": 2**63, "bucket": 1}, "failed to decode request body"),
        ({"window": HOUR, "bucket": HOUR, "extra": 1}, "extra"),
        ({"window": HOUR, "bucket": HOUR, "anchor": "1700-01-01T00:00:00Z"}, "100 years"),
        (
            {
                "window": HOUR,
                "bucket": HOUR,
                "filter": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
            },
            "before since",
        ),
        (b'{"filter": "' + b"x" * 40_000 + b'"}', "failed to read request body"),
    ],
)
async def test_a_bad_window_is_refused(server: Server, body: Any, message: str) -> None:
    status, answer = await ask(server, "aggregate", body)
    assert (status, answer["code"]) == (400, "invalid_request")
    assert message in answer["message"]


# ── scope ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_key(tmp_path / "dev.key")[0]


@pytest.fixture
async def guarded(store_url: str, key: SigningKey, tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(settings_for(store_url, auth_jwks=str(jwks_path(tmp_path / "dev.key")))) as server:
        yield server


@pytest.mark.parametrize("method", ["list", "aggregate"])
async def test_looking_beyond_ones_session_needs_a_scope_and_is_audited_once(
    guarded: Server, key: SigningKey, method: str
) -> None:
    await guarded.journal.append([*drafts(1), *drafts(2, session="s2"), *drafts(4, user="bob"), *drafts(8, tenant="x")])
    window = {"window": HOUR, "bucket": HOUR} if method == "aggregate" else {}
    plain, admin = {"authorization": bearer(key)}, {"authorization": bearer(key, scopes=["console:fleet"])}

    async def seen(headers: dict[str, str], **wanted: list[str]) -> int:
        status, body = await ask(guarded, method, {"filter": wanted, **window}, **headers)
        if status != 200:
            assert (status, body["code"]) == (403, "identity_scope_required")
            return -1
        if method == "list":
            return len([event for event in body["events"] if event["type"] == "order.created"])
        return int(sum(bucket["counts"].get("order.created", 0) for bucket in body["buckets"]))

    assert await seen(plain) == 1
    assert await seen(plain, session_ids=["s1", "s1"], tenant_ids=["shop"]) == 1
    for axis, value in (("tenant_ids", "x"), ("user_ids", "bob"), ("session_ids", "s2")):
        assert await seen(plain, **{axis: [value]}) == -1
    assert (await guarded.journal.head()).global_seq == 15  # neither own reads nor refused ones are audited
    assert await seen(admin, session_ids=["s2"]) == 2
    assert await seen(admin, user_ids=["bob"]) == 4
    assert await seen(admin, tenant_ids=["x"]) == 8
    assert await seen(admin, tenant_ids=["x", "shop"]) == 15
    _, body = await ask(guarded, "list", {"filter": {"event_types": ["audit.admin_scope_used"]}}, **plain)
    assert [event["payload"]["Method"] for event in body["events"]] == [f"events.{method}"] * 4
    assert (await ask(guarded, method, {}))[0] == 401


@pytest.mark.parametrize("method", ["list", "aggregate"])
async def test_the_owner_of_an_open_server_sees_all_entries_and_is_audited_where_it_names_an_identity(
    server: Server, method: str
) -> None:
    await server.journal.append([*drafts(1), *drafts(2, tenant="x"), *drafts(4, user="bob"), *drafts(8, session="s2")])
    await server.journal.append(drafts(16, tenant="", user="", session=""))
    window = {"window": HOUR, "bucket": HOUR} if method == "aggregate" else {}

    async def seen(wanted: dict[str, list[str]], **headers: str) -> int:
        _, body = await ask(
            server, method, {"filter": {"event_types": ["order.created"]} | wanted, **window}, **headers
        )
        if method == "list":
            return len(body["events"])
        return int(sum(bucket["counts"].get("order.created", 0) for bucket in body["buckets"]))

    assert await seen({}) == 31
    assert await seen({"tenant_ids": [""]}) == 16
    assert (await server.journal.head()).global_seq == 31
    assert await seen({"tenant_ids": ["x"]}) == 2
    assert await seen({"user_ids": ["bob"]}) == 4
    assert await seen({"session_ids": ["s2"], "tenant_ids": ["shop"]}) == 8
    assert await seen({}, **MINE) == 1
    assert await seen({}, x_harbor_tenant="shop") == 0  # an identity is exact, also with an empty user and session
    assert (await server.journal.head()).global_seq == 31 + 3


async def test_the_handshake_lists_capabilities(server: Server) -> None:
    answer = await call(server.http_address, "POST", "/v1/control/runtime.info", {"identity": {}})
    facts = answer.json()
    assert answer.status == 200
    assert "events_subscribe" in facts["capabilities"]
    assert facts["protocol_version"] == "0.1.0"
    assert (await call(server.http_address, "POST", "/v1/control/runtime.info", b"{]")).status == 400
    assert (await call(server.http_address, "GET", "/v1/control/runtime.info")).headers["allow"] == "POST"


async def test_counts_may_be_split_by_tenant(server: Server) -> None:
    await server.journal.append([*drafts(2), *drafts(3, tenant="x")])
    request = {
        "filter": {"tenant_ids": ["shop", "x"], "event_types": ["order.created"]},
        "window": HOUR,
        "bucket": HOUR,
        "by_tenant": True,
    }
    _, body = await ask(server, "aggregate", request, **MINE)
    assert body["buckets"][0]["counts_by_tenant"] == {"shop": {"order.created": 2}, "x": {"order.created": 3}}
    assert json.dumps(body)


async def test_rollups_do_not_change_what_is_answered(server: Server) -> None:
    now = time.time_ns() // 1_000_000
    past: list[Past] = [
        (now - 26 * 3_600_000 + 31_000 * number, "order", verb, "shop", "ada", f"s{number % 5}")
        for number, verb in enumerate(["paid", "created"] * 1500)
    ]
    await write_past(server.database, past)
    until = to_time((now - 60_000) * 1_000_000)  # from here on others may write, too
    requests = [
        {
            "filter": {"tenant_ids": ["shop"], "until": until, **extra},
            "window": 24 * HOUR,
            "bucket": QUARTER,
            "anchor": "2026-01-01T00:00:00Z",
        }
        for extra in ({}, {"event_types": ["order.paid"]}, {"user_ids": ["ada"], "session_ids": ["s1"]})
    ]

    async def answers() -> list[Any]:
        found = []
        for request in requests:
            status, body = await ask(server, "aggregate", request, **MINE)
            assert status == 200
            found.append({bucket["bucket_start"]: bucket["counts"] for bucket in body["buckets"] if bucket["counts"]})
        return found

    before = await answers()
    await roll_up(server.database, past, 0, 2000)
    after = await answers()
    shared = [one.keys() & other.keys() for one, other in zip(before, after, strict=True)]
    assert all(len(keys) > 80 for keys in shared)
    for one, other, keys in zip(before, after, shared, strict=True):
        assert {key: one[key] for key in keys} == {key: other[key] for key in keys}
