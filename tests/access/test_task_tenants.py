"""Reactions and tasks of two tenants: a reaction fires on its tenant's entries, a worker gets its tenant's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.engine.reactions import claims, registry
from tape.engine.reactions.claims import ClaimRequest
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import InvalidReaction, ScopeRequired, TapeError
from tape.model.entry import Draft
from tape.model.principal import Principal, acting_as
from tape.playbooks.worker import work
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tape.store import Transaction, migrations, open_database
from tests.engine.reactions.helpers import AGENT, DLQ, Dispatcher, claim, matched, register, tasks

SCOPES = {"ours": ["service"], "theirs": ["service"], "unbound": ["service", "tenant:*"]}


class Tenants(NamedTuple):
    """A client of each of two tenants, and one that sees all; and the tokens of the two."""

    ours: AsyncTapeClient
    theirs: AsyncTapeClient
    unbound: AsyncTapeClient
    tokens: dict[str, str]


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
        tokens = {tenant: key.mint(tenant=tenant, user="u", session="s", scopes=SCOPES[tenant]) for tenant in SCOPES}
        clients = [AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token) for token in tokens.values()]
        for client in clients:
            await stack.enter_async_context(client)
        yield Tenants(*clients, tokens)


async def test_a_reaction_fires_on_the_entries_of_its_tenant(tenants: Tenants) -> None:
    await register(tenants.ours, "r")
    await register(tenants.theirs, "r2")
    await tenants.theirs.append("/tape/order/paid/theirs")
    await tenants.ours.append("/tape/order/paid/ours")
    await matched(tenants.unbound)
    assert [task.subject for task in await tasks(tenants.unbound, "~ours/r")] == ["/tape/order/paid/ours"]
    assert [task.subject for task in await tasks(tenants.unbound, "~theirs/r2")] == ["/tape/order/paid/theirs"]


async def test_a_run_that_a_reaction_begins_belongs_to_its_tenant(tenants: Tenants) -> None:
    await register(tenants.ours, "r", handler_kind=AGENT, agent_app="shop")
    await tenants.theirs.append("/tape/order/paid/theirs")
    await tenants.ours.append("/tape/order/paid/ours")
    await matched(tenants.unbound)
    (run,) = (await tenants.ours.list_runs(app_name="shop")).runs
    assert run.tenant_id == "ours"
    assert not (await tenants.theirs.list_runs(app_name="shop")).runs


async def test_a_worker_claims_the_tasks_of_its_tenant(tenants: Tenants) -> None:
    await register(tenants.unbound, "r")
    for client, name in ((tenants.theirs, "theirs"), (tenants.ours, "ours")):
        await client.append(f"/tape/order/paid/{name}")
    await matched(tenants.unbound)
    for client, name in ((tenants.ours, "ours"), (tenants.theirs, "theirs")):
        assert [task.subject for task in await tasks(client, "r")] == [f"/tape/order/paid/{name}"]
        (stats,) = (await client.get_reaction_stats(reaction_id="r")).stats
        assert (stats.pending, stats.matched) == (1, 0)
        assert [task.subject for task in await claim(client, "r")] == [f"/tape/order/paid/{name}"]
    assert not await claim(tenants.unbound, "r")


async def test_a_worker_extends_no_lease_of_another_tenant_that_has_its_name(tenants: Tenants) -> None:
    await register(tenants.unbound, "r")
    for client in (tenants.ours, tenants.theirs):
        await client.append("/tape/order/paid/1")
    await matched(tenants.unbound)
    (ours,), (theirs,) = [
        await claim(client, "r", owner="w", lease_ms=10_000) for client in (tenants.ours, tenants.theirs)
    ]
    assert not await claim(tenants.ours, "r", owner="w", lease_ms=60_000)
    (extended,), (kept,) = [await tasks(client, "r") for client in (tenants.ours, tenants.theirs)]
    assert extended.lease_expires_at_ms > ours.lease_expires_at_ms
    assert kept.lease_expires_at_ms == theirs.lease_expires_at_ms


async def test_in_strict_order_the_tasks_of_one_tenant_do_not_block_another(tenants: Tenants) -> None:
    await register(tenants.unbound, "r", strict_order=True)
    await tenants.theirs.append("/tape/order/paid/theirs")
    await tenants.ours.append("/tape/order/paid/ours")
    await matched(tenants.unbound)
    assert [task.subject for task in await claim(tenants.ours, "r")] == ["/tape/order/paid/ours"]
    assert [task.subject for task in await claim(tenants.theirs, "r")] == ["/tape/order/paid/theirs"]


async def test_a_debounce_keeps_the_entries_of_tenants_apart(tenants: Tenants) -> None:
    await register(tenants.unbound, "r", debounce_ms=600_000)
    for client in (tenants.ours, tenants.theirs, tenants.ours):
        await client.append("/tape/order/paid/1")
    await matched(tenants.unbound)
    (ours,), (theirs,) = await tasks(tenants.ours, "r"), await tasks(tenants.theirs, "r")
    assert (ours.coalesced, theirs.coalesced) == (1, 0)


async def test_connected_workers_of_two_tenants_get_their_own_tasks(tenants: Tenants) -> None:
    await register(tenants.unbound, "r")
    ours, theirs = (Dispatcher(client, "w", ["r"], 10) for client in (tenants.ours, tenants.theirs))
    for number in range(5):
        await tenants.ours.append(f"/tape/order/ours/{number}")
        await tenants.theirs.append(f"/tape/order/theirs/{number}")
    for worker, name in ((ours, "ours"), (theirs, "theirs")):
        await worker.until(lambda w: len(w.tasks) == 5, "five tasks")
        assert [task.subject for task in worker.tasks] == [f"/tape/order/{name}/{number}" for number in range(5)]

    foreign = theirs.tasks[0].task_id
    ours.say(completed=[foreign], renew=[foreign])
    await ours.until(lambda w: len(w.refused) == 2, "two refusals")
    assert {refusal.error_message for refusal in ours.refused} == {f"no such task: {foreign!r}."}
    theirs.say(completed=[foreign])
    await theirs.until(lambda w: w.settled, "the settlement")
    for worker in (ours, theirs):
        await worker.close()


TASK_CALLS: dict[str, Callable[[AsyncTapeClient, str], Awaitable[Any]]] = {
    "get_task": lambda client, task: client.get_task(task),
    "complete_task": lambda client, task: client.complete_task(task_id=task, owner="w"),
    "nack_task": lambda client, task: client.nack_task(task_id=task, owner="w", permanent=True),
    "settle_tasks": lambda client, task: client.settle_tasks(owner="w", completed=[task]),
    "release_tasks": lambda client, task: client.settle_tasks(owner="w", released=[task]),
    "renew_lease": lambda client, task: client.claim_tasks(reaction_id="", owner="w", task_ids=[task]),
    "redrive_tasks": lambda client, task: client.redrive_tasks(task_ids=[task]),
    "drop_tasks": lambda client, task: client.drop_tasks(task_ids=[task]),
}


@pytest.mark.parametrize("call", TASK_CALLS)
async def test_a_foreign_task_is_answered_like_one_that_does_not_exist(tenants: Tenants, call: str) -> None:
    await register(tenants.theirs, "r")
    await tenants.theirs.append("/tape/order/paid/1")
    await matched(tenants.unbound)
    (task,) = await claim(tenants.theirs, "r")
    foreign = await outcome(TASK_CALLS[call], tenants.ours, task.task_id)
    unknown = await outcome(TASK_CALLS[call], tenants.ours, "no-task")
    assert foreign.replace(task.task_id, "TASK") == unknown.replace("no-task", "TASK")
    assert await tenants.theirs.get_task(task.task_id) == task


REACTION_CALLS: dict[str, Callable[[AsyncTapeClient, str], Awaitable[Any]]] = {
    "deregister_reaction": lambda client, reaction: client.deregister_reaction(reaction),
    "get_reaction_stats": lambda client, reaction: client.get_reaction_stats(reaction_id=reaction),
    "explain_reaction": lambda client, reaction: client.explain_reaction(reaction, 1),
    "claim_tasks": lambda client, reaction: claim(client, reaction),
    "list_tasks": lambda client, reaction: tasks(client, reaction),
    "dispatch_tasks": lambda client, reaction: anext(
        client.dispatch_tasks(one(pb.DispatchRequest(owner="w", reaction_ids=[reaction], window=1)))
    ),
}


async def one(request: pb.DispatchRequest) -> AsyncIterator[pb.DispatchRequest]:
    yield request


@pytest.mark.parametrize("call", REACTION_CALLS)
async def test_a_foreign_reaction_is_answered_like_one_that_does_not_exist(tenants: Tenants, call: str) -> None:
    assert await tenants.ours.append("/tape/order/paid/ours") == 1
    await register(tenants.theirs, "theirs")
    await tenants.theirs.append("/tape/order/paid/theirs")
    await matched(tenants.unbound)
    foreign, unknown = [await outcome(REACTION_CALLS[call], tenants.ours, each) for each in ("theirs", "unknown")]
    assert foreign.replace("theirs", "REACTION") == unknown.replace("unknown", "REACTION")
    assert [reaction.reaction_id for reaction in (await tenants.theirs.list_reactions()).reactions] == ["theirs"]
    assert not (await tenants.ours.list_reactions()).reactions


async def outcome(call: Callable[[AsyncTapeClient, str], Awaitable[Any]], client: AsyncTapeClient, name: str) -> str:
    try:
        return repr(await call(client, name))
    except TapeError as error:
        return f"{error.code} {error}"


async def test_the_same_id_in_two_tenants_is_two_reactions(tenants: Tenants) -> None:
    theirs = await register(tenants.theirs, "r", rate_limit_per_s=1_000)
    ours = await register(tenants.ours, "r", subject_pattern="/tape/order/paid/*", rate_limit_per_s=1_000)
    assert (ours.reaction_id, theirs.reaction_id) == ("r", "r")
    assert ours.subject_pattern != theirs.subject_pattern
    for client in (tenants.ours, tenants.theirs):
        await client.append("/tape/order/paid/1")
    await matched(tenants.unbound)

    (task,) = await claim(tenants.ours, "r")
    assert task.reaction_id == "r"
    await tenants.ours.nack_task(task_id=task.task_id, owner="w", permanent=True)
    (dead,) = await tasks(tenants.ours, "r", DLQ)
    assert dead.reaction_id == "r"
    assert (await tenants.theirs.redrive_tasks(filter=pb.TaskFilter(reaction_id="r"))).redriven == 0
    assert (await tenants.ours.redrive_tasks(filter=pb.TaskFilter(reaction_id="r"))).redriven == 1

    await tenants.ours.deregister_reaction("r")
    (stats,) = (await tenants.theirs.get_reaction_stats(reaction_id="r")).stats
    assert (stats.reaction_id, stats.matched, stats.pending) == ("r", 1, 1)
    (listed,) = (await tenants.theirs.list_reactions()).reactions
    assert listed == theirs
    assert (await tenants.theirs.explain_reaction("r", 2)).reaction.reaction_id == "r"
    assert {each.reaction_id for each in (await tenants.unbound.list_reactions()).reactions} == {"~theirs/r"}


async def test_a_connected_worker_knows_its_reactions_by_their_plain_ids(tenants: Tenants) -> None:
    await register(tenants.theirs, "r")
    await register(tenants.ours, "r")
    worker = Dispatcher(tenants.ours, "w", ["r"], 10)
    await tenants.ours.append("/tape/order/paid/1")
    await worker.until(lambda w: w.tasks, "a task")
    worker.say(completed=[worker.tasks[0].task_id])
    await worker.until(lambda w: w.settled, "the settlement")
    assert {task.reaction_id for task in (*worker.tasks, *worker.settled)} == {"r"}
    await worker.close()


async def test_a_reaction_does_not_fire_on_what_its_own_work_appends(tenants: Tenants) -> None:
    for client in (tenants.ours, tenants.theirs):
        await register(client, "r")
        await client.append_many([Draft(subject="/tape/order/paid/1", cause="r")])
        await client.append_many([Draft(subject="/tape/order/paid/2", cause="other")])
    await matched(tenants.unbound)
    for client in (tenants.ours, tenants.theirs):
        assert [task.subject for task in await tasks(client, "r")] == ["/tape/order/paid/2"]
        (stats,) = (await client.get_reaction_stats(reaction_id="r")).stats
        assert (stats.matched, stats.suppressed) == (1, 1)


@pytest.mark.parametrize("name", ["~theirs/r", "~x", "~ours/~theirs/r", "~theirs/unknown"])
async def test_a_tenant_chooses_no_name_within_another(tenants: Tenants, name: str) -> None:
    await register(tenants.theirs, "r")
    with pytest.raises(InvalidReaction, match="must not begin with '~'"):
        await register(tenants.ours, name)
    assert len((await tenants.unbound.list_reactions()).reactions) == 1


async def test_what_a_reaction_for_all_tenants_begins_belongs_to_the_tenant_of_its_entry(tenants: Tenants) -> None:
    await register(tenants.unbound, "r", handler_kind=AGENT, agent_app="shop")
    await register(tenants.unbound, "late", handler_kind=AGENT, agent_app="late", rate_limit_per_s=1_000)
    sources = [await client.append("/tape/order/paid/1") for client in (tenants.ours, tenants.theirs)]
    await matched(tenants.unbound)
    for client, tenant, source in zip(tenants[:2], ("ours", "theirs"), sources, strict=True):
        (run,) = (await client.list_runs(app_name="shop")).runs
        assert run.tenant_id == tenant
        assert (await client.explain_reaction("r", source)).run_id == run.run_id
        async with asyncio.timeout(30):
            while not (found := (await client.list_runs(app_name="late")).runs):
                await asyncio.sleep(0.01)
        assert [each.tenant_id for each in found] == [tenant]


async def test_a_reaction_for_all_tenants_is_changed_only_by_a_caller_of_all(tenants: Tenants) -> None:
    await register(tenants.unbound, "r")
    await register(tenants.ours, "r")  # the same definition changes nothing
    for change in (register(tenants.ours, "r", subject_pattern="**"), tenants.ours.deregister_reaction("r")):
        with pytest.raises(ScopeRequired, match="for all tenants"):
            await change
    await tenants.theirs.append("/tape/order/paid/theirs")
    await matched(tenants.unbound)
    assert len(await tasks(tenants.theirs, "r")) == 1


async def test_a_pool_is_not_defined_differently_by_one_tenant(tenants: Tenants) -> None:
    with pytest.raises(ScopeRequired, match="that of a pool"):
        await register(tenants.ours, "pool:shared")


async def test_a_foreign_entry_is_neither_explained_nor_tested(tenants: Tenants) -> None:
    await register(tenants.ours, "r")
    theirs = await tenants.theirs.append("/tape/order/paid/theirs")
    with pytest.raises(TapeError, match=f"There is no entry {theirs}:"):
        await tenants.ours.explain_reaction("r", theirs)
    assert (await tenants.ours.test_reaction(subject_pattern="/tape/order/**")).matched == 0
    assert (await tenants.theirs.test_reaction(subject_pattern="/tape/order/**")).matched == 1


async def test_dead_letters_are_redriven_and_dropped_by_their_tenant(tenants: Tenants) -> None:
    await register(tenants.unbound, "r")
    for client in (tenants.ours, tenants.theirs):
        await client.append("/tape/order/paid/1")
    await matched(tenants.unbound)
    for client in (tenants.ours, tenants.theirs):
        (task,) = await claim(client, "r")
        await client.nack_task(task_id=task.task_id, owner="w", permanent=True)
    assert (await tenants.ours.redrive_tasks(everything=True)).redriven == 1
    assert (await tenants.ours.drop_tasks(everything=True)).dropped == 0
    assert len(await tasks(tenants.theirs, "", DLQ)) == 1


PLAYBOOK = """\
kind: Playbook
metadata: {path: quick}
workflow:
  - {step: a, tool: {kind: value, value: 5}}
"""


async def test_an_execution_is_run_by_a_worker_of_its_tenant(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {}
    for client, tenant in ((tenants.ours, "ours"), (tenants.theirs, "theirs")):
        await client.register_resource(PLAYBOOK)
        runs[tenant] = (await client.execute("quick")).execution_id
    await matched(tenants.unbound)

    async def statuses() -> list[int]:
        return [(await tenants.unbound.get_run(run)).status for run in runs.values()]

    monkeypatch.setenv("TAPE_TOKEN", tenants.tokens["ours"])
    async with asyncio.timeout(120):
        await work(tenants.ours.url, once=True)
    assert await statuses() == [pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_RUNNABLE]
    monkeypatch.setenv("TAPE_TOKEN", tenants.tokens["theirs"])
    async with asyncio.timeout(120):
        await work(tenants.theirs.url, once=True)
    assert await statuses() == [pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_TERMINAL]


async def test_the_reactions_of_an_older_database_belong_to_their_tenants(
    bare_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insert(tx: Transaction) -> None:
        names = "reaction_id, subject_pattern, handler_kind, created_at_ms, tenant, version"
        tx.execute(f"INSERT INTO tape_reactions ({names}) VALUES ('r', '/tape/order/**', 2, 1, 'a/b', 1)")
        tx.execute(f"INSERT INTO tape_reactions ({names}) VALUES ('all', '/tape/order/**', 2, 1, '', 2)")
        tx.execute("UPDATE tape_reaction_catalog SET version = 2")
        for name in ("r", "all"):
            tx.execute("INSERT INTO tape_reaction_cursors (reaction_id, shard) VALUES (?, 0)", name)
            tx.execute("INSERT INTO tape_reaction_pace VALUES (?, 5)", name)
            tx.execute(
                "INSERT INTO tape_tasks (task_id, reaction_id, source_run_id, source_global_seq, subject, status,"
                " created_at_ms, tenant) VALUES (?, ?, 'log', 1, '/tape/order/paid/1', 1, 1, 'a/b')",
                *(f"task of {name}", name),
            )
        tx.execute("INSERT INTO tape_entry_causes VALUES (1, 'r')")

    with monkeypatch.context() as patched:
        known = migrations.known_migrations
        patched.setattr(migrations, "known_migrations", lambda dialect: [m for m in known(dialect) if m.number < 25])
        async with open_database(bare_store_url) as database:
            await database.write(insert)
    async with open_database(bare_store_url) as database:
        for table in ("tape_reactions", "tape_reaction_cursors", "tape_reaction_pace", "tape_tasks"):
            rows = await database.read(lambda reader, t=table: reader.query(f"SELECT reaction_id FROM {t} ORDER BY 1"))  # type: ignore[misc]
            assert [row[0] for row in rows] == ["all", "~a%2Fb/r"], table
        rows = await database.read(lambda reader: reader.query("SELECT reaction_id FROM tape_entry_causes"))
        assert rows[0][0] == "~a%2Fb/r"
        with acting_as(Principal(tenant="a/b", scopes=frozenset({"worker"}))):
            for name in ("r", "all"):
                claimed = await database.write(
                    lambda tx, name=name: claims.claim_tasks(tx, ClaimRequest(registry.resolve(tx, name), "w"))  # type: ignore[misc]
                )
                assert [task.task_id for task in claimed.tasks] == [f"task of {name}"]
