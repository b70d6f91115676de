"""Subscriptions that a server runs itself: messages of a broker become runs, also when servers come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tape.base.clock import now_ms
from tape.documents.document import Document
from tape.engine import catalog
from tape.server.server import Server
from tape.store import Transaction
from tape.subscriptions import lifecycle
from tape.subscriptions.runtime import leases, supervisor
from tests.broker_services import NatsServer
from tests.brokers.rigs import Rig, nats_rig
from tests.conftest import settings_for

PATH = "subscriptions/orders"
PLAYBOOK = {
    "kind": "Playbook",
    "workflow": [{"step": "keep", "tool": {"kind": "value", "value": "{{ input.n }}"}}],
}


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def rig(nats_server: NatsServer) -> Rig:
    return await nats_rig(nats_server)


async def put(server: Server, path: str, document: dict[str, Any]) -> None:
    content = json.dumps(document | {"metadata": {"path": path}})
    await server.database.write(lambda tx: catalog.register(tx, Document(content)))


async def subscribe(server: Server, rig: Rig, **spec: Any) -> int:
    """Register and activate a subscription to a rig; its id."""
    for path in ("domain/ingest", "domain/fraud"):
        await put(server, path, PLAYBOOK)
    base: dict[str, Any] = {
        "source": rig.name,
        "mode": "pull",
        **rig.spec,
        "runtime": {"target": "local", "timeout_ms": 200},
        "dispatch": {"playbook": "domain/ingest", "execution_pool": "iot"},
    }
    await put(server, PATH, {"kind": "Subscription", "spec": base | spec})
    registration = await server.database.write(lambda tx: lifecycle.register(tx, PATH))
    await act(server, registration.subscription_id, "activate")
    return registration.subscription_id


async def act(server: Server, subscription_id: int, action: str) -> None:
    await server.database.write(lambda tx: lifecycle.act(tx, subscription_id, action))


async def state(server: Server, subscription_id: int) -> str:
    return (await server.database.read(lambda reader: lifecycle.require(reader, subscription_id))).state


async def commands(server: Server) -> list[dict[str, Any]]:
    rows = await server.database.read(
        lambda reader: reader.query("SELECT payload_json FROM tape_journal WHERE kind = 'command' ORDER BY global_seq")
    )
    return [json.loads(row[0]) for row in rows]


async def entries(server: Server, verb: str) -> list[dict[str, Any]]:
    rows = await server.database.read(
        lambda reader: reader.query(
            "SELECT payload_json FROM tape_journal WHERE subject LIKE ? ORDER BY global_seq",
            f"/tape/subscription/{verb}/%",
        )
    )
    return [json.loads(row[0]) for row in rows]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.02)


async def called_twice(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Wait until an asynchronous method has returned twice: the second call began after this one."""
    method, calls = getattr(owner, name), asyncio.Semaphore(0)

    async def counted() -> Any:
        result = await method()
        calls.release()
        return result

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, counted)
        async with asyncio.timeout(120):
            await calls.acquire()
            await calls.acquire()


async def count(server: Server, number: int) -> bool:
    return len(await commands(server)) >= number


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("is_batched", [False, True])
async def test_six_messages_become_six_runs_on_their_pool_traced_and_redirected(
    server: Server, rig: Rig, is_batched: bool
) -> None:
    subscription_id = await subscribe(
        server,
        rig,
        dispatch={"playbook": "domain/ingest", "execution_pool": "iot", "batch_dispatch": is_batched},
        headers={
            "directives": [{"header": "X-Route", "controls": "dispatch.playbook", "allowed": ["domain/fraud"]}],
            "trace": {"propagate": "w3c"},
        },
    )
    for number in range(6):
        route = "domain/fraud" if number < 2 else "domain/anything"
        await rig.feed(b'{"n": %d}' % number, headers=[("X-Route", route), ("traceparent", TRACE)])
    await until(lambda: count(server, 6))
    found = await commands(server)
    assert [each["path"] for each in found] == ["domain/fraud"] * 2 + ["domain/ingest"] * 4
    assert {each["pool"] for each in found} == {"iot"}
    assert {each["trace"]["traceparent"] for each in found} == {TRACE}
    assert {each["subscription"] for each in found} == {PATH}
    assert {each["parent_execution_id"] for each in found} == {str(subscription_id)}
    assert [each["payload"]["n"] for each in found] == list(range(6))
    applied = await entries(server, "message.directives_applied")
    assert [each["route_override"]["playbook"] for each in applied] == ["domain/fraud"] * 2 + [None] * 4
    assert [each["execution_id"] for each in applied] == [each["execution_id"] for each in found]
    await until(lambda: _is_empty(rig))


async def _is_empty(rig: Rig) -> bool:
    import nats

    connection = await nats.connect(rig.spec["url"])
    info = await connection.jetstream().consumer_info(rig.spec["stream"], rig.spec["consumer"])
    await connection.close()
    return bool(info.num_pending == 0 and info.num_ack_pending == 0)


async def test_the_lifecycle_is_honoured(server: Server, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription_id = await subscribe(server, rig)
    await rig.feed(b'{"n": 1}')
    await until(lambda: count(server, 1))
    runtime = server.hosting._running[PATH].runtime
    assert runtime is not None
    is_paused, release = asyncio.Event(), runtime._source.release

    async def released() -> None:
        await release()
        is_paused.set()  # a poll that had begun is over

    monkeypatch.setattr(runtime._source, "release", released)
    await act(server, subscription_id, "pause")
    await is_paused.wait()
    await rig.feed(b'{"n": 2}')
    await called_twice(monkeypatch, runtime, "_idle")
    assert len(await commands(server)) == 1
    await act(server, subscription_id, "resume")
    await until(lambda: count(server, 2))
    await act(server, subscription_id, "drain")

    async def is_over() -> bool:
        return await state(server, subscription_id) == "DEACTIVATED"

    await until(is_over)


async def test_a_server_that_stops_leaves_the_rest_to_the_next(server: Server, rig: Rig, store_url: str) -> None:
    subscription_id = await subscribe(server, rig)
    await rig.feed(b'{"n": 1}')
    await until(lambda: count(server, 1))
    await server.hosting.close()
    assert await state(server, subscription_id) == "ACTIVE"
    await rig.feed(b'{"n": 2}')
    async with Server(settings_for(store_url)) as second:
        await until(lambda: count(second, 2))
    assert [each["payload"]["n"] for each in await commands(server)] == [1, 2]


async def test_of_several_servers_one_runs_it(server: Server, rig: Rig, store_url: str) -> None:
    async with Server(settings_for(store_url)) as second:
        await subscribe(server, rig)
        await rig.feed(*(b'{"n": %d}' % number for number in range(20)))
        await until(lambda: count(server, 20))
        assert len(server.hosting._running) + len(second.hosting._running) == 1
        assert len(await commands(server)) == 20


async def test_a_scheduled_subscription_drains_when_it_is_due_and_no_sooner(
    server: Server, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = [supervisor.now_ms() + 3_600_000]
    monkeypatch.setattr(supervisor, "_next_ms", lambda subscription, after_ms: due[0])
    await subscribe(server, rig, activation="scheduled", cadence="0 * * * *", runtime={"batch": 2, "timeout_ms": 200})
    await rig.feed(*(b'{"n": %d}' % number for number in range(5)))

    async def is_scheduled() -> bool:
        rows = await server.database.read(lambda reader: reader.query("SELECT due_ms FROM tape_subscription_runtimes"))
        return [row[0] for row in rows] == [due[0]]

    await until(is_scheduled)
    assert await commands(server) == []
    await server.database.write(lambda tx: tx.execute("UPDATE tape_subscription_runtimes SET due_ms = 1"))
    await until(lambda: count(server, 5))
    await until(is_scheduled)

    async def is_released() -> bool:
        return not server.hosting._running

    await until(is_released)
    await rig.feed(b'{"n": 6}')
    await called_twice(monkeypatch, server.hosting, "_poll_once")
    assert len(await commands(server)) == 5


async def test_leases_pass_on_when_their_holder_is_gone(server: Server) -> None:
    write = server.database.write
    assert await write(lambda tx: leases.claim(tx, "a", "one", 1_000, 5_000))
    assert not await write(lambda tx: leases.claim(tx, "a", "two", 4_999, 9_000))
    assert await write(lambda tx: leases.renew(tx, ["a", "b"], "one", 6_000)) == {"a"}
    assert not await write(lambda tx: leases.claim(tx, "a", "two", 5_500, 9_000))
    assert await write(lambda tx: leases.claim(tx, "a", "two", 6_000, 9_000))
    assert await write(lambda tx: leases.renew(tx, ["a"], "one", 9_000)) == set()
    await write(lambda tx: leases.release(tx, "a", "one"))  # no longer its own
    assert not await write(lambda tx: leases.claim(tx, "a", "three", 7_000, 9_000))
    await write(lambda tx: leases.release(tx, "a", "two"))
    assert await write(lambda tx: leases.claim(tx, "a", "three", 7_000, 9_000))


async def test_a_restarted_server_takes_over_the_subscriptions_of_its_former_process(store_url: str) -> None:
    settings = settings_for(store_url)
    async with Server(settings) as former:
        database, holder = former.database, former.hosting._holder
        assert await database.write(lambda tx: leases.claim(tx, "a", holder, now_ms(), now_ms() + leases.LEASE_MS))
        assert await database.write(lambda tx: leases.claim(tx, "b", "other", now_ms(), now_ms() + leases.LEASE_MS))
    async with Server(settings) as server:  # the lease on `a` was not released, as after kill -9
        database, new_holder = server.database, server.hosting._holder
        assert new_holder.rpartition("#")[0] == holder.rpartition("#")[0]
        assert new_holder != holder

        async def claim(path: str) -> bool:
            until = now_ms() + leases.LEASE_MS
            return await database.write(lambda tx: leases.claim(tx, path, new_holder, now_ms(), until))

        async with asyncio.timeout(leases.LEASE_MS / 2_000):
            while not await claim("a"):
                await asyncio.sleep(0.01)
        assert not await claim("b")
        assert await database.write(lambda tx: leases.renew(tx, ["a"], holder, 1)) == set()


async def test_one_drain_at_a_time(server: Server) -> None:
    def due(now: int, holder: str) -> Any:
        return server.database.write(
            lambda tx: leases.claim_due(tx, "a", holder, now, now + 100, now + 1_000, now + 9_000)
        )

    assert not await due(0, "one")  # never seen before: its time is told, it has not come
    assert not await due(999, "one")
    assert await due(1_000, "one")
    assert not await due(1_050, "two")  # it runs
    await server.database.write(lambda tx: leases.release(tx, "a", "one"))


async def test_a_playbook_that_does_not_exist_holds_the_messages_at_their_source(server: Server, rig: Rig) -> None:
    subscription_id = await subscribe(server, rig, dispatch={"playbook": "domain/nowhere"})
    await rig.feed(b'{"n": 1}')

    async def held() -> bool:
        found = await server.database.read(lambda reader: lifecycle.require(reader, subscription_id))
        return bool(found.holds)

    await until(held)
    assert not await _is_empty(rig)
    await put(server, "domain/nowhere", PLAYBOOK)
    await until(lambda: _is_empty(rig))
    await until(lambda: count(server, 1))

    async def is_released() -> bool:
        return not await held()

    await until(is_released)
    assert await entries(server, "message.dead_lettered") == []
    (event,) = await entries(server, "held")
    assert event["reasons"] == [
        "The catalog has no playbook 'domain/nowhere'. Register it with: tape playbooks register FILE"
    ]
    assert len(await entries(server, "released")) == 1


async def test_what_a_tenants_subscription_starts_belongs_to_the_tenant(server: Server, rig: Rig) -> None:
    spec = {
        "source": rig.name,
        "mode": "pull",
        **rig.spec,
        "runtime": {"target": "local", "timeout_ms": 200},
        "dispatch": {"playbook": "domain/ingest"},
    }
    documents = {"domain/ingest": PLAYBOOK, PATH: {"kind": "Subscription", "spec": spec}}

    def activate(tx: Transaction) -> None:
        for path, document in documents.items():
            content = json.dumps(document | {"metadata": {"path": path}})
            catalog.register(tx, Document(content), path=f"~acme/{path}")
        lifecycle.act(tx, lifecycle.register(tx, f"~acme/{PATH}").subscription_id, "activate")

    await server.database.write(activate)
    await rig.feed(b'{"n": 1}')
    await until(lambda: count(server, 1))
    (command,) = await commands(server)
    assert (command["path"], command["subscription"]) == ("~acme/domain/ingest", PATH)
    assert command["payload"]["subscription"] == PATH
    rows = await server.database.read(
        lambda reader: reader.query(
            "SELECT DISTINCT tenant FROM tape_journal WHERE kind IN ('command', 'subscription')"
        )
    )
    assert [row[0] for row in rows] == ["acme"]
