"""`/api/taken` over HTTP."""

from __future__ import annotations

from typing import Any

from tape.server.server import Server
from tests.server.test_catalog import post
from tests.server.test_execute import shop
from tests.web import call

__all__ = ["shop"]

PATH = "subscriptions/orders"


def body(begin: int, end: int, *records: dict[str, Any]) -> dict[str, Any]:
    return {"subscription": PATH, "part": "orders:0", "begin": begin, "end": end, "records": list(records)}


def record(offset: int, path: str = "domain/ingest_order") -> dict[str, Any]:
    execution = {"path": path, "payload": {"order_id": "7"}, "subscription": PATH, "message_id": str(offset)}
    return {"offset": offset, "execution": execution}


async def test_an_offset_range_is_executed_once_up_to_a_rejected_record_and_a_dead_letter_passes_it(
    shop: Server,
) -> None:
    given = body(0, 4, record(1), record(2, "domain/nowhere"), record(3))
    done = (await post(shop, "/api/taken", given)).json()
    assert done["end"] == 2
    started, refused, held = done["results"]
    assert (started["offset"], started["status"], held["status"]) == (1, "started", "held")
    assert (refused["status"], refused["error"]) == ("refused", "Playbook not found: domain/nowhere")
    dead_letter = {"event_type": "subscription.message.dead_lettered", "context": {"message_id": "2"}}
    again = (
        await post(shop, "/api/taken", body(0, 4, record(1), {"offset": 2, "letter": dead_letter}, record(3)))
    ).json()
    assert [each["status"] for each in again["results"]] == ["taken", "told", "started"]
    shown = await call(shop.http_address, "GET", f"/api/taken?subscription={PATH}")
    assert shown.json() == {"parts": {"orders:0": [[0, 4]]}}


async def test_an_invalid_record_is_rejected_at_its_offset_with_the_reason(shop: Server) -> None:
    wrong = {"offset": 1, "execution": {"path": "domain/ingest_order", "pool": "x"}}
    done = (await post(shop, "/api/taken", body(0, 3, record(0), wrong, record(2)))).json()
    assert [each["status"] for each in done["results"]] == ["started", "refused", "held"]
    assert "unknown field `pool`" in done["results"][1]["error"]
    lifecycle = {"offset": 1, "letter": {"event_type": "subscription.paused"}}
    done = (await post(shop, "/api/taken", body(1, 2, lifecycle))).json()
    assert "event_type 'subscription.paused' is not accepted here" in done["results"][0]["error"]
    for bad, said in (
        (body(3, 2), "begin 3 and end 2"),
        (body(0, 9, *(record(offset) for offset in (5, 4))), "offset 4 is out of order"),
        ({"part": "p", "begin": 0, "end": 1}, "missing required field `subscription`"),
        (body(0, 2000, *(record(offset) for offset in range(1001))), "1001 records exceed the 1000"),
    ):
        answer = await post(shop, "/api/taken", bad)
        assert (answer.status, said in answer.json()["error"]) == (422, True), answer.json()
    assert (await call(shop.http_address, "GET", "/api/taken")).status == 422
