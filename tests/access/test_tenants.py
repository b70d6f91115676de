"""Two tenants on one server: each has its own runs, values and sessions, and cannot learn of the other's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import NotFound, ScopeRequired, SessionExists, TapeError
from tape.journal.history import EntryFilter
from tape.journal.reader import Selection
from tape.model.pattern import Pattern
from tape.server.server import Server
from tape.store import Transaction, migrations, open_database


class Tenants(NamedTuple):
    """A client of each of two tenants, with the scope `service`."""

    ours: AsyncTapeClient
    theirs: AsyncTapeClient


@pytest.fixture
async def tenants(store_url: str, tmp_path: Path) -> AsyncIterator[Tenants]:
    key, _ = load_key(tmp_path / "dev.key")
    settings = Settings(
        store=store_url,
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(tmp_path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))
        clients = []
        for tenant in ("ours", "theirs"):
            token = key.mint(tenant=tenant, user="u", session="s", scopes=["service"])
            client = AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token)
            clients.append(await stack.enter_async_context(client))
        yield Tenants(*clients)


IDS = {"app_name": "shop", "user_id": "u", "session_id": "s", "invocation_id": "i"}
FORGED = "00000000-0000-0000-0000-000000000000"


async def test_the_same_invocation_of_two_tenants_is_two_runs(tenants: Tenants) -> None:
    mine = await tenants.ours.begin_run(**IDS)
    other = await tenants.theirs.begin_run(**IDS)
    assert mine.run_id != other.run_id
    assert not other.resumed
    assert (await tenants.ours.begin_run(**IDS)).run_id == mine.run_id
    assert (await tenants.ours.get_run(run_id=mine.run_id)).tenant_id == "ours"


async def test_a_run_cannot_be_begun_for_another_tenant(tenants: Tenants) -> None:
    with pytest.raises(ScopeRequired, match="tenant 'theirs' is not the caller's"):
        await tenants.ours.begin_run(**IDS, tenant_id="theirs")


CALLS: dict[str, Callable[[AsyncTapeClient, str], Awaitable[Any]]] = {
    "get_run": lambda client, run: client.get_run(run_id=run),
    "resume_run": lambda client, run: client.resume_run(run_id=run, lease_owner="me"),
    "end_run": lambda client, run: client.end_run(run_id=run),
    "record_decision": lambda client, run: client.record_decision(run_id=run, decision_index=1, model="m"),
    "get_decision": lambda client, run: client.get_decision(run_id=run, decision_index=0),
    "begin_effect": lambda client, run: client.begin_effect(
        run_id=run, decision_index=0, tool_name="t", custom_key="k2"
    ),
    "complete_effect": lambda client, run: client.complete_effect(run_id=run, idempotency_key="k", status=2),
    "get_effect": lambda client, run: client.get_effect(run_id=run, idempotency_key="k"),
    "set_budget": lambda client, run: client.set_budget(run_id=run, usd_cap=1.0),
    "charge_budget": lambda client, run: client.charge_budget(run_id=run, usd=1.0),
    "await_signal": lambda client, run: client.await_signal(run_id=run, gate_name="g"),
    "send_signal": lambda client, run: client.send_signal(run_id=run, gate_name="g"),
    "set_timer": lambda client, run: client.set_timer(run_id=run, fire_at_ms=1, kind="k"),
    "cancel_timer": lambda client, run: client.cancel_timer(run_id=run, timer_id="t"),
    "list_obligations": lambda client, run: client.list_obligations(run_id=run),
    "compact_run": lambda client, run: client.compact_run(run_id=run),
    "register_compensation": lambda client, run: client.register_compensation(run_id=run, effect_key="k", kind="undo"),
    "subscribe_run": lambda client, run: anext(client.subscribe_run(run_id=run)),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_foreign_run_is_answered_like_one_that_does_not_exist(tenants: Tenants, call: str) -> None:
    run = (await tenants.theirs.begin_run(**IDS)).run_id
    await tenants.theirs.record_decision(run_id=run, decision_index=0, model="m", response_json='"secret"')
    await tenants.theirs.begin_effect(run_id=run, decision_index=0, tool_name="t", custom_key="k")
    await tenants.theirs.set_timer(run_id=run, timer_id="t", fire_at_ms=1, kind="k")
    head = (await tenants.theirs.head()).global_seq

    foreign, unknown = [await outcome(CALLS[call], tenants.ours, each) for each in (run, FORGED)]

    assert foreign.replace(run, "RUN") == unknown.replace(FORGED, "RUN")
    assert "secret" not in foreign
    assert (await tenants.theirs.head()).global_seq == head


async def outcome(call: Callable[[AsyncTapeClient, str], Awaitable[Any]], client: AsyncTapeClient, run: str) -> str:
    try:
        return repr(await call(client, run))
    except TapeError as error:
        return f"{error.code} {error}"


async def test_lists_show_a_tenant_its_own_alone(tenants: Tenants) -> None:
    run = (await tenants.theirs.begin_run(**IDS, lease_ttl_ms=1)).run_id
    await tenants.theirs.begin_effect(run_id=run, decision_index=0, tool_name="t", custom_key="k")
    await tenants.theirs.set_timer(run_id=run, timer_id="t", fire_at_ms=1, kind="k")
    for client, count in ((tenants.ours, 0), (tenants.theirs, 1)):
        assert len((await client.list_runs()).runs) == count
        assert len((await client.list_runs(app_name="shop")).runs) == count
        assert len((await client.list_pending_effects()).effects) == count
    assert not (await tenants.ours.list_due_timers(claim=True)).timers
    assert len((await tenants.theirs.list_due_timers(claim=True)).timers) == 1
    with pytest.raises(NotFound):
        await tenants.ours.send_signal(app_name="shop", user_id="u", session_id="s", gate_name="g")


async def test_a_value_of_one_tenant_is_not_there_for_another(tenants: Tenants) -> None:
    await tenants.theirs.write_value(namespace="n", key="k", value_json='"theirs"')
    assert not (await tenants.ours.get_value(namespace="n", key="k")).found
    assert (await tenants.ours.write_value(namespace="n", key="k", value_json='"ours"', if_version=0)).version == 1
    watched = await anext(tenants.theirs.watch_value(namespace="n", key="k"))
    assert watched.value.value_json == '"theirs"'
    await tenants.ours.delete_value(namespace="n", key="k")
    assert (await tenants.theirs.get_value(namespace="n", key="k")).value.value_json == '"theirs"'


async def test_a_business_key_of_one_tenant_does_not_answer_another(tenants: Tenants) -> None:
    keys = {
        "tool_name": "pay",
        "decision_index": 0,
        "custom_key": "k",
        "business_key": "invoice-1",
        "connector": "bank",
    }
    for client in tenants:
        run = (await client.begin_run(**IDS)).run_id
        assert not (await client.begin_effect(run_id=run, **keys)).existing


async def test_streams_carry_a_tenants_own_entries_alone(tenants: Tenants) -> None:
    await tenants.theirs.append("/tape/order/paid/theirs")
    await tenants.ours.append("/tape/order/paid/ours")
    entry = await anext(tenants.ours.follow("/tape/order/**"))
    assert entry.subject == "/tape/order/paid/ours"
    event = await anext(tenants.ours.subscribe_by_subject(subject_pattern="/tape/order/**"))
    assert event.subject == "/tape/order/paid/ours"


SESSION = {"app_name": "shop", "user_id": "u", "session_id": "s"}


async def test_two_tenants_create_the_same_session_id(tenants: Tenants) -> None:
    for client, name in zip(tenants, Tenants._fields, strict=True):
        await client.create_session(**SESSION, state_json=json.dumps({"of": name}), if_absent=True)
        with pytest.raises(SessionExists):
            await client.create_session(**SESSION, if_absent=True)
    for client, name in zip(tenants, Tenants._fields, strict=True):
        assert json.loads((await client.get_session(**SESSION)).session.state_json) == {"of": name}


SESSION_CALLS: dict[str, Callable[[AsyncTapeClient, str], Awaitable[Any]]] = {
    "get_session": lambda client, user: client.get_session(**SESSION | {"user_id": user}),
    "list_sessions": lambda client, user: client.list_sessions(app_name="shop", user_id=user),
    "list_sessions of the app": lambda client, user: client.list_sessions(app_name="shop"),
    "delete_session": lambda client, user: client.delete_session(**SESSION | {"user_id": user}),
}


@pytest.mark.parametrize("call", SESSION_CALLS)
async def test_a_foreign_session_is_answered_like_one_that_does_not_exist(tenants: Tenants, call: str) -> None:
    await tenants.theirs.append_event(**SESSION, event={"id": "e", "author": "secret"}, state_delta_json='{"a": 1}')
    before = await tenants.theirs.get_session(**SESSION)

    foreign, unknown = [await outcome(SESSION_CALLS[call], tenants.ours, user) for user in ("u", "nobody")]

    assert foreign == unknown
    assert "secret" not in foreign
    assert await tenants.theirs.get_session(**SESSION) == before


async def test_an_event_is_appended_to_the_session_of_its_own_tenant(tenants: Tenants) -> None:
    for client, name in zip(tenants, Tenants._fields, strict=True):
        for number in range(2):
            appended = await client.append_event(
                **SESSION, event={"id": f"e{number}", "author": name}, state_delta_json=json.dumps({name: number})
            )
            assert appended.event.author == name
    for client, name in zip(tenants, Tenants._fields, strict=True):
        session = (await client.get_session(**SESSION)).session
        assert [(event.id, event.author) for event in session.events] == [("e0", name), ("e1", name)]
        assert json.loads(session.state_json) == {name: 1}
        entry = await anext(client.follow("/tape/event/**"))
        assert (entry.tenant, entry.payload["author"]) == (name, name)
    assert (await tenants.ours.delete_session(**SESSION)).deleted
    assert len((await tenants.theirs.get_session(**SESSION)).session.events) == 2


async def test_sessions_of_two_tenants_share_no_state(tenants: Tenants) -> None:
    await tenants.theirs.create_session(**SESSION, state_json='{"app:a": "theirs", "user:u": "theirs"}')
    await tenants.ours.create_session(**SESSION, state_json='{"app:a": "ours"}')
    assert json.loads((await tenants.ours.get_session(**SESSION)).session.state_json) == {"app:a": "ours"}
    await tenants.ours.append_event(
        **SESSION, event={"author": "a"}, state_delta_json='{"app:a": null, "user:u": null}'
    )
    (listed,) = (await tenants.theirs.list_sessions(app_name="shop")).sessions
    assert json.loads(listed.state_json) == {"app:a": "theirs", "user:u": "theirs"}


async def test_sessions_from_before_they_had_a_tenant_stay_readable_on_an_open_server(
    bare_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insert(tx: Transaction) -> None:
        tx.execute("INSERT INTO tape_sessions VALUES ('shop', 'u', 's', '{\"own\": 1}', 5)")
        tx.execute(
            "INSERT INTO tape_events VALUES ('shop', 'u', 's', 1, 'e1', 'i', 'author', 'branch', '\"c\"', '{}', 4)"
        )
        tx.execute("INSERT INTO tape_scoped_state VALUES ('shop', 'user', 'u', 'k', '2')")

    with monkeypatch.context() as patched:
        known = migrations.known_migrations
        patched.setattr(migrations, "known_migrations", lambda dialect: [m for m in known(dialect) if m.number < 22])
        async with open_database(bare_store_url) as database:
            await database.write(insert)
    settings = Settings(store=bare_store_url, listen="127.0.0.1:0", http_listen="127.0.0.1:0")
    async with Server(settings) as server, AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        session = (await client.get_session(**SESSION)).session
        assert json.loads(session.state_json) == {"own": 1, "user:k": 2}
        assert session.last_update_time_ms == 5
        (event,) = session.events
        assert (event.id, event.invocation_id, event.author, event.branch) == ("e1", "i", "author", "branch")
        assert (event.content_json, event.actions_json, event.timestamp_ms) == ('"c"', "{}", 4)
        repeated = await client.append_event(**SESSION, event={"id": "e1", "author": "again"})
        assert repeated.event.author == "author"
        await client.append_event(**SESSION, event={"id": "e2", "author": "new"})
        assert [event.id for event in (await client.get_session(**SESSION)).session.events] == ["e1", "e2"]
        entry = await anext(client.follow("/tape/event/**"))
        assert entry.tenant == "shop"


async def test_a_live_stream_carries_a_tenants_own_entries_alone(tenants: Tenants) -> None:
    stream = tenants.ours.follow("/tape/order/**")
    await tenants.ours.append("/tape/order/paid/1")
    assert (await anext(stream)).subject == "/tape/order/paid/1"  # from here on entries come from memory
    await tenants.theirs.append("/tape/order/paid/theirs")
    await tenants.ours.append("/tape/order/paid/2")
    assert (await anext(stream)).subject == "/tape/order/paid/2"


async def test_what_a_playbook_publishes_belongs_to_its_workers_tenant(tenants: Tenants) -> None:
    await tenants.ours.append("/tape/order/shipped/1", tenant="playbooks")
    assert (await anext(tenants.ours.follow("/tape/order/shipped/**"))).tenant == "ours"


def test_the_filter_of_archived_entries_has_the_tenant_of_the_selection() -> None:
    bound = EntryFilter.of_selection(Selection(Pattern(""), tenants=("ours",)))
    assert (bound.values, bound.is_everything) == ({"tenant": ["ours"]}, False)
    assert EntryFilter.of_selection(Selection(Pattern(""))).is_everything
