"""One surface over dead letters: tasks, messages, spools, quarantine and relays; what comes back is what was."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import InvalidInput, NotFound
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb
from tape.server.dead_letters import surface
from tape.server.server import Server
from tape.subscriptions import events, lifecycle
from tape.subscriptions.dispatch.assembly import rules_of
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import SubscriptionEvent, subscription_ref
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.locations import open_backend
from tape.subscriptions.spool.spool import Arrival, Spool
from tests.conftest import settings_for
from tests.engine.reactions.helpers import PENDING
from tests.engine.reactions.test_dead_letters import dead

PATH = "subscriptions/orders"
PLAYBOOK = {
    "kind": "Playbook",
    "workflow": [{"step": "keep", "tool": {"kind": "value", "value": "{{ input.n }}"}}],
}


def document(folder: Path, **spec: Any) -> str:
    base = {
        "source": "nats",
        "mode": "pull",
        "url": "nats://127.0.0.1:1",
        "stream": "S",
        "consumer": "c",
        "dispatch": {"playbook": "domain/ingest"},
        "runtime": {"target": "local"},
        "spool": {"mode": "buffer_and_ack", "backend": "local_disk", "path": str(folder)},
    }
    return json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": base | spec})


async def subscribe(server: Server, client: AsyncTapeClient, content: str, prefix: str = "") -> None:
    """Register a playbook and a subscription that is not activated: no runtime touches its spool."""
    await client.register_resource(json.dumps(PLAYBOOK | {"metadata": {"path": "domain/ingest"}}), if_changed=True)
    await client.register_resource(content)
    await server.database.write(lambda tx: lifecycle.register(tx, prefix + PATH))


async def no_events(to_emit: Sequence[SubscriptionEvent]) -> None:
    """Emit nothing."""


def open_spool(content: str, path: str = PATH) -> Spool:
    subscription = parse_subscription(content, path)
    backend = open_backend(subscription.spec.spool, path)
    return Spool(
        subscription_ref(path),
        "nats",
        backend,
        rules_of(subscription),
        emit=no_events,
        now_ms=lambda: 1_700_000_000_000,
    )


async def spool_dead_letters(content: str, count: int, path: str = PATH) -> list[str]:
    """So many dead letters in a spool; their keys."""
    spool = open_spool(content, path)
    arrivals = [
        Arrival(
            f"m{n}", {"id": f"m{n}", "data": {"n": n}}, {"playbook": "domain/ingest"}, "default", "circuit_open",
            ordering_key=f"k{n}",
        )
        for n in range(count)
    ]  # fmt: skip
    await spool.append(arrivals)
    stored = await spool.backend.page(Area.LIVE, "", 100)
    items = [(await spool.load(each), each.size) for each in stored]
    await spool.dead_letter([(item, size) for item, size in items if item is not None], "max_replay_attempts")
    await spool.backend.close()
    return [each.key for each in stored]


async def give_up(server: Server, message: dict[str, Any], tenant: str = "") -> int:
    """Journal a message that a runtime gave up; its global_seq."""
    ref = subscription_ref(f"~{tenant}/{PATH}" if tenant else PATH)
    event = events.dead_lettered(ref, message["id"], 0, "", 5, "refused: payload", message=message)
    return (await server.journal.append([event.draft()]))[0]


async def listed(client: AsyncTapeClient, **filters: Any) -> list[str]:
    page = await client.list_dead_letters(filter=pb.DeadLetterFilter(**filters))
    return [each.id for each in page.dead_letters]


async def entries(server: Server, verb: str) -> list[dict[str, Any]]:
    rows = await server.database.read(
        lambda reader: reader.query("SELECT subject, payload_json FROM tape_journal ORDER BY global_seq")
    )
    return [json.loads(payload) for subject, payload in rows if f"/{verb}" in subject]


async def test_dead_letters_of_every_origin_are_listed_shown_and_counted(
    server: Server, client: AsyncTapeClient, tmp_path: Path
) -> None:
    content = document(tmp_path / "spool")
    await subscribe(server, client, content)
    tasks = await dead(client, 4)
    seq = await give_up(server, {"id": "m9", "data": {"n": 9}, "headers": {}, "attributes": {}, "metadata": {}})
    keys = await spool_dead_letters(content, 2)
    spool = open_spool(content)
    torn = f"{7:020}-m7"
    await spool.backend.put(Area.QUARANTINE, [(torn, b"\x00torn")])
    await spool.backend.close()
    rejected = json.dumps({"global_seq": 3, "subject": "/tape/a/b", "error": "SinkRejected: 422"})
    (relay,) = await server.journal.append([Draft(subject="/tape/dead/relay", payload_json=rejected, run_id="dead:r")])
    assert await listed(client) == [
        *(f"task/{task.task_id}" for task in reversed(tasks)),
        f"message/{seq}",
        *(f"spool/{PATH}/{key}" for key in keys),
        f"quarantine/{PATH}/{torn}",
        f"relay/{relay}",
    ]
    assert await listed(client, origins=["task"], error_contains="disk") == [
        f"task/{task.task_id}" for task in reversed(tasks) if "disk" in task.last_error
    ]
    assert await listed(client, subscription=PATH, origins=["message", "spool"], since_ms=1_700_000_000_001) == [
        f"message/{seq}"
    ]
    assert await listed(client, reaction_id="r", origins=["message", "spool"]) == []
    shown = await client.get_dead_letter(f"spool/{PATH}/{keys[1]}", preview_bytes=10)
    assert (shown.message_id, shown.ordering_key, shown.subscription, shown.can_redrive) == ("m1", "k1", PATH, True)
    assert (len(shown.preview), shown.is_truncated) == (10, True)
    assert "back to its position" in shown.redrive
    assert not (await client.get_dead_letter(f"relay/{relay}")).can_redrive
    groups = (await client.list_dead_letters(group=True)).groups
    assert sorted((each.origin, each.error, each.count) for each in groups if each.origin in ("spool", "task")) == [
        ("spool", "max_replay_attempts", 2),
        ("task", "disk full", 2),
        ("task", "timeout", 2),
    ]


async def test_pages_go_on_over_the_origins(
    server: Server, client: AsyncTapeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surface, "MAX_PAGES", 2)
    content = document(tmp_path / "spool")
    await subscribe(server, client, content)
    await dead(client, 5)
    await spool_dead_letters(content, 3)
    whole = await listed(client)
    found: list[str] = []
    cursor = ""
    while True:
        page = await client.list_dead_letters(limit=2, cursor=cursor)
        found += [each.id for each in page.dead_letters]
        cursor = page.next_cursor
        if not cursor:
            break
    assert len(found) == 8
    assert found == whole or set(whole) < set(found)  # a page reads 2 pages of origins at most
    for wrong in ({"cursor": "nowhere:1"}, {"limit": -1}, {"limit": 1_001}, {"preview_bytes": 70_000}):
        with pytest.raises(InvalidInput):
            await client.list_dead_letters(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be among task, message, spool, quarantine, relay"):
        await listed(client, origins=["nowhere"])


async def test_a_message_that_was_given_up_becomes_the_run_that_it_would_have_been(
    server: Server, client: AsyncTapeClient, tmp_path: Path
) -> None:
    headers = {"directives": [{"header": "X-Id", "controls": "idempotency_key"}]}
    await subscribe(server, client, document(tmp_path, headers=headers))
    message = {
        "id": "m1",
        "data": {"n": 7},
        "headers": {"x-id": "abc"},
        "attributes": {"X-Id": "abc"},
        "metadata": {"partition": 3},
        "ordering_key": "truck-7",
    }
    seq = await give_up(server, message)
    preview = await client.redrive_dead_letters(ids=[f"message/{seq}"], dry_run=True)
    assert (list(preview.ids), len(await entries(server, "command/issued"))) == ([f"message/{seq}"], 0)
    done = await client.redrive_dead_letters(ids=[f"message/{seq}"])
    assert (list(done.ids), list(done.failures)) == ([f"message/{seq}"], [])
    (command,) = await entries(server, "command/issued")
    assert (command["message_id"], command["payload"]["n"], command["payload"]["idempotency_key"]) == ("m1", 7, "abc")
    assert command["payload"]["message"]["headers"] == {"x-id": "abc"}
    assert command["payload"]["message"]["metadata"] == {"partition": 3}
    assert command["ordering_key"].endswith("truck-7")
    assert await listed(client) == []
    again = await client.redrive_dead_letters(ids=[f"message/{seq}"])
    assert "no dead letter" in again.failures[0].reason
    assert len(await entries(server, "command/issued")) == 1
    audits = await entries(server, "audit/dead_letters_redriven")
    assert [(audit["Count"], audit["IDs"], audit["Failed"]) for audit in audits] == [
        (1, [f"message/{seq}"], 0),
        (1, [f"message/{seq}"], 0),
        (1, [f"message/{seq}"], 1),
    ]
    large = await give_up(server, {"id": "m2", "data": None, "bytes": 9_000_000})
    refused = await client.redrive_dead_letters(ids=[f"message/{large}"])
    assert "no message body" in refused.failures[0].reason
    assert list((await client.drop_dead_letters(ids=[f"message/{large}"], reason="resent")).ids) == [f"message/{large}"]
    assert await listed(client) == []


async def test_a_spooled_dead_letter_goes_back_to_its_position_and_a_damaged_one_does_not(
    server: Server, client: AsyncTapeClient, tmp_path: Path
) -> None:
    content = document(tmp_path / "spool")
    await subscribe(server, client, content)
    first, second, third = await spool_dead_letters(content, 3)
    done = await client.redrive_dead_letters(filter=pb.DeadLetterFilter(subscription=PATH, origins=["spool"]), limit=2)
    assert list(done.ids) == [f"spool/{PATH}/{first}", f"spool/{PATH}/{second}"]
    spool = open_spool(content)
    assert [each.key for each in await spool.backend.page(Area.LIVE, "", 10)] == [first, second]
    item = await spool.load((await spool.backend.page(Area.LIVE, "", 1))[0])
    assert item is not None
    assert (item.message, item.attempts, item.ordering_key) == ({"id": "m0", "data": {"n": 0}}, 0, "k0")
    await spool.backend.put(Area.QUARANTINE, [(third, b"torn")])
    damaged = f"quarantine/{PATH}/{third}"
    refused = await client.redrive_dead_letters(ids=[damaged])
    assert (list(refused.ids), refused.failures[0].id) == ([], damaged)
    assert "It can only be dropped." in refused.failures[0].reason
    dropped = await client.drop_dead_letters(filter=pb.DeadLetterFilter(subscription=PATH), reason="test")
    assert set(dropped.ids) == {f"spool/{PATH}/{third}", damaged}
    assert await spool.backend.page(Area.QUARANTINE, "", 10) == []
    assert await spool.backend.page(Area.DEAD, "", 10) == []
    await spool.backend.close()
    for wrong in (f"spool/{PATH}/../../etc/passwd", f"spool/nowhere/{third}", f"spool/{PATH}/{third}", "x/y"):
        with pytest.raises(NotFound):
            await client.get_dead_letter(wrong)
    with pytest.raises(InvalidInput, match="must look like"):
        await client.get_dead_letter("nothing")


async def test_tasks_are_redriven_by_filter_and_nothing_is_redriven_by_accident(
    server: Server, client: AsyncTapeClient
) -> None:
    tasks = await dead(client, 4)
    with pytest.raises(InvalidInput, match="Say which dead letters"):
        await client.redrive_dead_letters()
    wanted = pb.DeadLetterFilter(reaction_id="r", error_contains="disk")
    preview = await client.redrive_dead_letters(filter=wanted, dry_run=True)
    assert len(preview.ids) == 2
    assert len(await listed(client)) == 4
    done = await client.redrive_dead_letters(filter=wanted)
    assert list(done.ids) == list(preview.ids)
    for task in tasks:
        found = await client.get_task(task.task_id)
        assert (found.status == PENDING) == ("disk" in task.last_error)
    dropped = await client.drop_dead_letters(everything=True, reason="old")
    assert len(dropped.ids) == 2
    assert await listed(client) == []


async def test_what_the_server_cannot_reach_is_named(server: Server, client: AsyncTapeClient, tmp_path: Path) -> None:
    await subscribe(server, client, document(tmp_path, runtime={"target": "dedicated-pool"}))
    page = await client.list_dead_letters(filter=pb.DeadLetterFilter(origins=["spool"]))
    ((origin, name, reason),) = [(each.origin, each.name, each.reason) for each in page.unreachable]
    assert (origin, name) == ("spool", PATH)
    assert "of the machine that runs it" in reason
    with pytest.raises(NotFound, match="cannot be reached"):
        await client.get_dead_letter(f"spool/{PATH}/{'0' * 20}-m1")


class Tenants(NamedTuple):
    """A server with a client of each of two tenants, and one that sees all."""

    server: Server
    ours: AsyncTapeClient
    theirs: AsyncTapeClient
    unbound: AsyncTapeClient


@pytest.fixture
async def tenants(store_url: str, tmp_path: Path) -> AsyncIterator[Tenants]:
    key, _ = load_key(tmp_path / "dev.key")
    settings = settings_for(
        store_url, auth_jwks=str(jwks_path(tmp_path / "dev.key")), auth_issuer="tape-dev", auth_audience="tape"
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))
        clients = []
        for tenant in ("ours", "theirs", "unbound"):
            scopes = ["service", "operator"] + ["tenant:*"] * (tenant == "unbound")
            token = key.mint(tenant=tenant, user="u", session="s", scopes=scopes)
            client = AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token)
            clients.append(await stack.enter_async_context(client))
        yield Tenants(server, *clients)


async def test_a_caller_reaches_the_dead_letters_of_its_own_tenant_only(tenants: Tenants, tmp_path: Path) -> None:
    server = tenants.server
    content = document(tmp_path / "spool")
    for client, tenant in ((tenants.ours, "ours"), (tenants.theirs, "theirs")):
        await subscribe(server, client, content, f"~{tenant}/")
    await dead(tenants.theirs, 1)
    seq = await give_up(server, {"id": "m", "data": 1}, "theirs")
    (key,) = await spool_dead_letters(content, 1, f"~theirs/{PATH}")
    theirs = await listed(tenants.theirs)
    assert [each.partition("/")[0] for each in theirs] == ["task", "message", "spool"]
    assert theirs[1:] == [f"message/{seq}", f"spool/{PATH}/{key}"]
    assert await listed(tenants.ours) == []
    assert await listed(tenants.ours, subscription=f"~theirs/{PATH}") == []
    for foreign in (*theirs, f"spool/~theirs/{PATH}/{key}"):
        with pytest.raises(NotFound):
            await tenants.ours.get_dead_letter(foreign)
        assert len((await tenants.ours.redrive_dead_letters(ids=[foreign])).failures) == 1
        assert len((await tenants.ours.drop_dead_letters(ids=[foreign])).failures) == 1
    assert await listed(tenants.theirs) == theirs
    assert len(await listed(tenants.unbound)) == 3
    done = await tenants.theirs.redrive_dead_letters(everything=True)
    assert (len(done.ids), list(done.failures)) == (3, [])
    (command,) = await entries(server, "command/issued")
    assert command["path"] == "~theirs/domain/ingest"
