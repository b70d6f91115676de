"""`/api/execute` and `/api/execute/batch` over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.engine.reactions import matcher
from tape.server.server import Server
from tests.conftest import settings_for
from tests.server.test_catalog import GOOD, post
from tests.web import call


@pytest.fixture
async def shop(server: Server) -> Server:
    """A server with one playbook."""
    assert (await post(server, "/api/catalog/register", {"content": GOOD})).status == 200
    return server


async def test_one_execution_and_its_duplicate(shop: Server) -> None:
    wanted = {"path": "domain/ingest_order", "workload": {"order_id": "7"}, "dedup": {"key": "k"}}
    started = await post(shop, "/api/execute", wanted)
    again = await post(shop, "/api/execute", wanted)
    execution_id = started.json()["execution_id"]
    assert started.json() == {"execution_id": execution_id, "status": "started", "commands_generated": 1}
    assert again.json() == {"execution_id": execution_id, "status": "duplicate", "commands_generated": 0}
    shown = await call(shop.http_address, "GET", f"/api/executions/{execution_id}")
    assert (shown.status, shown.json()["status"], shown.json()["path"]) == (200, "RUNNABLE", "domain/ingest_order")
    assert (await call(shop.http_address, "GET", "/api/executions/5")).status == 404


async def test_a_batch_has_a_result_for_each_and_the_metrics_count_them(shop: Server) -> None:
    good = {"path": "domain/ingest_order", "payload": {"order_id": "7"}, "dedup": {"key": "k", "window_secs": 60}}
    items = [good, good, {"path": "nope"}, {"path": 5}, {"path": "domain/ingest_order", "pool": "x"}]
    done = await post(shop, "/api/execute/batch", {"executions": items})
    answer = done.json()
    execution_id = answer["results"][0]["execution_id"]
    assert (done.status, answer["count"], answer["started"], answer["duplicates"], answer["failed"]) == (
        200,
        5,
        1,
        1,
        3,
    )
    assert answer["results"][:3] == [
        {"index": 0, "execution_id": execution_id, "status": "started", "commands_generated": 1},
        {"index": 1, "execution_id": execution_id, "status": "duplicate", "commands_generated": 0},
        {
            "index": 2,
            "status": "error",
            "commands_generated": 0,
            "error": "Resource not found: Playbook not found: nope",
            "code": "TAPE-2103",
        },
    ]
    assert answer["results"][3]["error"].startswith("Validation error: the request cannot be decoded")
    assert "unknown field `pool`" in answer["results"][4]["error"]
    metrics = (await call(shop.http_address, "GET", "/metrics")).body.decode()
    assert 'tape_execute_outcomes_total{entry="batch",outcome="new"} 1.0' in metrics
    assert 'tape_execute_outcomes_total{entry="batch",outcome="error"} 3.0' in metrics
    assert 'tape_execute_batch_size_bucket{le="5.0"} 1.0' in metrics


async def test_after_a_failure_the_rest_of_its_lane_is_skipped_and_no_other_lane(shop: Server) -> None:
    def item(n: int, lane: str, **fields: Any) -> dict[str, Any]:
        return {"path": "domain/ingest_order", "payload": {"order_id": str(n)}, "lane": lane} | fields

    items = [
        item(0, "a"),
        item(1, "b", path="nope"),
        item(2, "a", execution_pool="no pool!"),
        item(3, "b"),
        item(4, "c"),
        item(5, "a"),
        item(6, ""),
    ]
    answer = (await post(shop, "/api/execute/batch", {"executions": items})).json()
    assert [each["status"] for each in answer["results"]] == [
        "started",
        "error",
        "error",
        "skipped",
        "started",
        "skipped",
        "started",
    ]
    assert (answer["started"], answer["failed"], answer["skipped"]) == (3, 2, 2)
    assert "an execution before it in lane 'b' failed" in answer["results"][3]["error"]
    ids = [int(each["execution_id"]) for each in answer["results"] if each["status"] == "started"]
    assert ids == sorted(ids)
    metrics = (await call(shop.http_address, "GET", "/metrics")).body.decode()
    assert 'tape_execute_outcomes_total{entry="batch",outcome="skipped"} 2.0' in metrics


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("execute", {}, 422, "Either 'path' or 'catalog_id' must be provided"),
        ("execute", {"path": "nope"}, 404, "Playbook not found: nope"),
        ("execute", {"path": "domain/ingest_order"}, 422, "payload: order_id is missing; send a string"),
        ("execute", {"path": "x", "lane": "a"}, 422, "lane 'a' keeps an order within a batch"),
        ("execute", b"nonsense", 400, "the request is not JSON"),
        ("execute", b"[" * 3_000_000, 413, "more than 2097152 bytes"),
        ("execute/batch", {"executions": []}, 422, "execute batch requires a non-empty 'executions' array"),
        ("execute/batch", {"executions": [{}] * 1001}, 422, "execute batch size 1001 exceeds the 1000 cap"),
    ],
)
async def test_invalid_input_is_named(shop: Server, path: str, body: Any, status: int, reason: str) -> None:
    refused = await post(shop, f"/api/{path}", body, content_type="application/json")
    assert (refused.status, refused.json()["status"]) == (status, status)
    assert reason in refused.json()["error"]


async def test_many_at_once_are_written_together(shop: Server) -> None:
    wanted = {"path": "domain/ingest_order", "payload": {"order_id": "7"}}
    answers = await asyncio.gather(*(post(shop, "/api/execute", wanted) for _ in range(50)))
    assert len({each.json()["execution_id"] for each in answers}) == 50
    everything = [{**wanted, "dedup": {"key": str(number)}} for number in range(1_000)]
    first = (await post(shop, "/api/execute/batch", {"executions": everything})).json()
    again = (await post(shop, "/api/execute/batch", {"executions": everything})).json()
    assert (first["started"], again["duplicates"]) == (1_000, 1_000)


async def test_a_pool_reports_pending_tasks(shop: Server) -> None:
    unknown = await call(shop.http_address, "GET", "/api/pools/missing")
    assert unknown.json() == {"pool": "missing", "waiting": 0, "claimed": 0, "backlog": 0, "dead": 0, "oldest_ms": 0}
    wanted = {"path": "domain/ingest_order", "workload": {"order_id": "7"}, "execution_pool": "iot"}
    for _ in range(3):
        await post(shop, "/api/execute", wanted)
    async with asyncio.timeout(120):
        while (await call(shop.http_address, "GET", "/api/pools/iot")).json()["waiting"] < 3:
            await asyncio.sleep(0.02)
    await claimed(shop, "iot", 3)
    pool = (await call(shop.http_address, "GET", "/api/pools/iot")).json()
    assert pool["backlog"] == pool["waiting"] + pool["claimed"] == 3, "a pool with running tasks is not scaled to zero"


async def test_runs_that_wait_for_their_turn_are_no_backlog_for_more_workers(shop: Server) -> None:
    wanted = {"path": "domain/ingest_order", "payload": {"order_id": "7"}, "execution_pool": "turns"}
    for _ in range(3):
        await post(shop, "/api/execute", {**wanted, "ordering_key": "customer 1"})
    async with asyncio.timeout(120):
        while (pool := (await call(shop.http_address, "GET", "/api/pools/turns")).json())["waiting"] < 3:
            await asyncio.sleep(0.02)
    assert pool["backlog"] == 1


async def claimed(server: Server, pool: str, count: int = 1) -> None:
    """Wait until executions of a pool are tasks that can be claimed."""
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client, asyncio.timeout(120):
        while count:
            answer = await client.claim_tasks(reaction_id=f"pool:{pool}", owner="me", lease_ms=60_000, max=100)
            count -= len(answer.tasks)
            await asyncio.sleep(0.01)


async def execute(server: Server, pool: str) -> None:
    wanted = {"path": "domain/ingest_order", "payload": {"order_id": "7"}, "execution_pool": pool}
    assert (await post(server, "/api/execute", wanted)).status == 200


async def test_the_first_execution_of_a_pool_becomes_a_task_although_no_matcher_polls_the_registry(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "REGISTRY_POLL_S", 3_600.0)
    monkeypatch.setattr(matcher, "LEASE_RENEWAL_S", 3_600.0)
    silent = settings_for(store_url, match_reactions=False)
    async with Server(settings_for(store_url)) as server, Server(silent) as other:
        assert (await post(server, "/api/catalog/register", {"content": GOOD})).status == 200
        await execute(server, "first")  # the first reaction of all
        await claimed(other, "first")
        await execute(other, "second")
        await claimed(server, "second")
        await execute(server, "second")
        await claimed(server, "second")
