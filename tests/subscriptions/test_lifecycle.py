"""The states of a subscription: legal actions, and their events."""

from __future__ import annotations

import msgspec
import pytest

from tape.documents.document import Document
from tape.engine import catalog
from tape.errors import IllegalAction, NotASubscription, UnknownSubscription
from tape.store import Database, open_database
from tape.subscriptions import lifecycle
from tape.subscriptions.lifecycle import ACTIONS, Registration, SubscriptionState
from tests.subscriptions.documents import NATS

PATH = "subscriptions/orders"


async def put(database: Database, text: str = NATS) -> None:
    await database.write(lambda tx: catalog.register(tx, Document(text)))


async def register(database: Database) -> Registration:
    return await database.write(lambda tx: lifecycle.register(tx, PATH))


async def act(database: Database, subscription_id: int, *actions: str) -> Registration:
    for action in actions:
        last = await database.write(lambda tx, action=action: lifecycle.act(tx, subscription_id, action))
    return last


ILLEGAL = {
    "activate": {"DRAINING"},
    "pause": {"REGISTERED", "DRAINING", "DEACTIVATED"},
    "resume": {"REGISTERED", "DRAINING", "DEACTIVATED"},
    "drain": {"REGISTERED", "DEACTIVATED"},
    "deactivate": set(),
}
WAYS = {
    SubscriptionState.REGISTERED: (),
    SubscriptionState.ACTIVE: ("activate",),
    SubscriptionState.PAUSED: ("activate", "pause"),
    SubscriptionState.DRAINING: ("activate", "drain"),
    SubscriptionState.DEACTIVATED: ("deactivate",),
}


async def test_every_action_is_legal_from_exactly_the_states_it_should_be() -> None:
    async with open_database("memory") as database:
        await put(database)
        for state in SubscriptionState:
            for action in ACTIONS:
                made = await register(database)
                if WAYS[state]:
                    made = await act(database, made.subscription_id, *WAYS[state])
                assert made.state == state
                await check(database, made, action)
                await act(database, made.subscription_id, "deactivate")


async def check(database: Database, made: Registration, action: str) -> None:
    wanted = ACTIONS[action]
    if made.state not in ILLEGAL[action]:
        after = await act(database, made.subscription_id, action)
        assert (after.state, after.last_event_type) == (wanted.state, f"subscription.{wanted.verb}")
        return
    with pytest.raises(IllegalAction) as raised:
        await act(database, made.subscription_id, action)
    allowed = ", ".join(f'"{each}"' for each in wanted.legal_from)
    assert str(raised.value) == (f"Cannot '{action}' a subscription in state '{made.state}' (allowed from [{allowed}])")


async def test_registering_again_gives_the_one_that_is_alive(database: Database) -> None:
    await put(database)
    first = await register(database)
    await act(database, first.subscription_id, "activate")
    again = await register(database)
    assert (again.subscription_id, again.state) == (first.subscription_id, "ACTIVE")
    await act(database, first.subscription_id, "deactivate")
    successor = await register(database)
    assert successor.subscription_id > first.subscription_id
    assert successor.state == "REGISTERED"
    with pytest.raises(IllegalAction, match=f"registered anew as {successor.subscription_id}"):
        await act(database, first.subscription_id, "activate")


async def test_a_deactivated_one_without_a_successor_comes_back(database: Database) -> None:
    await put(database)
    made = await register(database)
    assert (await act(database, made.subscription_id, "deactivate", "activate")).state == "ACTIVE"


async def test_only_what_the_catalog_has_as_a_subscription_is_registered(database: Database) -> None:
    with pytest.raises(UnknownSubscription, match="Subscription not found: subscriptions/orders"):
        await register(database)
    await put(database, "kind: Playbook\nmetadata: {path: subscriptions/orders}\nworkflow: []\n")
    with pytest.raises(
        NotASubscription, match="Catalog entry 'subscriptions/orders' is kind 'playbook', not 'subscription'"
    ):
        await register(database)
    with pytest.raises(UnknownSubscription, match="Subscription 7 not registered"):
        await act(database, 7, "activate")


async def test_the_state_is_what_the_last_event_on_the_journal_says(database: Database) -> None:
    await put(database)
    for actions in (("activate",), ("activate", "pause", "resume"), ("activate", "drain", "deactivate")):
        made = await register(database)
        made = await act(database, made.subscription_id, *actions)
        row = await database.read(
            lambda reader, run=str(made.subscription_id): reader.one(
                "SELECT subject, payload_json FROM tape_journal WHERE run_id = ? ORDER BY seq DESC LIMIT 1", run
            )
        )
        assert row is not None
        payload = msgspec.json.decode(row[1])
        assert row[0] == f"/tape/subscription/{made.last_event_type.removeprefix('subscription.')}/orders"
        assert (payload["status"], payload["path"], payload["catalog_id"]) == (made.state, PATH, str(made.catalog_id))
        stored = await database.read(lambda reader, made=made: lifecycle.find(reader, made.subscription_id))
        assert stored == made


async def test_lists_are_pages_newest_first(database: Database) -> None:
    await put(database)
    for _ in range(3):
        made = await register(database)
        await act(database, made.subscription_id, "deactivate")
    found = await database.read(lambda reader: lifecycle.list_registrations(reader, path=PATH, limit=2))
    assert [each.subscription_id for each in found] == sorted((each.subscription_id for each in found), reverse=True)
    rest = await database.read(lambda reader: lifecycle.list_registrations(reader, before=found[-1].subscription_id))
    assert len(found) + len(rest) == 3
    assert msgspec.structs.asdict(found[0])["path"] == PATH


async def test_the_activated_registration_of_a_path_is_the_live_one_else_the_newest_deactivated(
    database: Database,
) -> None:
    async def activated() -> Registration | None:
        paths = await database.read(lifecycle.list_activated_paths)
        found = await database.read(lambda reader: lifecycle.find_activated(reader, PATH))
        assert paths == ({PATH} if found else set())
        return found

    await put(database)
    assert await activated() is None
    first = await register(database)
    assert await activated() is None
    for action in ("activate", "pause", "drain", "deactivate"):
        assert await act(database, first.subscription_id, action) == await activated()
    second = await register(database)
    found = await activated()
    assert found is not None
    assert found.subscription_id == first.subscription_id
    gone = await act(database, second.subscription_id, "deactivate")
    assert await activated() == gone
    revived = await act(database, first.subscription_id, "activate")
    assert await activated() == revived


async def test_questions_by_path_use_an_index(sqlite_url: str) -> None:
    question = "EXPLAIN QUERY PLAN SELECT * FROM tape_subscriptions WHERE path = ? AND state <> 'DEACTIVATED'"
    async with open_database(sqlite_url) as database:
        plan = await database.read(lambda reader: reader.query(question, PATH))
    assert "tape_subscriptions_live" in str(plan)
