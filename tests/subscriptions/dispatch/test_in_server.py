"""Plans that become runs in the server's own process: in lanes, on both databases."""

from __future__ import annotations

import pytest

from tape.documents.document import Document
from tape.engine import catalog
from tape.journal.journal import Journal
from tape.model.entry import MAX_PAYLOAD_BYTES
from tape.store import Database
from tape.subscriptions.dispatch.in_server import WriterDispatch
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.routing import Plan

PLAYBOOK = "kind: Playbook\nmetadata: {path: p}\nworkflow: [{step: keep, tool: {kind: value, value: 1}}]\n"


@pytest.fixture
async def shop(database: Database) -> Database:
    await database.write(lambda tx: catalog.register(tx, Document(PLAYBOOK)))
    return database


def plan(name: str, playbook: str = "p", pool: str = "") -> Plan:
    return Plan(subscription="s", source="nats", message_id=name, playbook=playbook, pool=pool, payload={"n": name})


async def test_each_lane_goes_as_far_as_it_can_and_in_its_order(shop: Database, journal: Journal) -> None:
    dispatch = WriterDispatch(shop, SubscriptionRef("s", "s", 5), MAX_PAYLOAD_BYTES)
    plans = [
        plan("a0"),
        plan("b0"),
        plan("a1"),
        plan("b1", "nope"),
        plan("a2"),
        plan("b2"),
        plan("c0", pool="no pool!"),
        plan("c1"),
    ]
    answers = await dispatch.in_lanes(plans, [each.message_id[0] for each in plans])
    assert [answer.outcome for answer in answers] == [
        "started",
        "started",
        "started",
        "misconfigured",
        "started",
        "skipped",
        "rejected",
        "skipped",
    ]
    found = await shop.read(lambda reader: reader.query("SELECT subject FROM tape_journal ORDER BY global_seq"))
    begun = [subject.rpartition("/")[2] for (subject,) in found if subject.startswith("/tape/command/")]
    assert begun == [str(answer.execution_id) for answer in answers if answer.has_run]


async def test_an_unavailable_database_is_reported_once_per_lane(shop: Database) -> None:
    dispatch = WriterDispatch(shop, SubscriptionRef("s", "s", 5), MAX_PAYLOAD_BYTES)
    await shop.close()
    answers = await dispatch.in_lanes([plan("a0"), plan("b0"), plan("a1")], ["a", "b", "a"])
    assert [answer.outcome for answer in answers] == ["unavailable", "unavailable", "skipped"]
