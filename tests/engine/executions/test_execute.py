"""Executing: requests become runs and commands in one transaction; duplicates and failures are contained."""

from __future__ import annotations

from typing import Any

import pytest

import tape.engine.executions.execute as execute_module
from tape.base.clock import now_ms
from tape.documents.document import Document
from tape.engine import catalog
from tape.engine.executions.dedup import forget_claims
from tape.engine.executions.execute import Attached, Dedup, ExecuteRequest, checked_request, execute, execute_batch
from tape.engine.ledgers import runs
from tape.engine.reactions import registry
from tape.errors import InvalidInput, InvalidPayload, NotAPlaybook, PlaybookNotFound, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.model.entry import COLUMNS, Entry
from tape.model.event_types import EVENTS
from tape.model.ledger_states import RunStatus
from tape.playbooks import pools
from tape.store import Database, Transaction

PLAYBOOK = """\
kind: Playbook
metadata: {path: %s}
inputs: {order_id: {type: string, required: false}, count: {type: integer, default: 1}}
workflow:
  - step: greet
    tool: {kind: value, value: "{{ count }}"}
"""
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
async def shop(database: Database) -> Database:
    """A database with playbooks and a subscription in its catalog."""

    def register(tx: Transaction) -> None:
        for path in ("domain/order", "system/clean", "subscription/drain"):
            catalog.register(tx, Document(PLAYBOOK % path))
        catalog.register(tx, Document("kind: Subscription\nmetadata: {path: subscriptions/orders}"))

    await database.write(register)
    return database


def request(path: str = "domain/order", **fields: Any) -> ExecuteRequest:
    return checked_request(ExecuteRequest(path=path, **fields))


async def run_batch(database: Database, *requests: ExecuteRequest) -> list[RunDispatchResult | TapeError]:
    return await database.write(lambda tx: execute_batch(tx, requests))


async def start(database: Database, wanted: ExecuteRequest) -> RunDispatchResult:
    return await database.write(lambda tx: execute(tx, wanted))


async def entries_of(database: Database, run_id: str) -> list[tuple[str, dict[str, Any], str]]:
    sql = f"SELECT {', '.join(COLUMNS)} FROM tape_journal WHERE run_id = ? ORDER BY seq"
    found = [Entry(*row) for row in await database.read(lambda reader: reader.query(sql, run_id))]
    return [(each.subject, each.payload, each.trace_id) for each in found]


async def test_an_execution_is_a_run_and_a_command_to_its_pool(shop: Database) -> None:
    done = await start(
        shop,
        request(
            payload={"order_id": "7"},
            trace=TRACE,
            parent_execution_id="41",
            subscription="orders",
            message_id="m-1",
            events=(Attached("/tape/subscription/message.directives_applied/orders", {"applied": []}),),
        ),
    )
    assert done.outcome == "started"
    run = await shop.read(lambda reader: runs.get(reader, done.run_id))
    assert (run.status, run.app_name, run.agent_id) == (RunStatus.RUNNABLE, "playbooks", "domain/order")
    assert run.labels["tape.pool"] == "shared"
    assert run.app_name == pools.APP
    first, command, event = await entries_of(shop, done.run_id)
    assert first[0].startswith("/tape/run/running/playbooks/")
    assert command[0] == f"/tape/command/issued/shared/{done.run_id}"
    assert command[1] == {
        "execution_id": done.run_id,
        "path": "domain/order",
        "version": 1,
        "catalog_id": "1",
        "pool": "shared",
        "parent_execution_id": "41",
        "subscription": "orders",
        "message_id": "m-1",
        "trace": TRACE,
        "payload": {"order_id": "7"},
    }
    known = next(each for each in EVENTS if each.name == "command.issued")
    assert set(command[1]) <= set(known.fields)
    assert event[1] == {"applied": [], "execution_id": done.run_id}
    assert {each[2] for each in (first, command, event)} == {"0af7651916cd43dd8448eb211c80319c"}
    assert await shop.read(lambda reader: runs.list_recoverable(reader)) == []


async def test_the_pool_is_what_was_asked_for_else_what_the_path_says(shop: Database) -> None:
    pools = []
    for wanted in (
        request(),
        request("system/clean"),
        request("subscription/drain"),
        request(execution_pool="iot"),
        request(execution_pool="iot"),
    ):
        done = await start(shop, wanted)
        run = await shop.read(lambda reader, run_id=done.run_id: runs.get(reader, run_id))
        pools.append(run.labels["tape.pool"])
    assert pools == ["shared", "system", "subscription", "iot", "iot"]
    found = await shop.read(lambda reader: registry.list_registered(reader))
    assert sorted(each.reaction_id for each in found) == ["pool:iot", "pool:shared", "pool:subscription", "pool:system"]


async def test_a_batch_keeps_its_order_and_contains_its_failures(shop: Database) -> None:
    key = Dedup("order-1")
    results = await run_batch(
        shop,
        request(dedup=key),
        request(dedup=key),
        request("nope"),
        request("subscriptions/orders"),
        request(payload={"order_id": 5, "count": "many"}),
        request(catalog_id="1", path=""),
        request(events=(Attached("nonsense"),)),
        request(dedup=Dedup("order-2"), execution_pool="iot"),
    )
    started = results[0]
    assert isinstance(started, RunDispatchResult)
    assert results[1] == RunDispatchResult("duplicate", started.execution_id)
    assert [type(each) for each in results[2:5]] == [PlaybookNotFound, NotAPlaybook, InvalidPayload]
    assert str(results[4]) == ('payload: order_id is 5; it must be a string; count is "many"; it must be an integer.')
    assert isinstance(results[6], InvalidInput)
    assert [each.outcome for each in (results[5], results[7]) if isinstance(each, RunDispatchResult)] == [
        "started",
        "started",
    ]
    rows = await shop.read(lambda reader: reader.query("SELECT count(*) FROM tape_runs"))
    assert rows == [(3,)]


async def test_a_message_with_a_bad_payload_becomes_a_run_all_the_same(shop: Database) -> None:
    assert (await start(shop, request(payload={"count": "many"}, subscription="orders"))).outcome == "started"


async def test_a_duplicate_is_the_first_run_and_leaves_an_audit_entry(shop: Database) -> None:
    first = await start(shop, request(dedup=Dedup("k"), subscription="orders"))
    again = await start(shop, request("no/such/playbook", dedup=Dedup("k"), subscription="orders"))
    assert again == RunDispatchResult("duplicate", first.execution_id)
    audit = (await entries_of(shop, first.run_id))[-1]
    assert audit[0] == "/tape/subscription/message.deduplicated/orders"
    assert (audit[1]["dedup_key"], audit[1]["original_execution_id"]) == ("k", first.run_id)
    assert int(audit[1]["suppressed_execution_id"]) > int(first.run_id)  # the id of the run that it did not become


async def test_dedup_keys_are_per_subscription_or_parent_and_for_their_window(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = [{"subscription": "a"}, {"subscription": "b"}, {"parent_execution_id": 5}, {}]
    results = await run_batch(shop, *(request(dedup=Dedup("k", 60), **scope) for scope in scopes))
    assert [each.outcome for each in results if isinstance(each, RunDispatchResult)] == ["started"] * 4
    later = now_ms() + 61_000
    monkeypatch.setattr(execute_module, "now_ms", lambda: later)
    fresh = await start(shop, request(dedup=Dedup("k", 60)))
    assert fresh.outcome == "started"
    assert await start(shop, request(dedup=Dedup("k", 60))) == RunDispatchResult("duplicate", fresh.execution_id)
    assert (await start(shop, request(dedup=Dedup("k", 600), subscription="a"))).outcome == "duplicate"
    assert await shop.write(lambda tx: forget_claims(tx, later)) == 3


async def test_a_failed_start_does_not_claim_its_key(shop: Database) -> None:
    with pytest.raises(PlaybookNotFound):
        await start(shop, request("nope", dedup=Dedup("k")))
    assert (await start(shop, request(dedup=Dedup("k")))).outcome == "started"


async def test_an_id_that_another_process_has_used_is_not_used_again(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter([7, 7, 7, 8])
    monkeypatch.setattr(execute_module, "new_id", lambda: next(ids))
    assert [(await start(shop, request())).execution_id for _ in range(2)] == [7, 8]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"path": ""}, "Either 'path' or 'catalog_id' must be provided"),
        ({"execution_pool": "No Such"}, "execution_pool 'No Such' must be"),
        ({"dedup": Dedup("", 5)}, "dedup needs a key"),
        ({"dedup": Dedup("k", 0)}, "window_secs of at least 1"),
        ({"catalog_id": "x"}, "catalog_id 'x' must be a whole number"),
        ({"parent_execution_id": "-1"}, "parent_execution_id '-1' must be a whole number"),
        ({"payload": {}, "workload": {}}, "payload and workload are the same"),
        ({"payload": {"x": "y" * (1 << 20)}}, "this server takes 1048576 at most"),
        ({"message_id": "a\0b"}, "NUL"),
    ],
)
def test_nonsense_in_a_request_is_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        checked_request(ExecuteRequest(**{"path": "domain/order", **fields}))
