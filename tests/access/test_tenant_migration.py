"""Data from before callers had tenants is given to one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tape.cli.main import app
from tape.documents.document import Document
from tape.engine import catalog
from tape.engine.executions.offsets import executed_ranges
from tape.engine.ledgers import runs, values
from tape.engine.ledgers.tenant_migration import move_tenant
from tape.engine.name_migration import move_names
from tape.engine.reactions import claims, registry
from tape.engine.reactions.claims import ClaimRequest
from tape.engine.reactions.reaction import Reaction
from tape.engine.security.keyfile import KeyFile
from tape.engine.security.wallet import Wallet
from tape.errors import InvalidInput, SecretNotFound
from tape.model.ledger_states import RunStatus
from tape.model.principal import Principal, acting_as
from tape.model.reaction_states import HandlerKind
from tape.model.tenant_names import display, name_within, qualify
from tape.store import Database, Transaction, open_database
from tape.subscriptions import lifecycle

OURS = Principal(tenant="ours", scopes=frozenset({"agent"}))


def run(invocation: str) -> runs.Run:
    return runs.Run(
        run_id="",
        app_name="shop",
        user_id="u",
        session_id="s",
        invocation_id=invocation,
        status=RunStatus.RUNNING,
    )


async def test_runs_and_values_of_an_open_server_are_given_to_a_tenant(store_url: str) -> None:
    async with open_database(store_url) as database:
        begun, _ = await database.write(lambda tx: runs.begin(tx, run("i"), owner="", lease_ms=0))
        await database.write(lambda tx: values.write(tx, "n", "k", "1"))
        with acting_as(OURS):
            assert await database.read(lambda reader: runs.find(reader, begun.run_id)) is None
        moved = await database.write(lambda tx: move_tenant(tx, "", "ours") | {"runs": move_tenant(tx, "shop", "ours")})
        assert (moved["tape_values"], moved["runs"]["tape_runs"]) == (1, 1)  # type: ignore[index]
        with acting_as(OURS):
            assert await database.read(lambda reader: runs.find(reader, begun.run_id)) is not None
            assert (await database.read(lambda reader: values.get(reader, "n", "k"))).value_json == "1"  # type: ignore[union-attr]


async def test_nothing_is_moved_onto_something_of_the_same_name(store_url: str) -> None:
    async with open_database(store_url) as database:
        await database.write(lambda tx: values.write(tx, "n", "k", "1"))
        await database.write(lambda tx: values.write(tx, "n", "other", "1"))
        with acting_as(OURS):
            await database.write(lambda tx: values.write(tx, "n", "k", "2"))
        with pytest.raises(InvalidInput, match="1 rows of tape_values have the same name in '' and in 'ours'"):
            await database.write(lambda tx: move_tenant(tx, "", "ours"))
        with acting_as(OURS):
            assert await database.read(lambda reader: values.get(reader, "n", "other")) is None


PLAYBOOK = "kind: Playbook\nmetadata: {path: orders}\nworkflow:\n  - {step: a, tool: {kind: value, value: 5}}\n"
PUSH = """\
kind: Subscription
metadata: {path: hooks/orders}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/orders
    verify: {type: hmac_sha256, header: X-Signature, secret: stripe}
  dispatch: {playbook: orders}
"""


async def furnish(database: Database, wallet: Wallet) -> None:
    """What an open server has: documents, a subscription, a reaction with a task, a secret."""

    def write(tx: Transaction) -> None:
        for content in (PLAYBOOK, PLAYBOOK + "\n", PUSH):
            catalog.register(tx, Document(content))
        lifecycle.act(tx, lifecycle.register(tx, "hooks/orders").subscription_id, "activate")
        for name in ("r", "pool:shared"):
            reaction = Reaction(name, name, "/tape/order/**", "", HandlerKind.TASK)
            registry.register(tx, reaction)
            tx.execute(
                "INSERT INTO tape_tasks (task_id, reaction_id, source_run_id, source_global_seq, subject, status,"
                " created_at_ms) VALUES (?, ?, 'log', 1, '/tape/order/paid/1', 1, 1)",
                *(f"task of {name}", name),
            )
        tx.execute("INSERT INTO tape_taken VALUES ('hooks/orders', '0', 0, 7)")
        tx.execute("INSERT INTO tape_dedup VALUES ('subscription:hooks/orders', 'k', '1', 1, 2)")

    await database.write(write)
    await wallet.set("stripe", "old")
    await wallet.set("stripe", "s3cret", keep_previous_s=60)


def open_wallet(database: Database, folder: Path) -> Wallet:
    keys = KeyFile(folder / "wallet.key")
    if not keys.exists:
        keys.create()
    return Wallet(database, keys)


async def move(database: Database, wallet: Wallet, old: str, new: str) -> dict[str, int]:
    secrets = await wallet.reseal_for(old, new)
    assert "s3cret" not in repr(secrets)
    return await database.write(lambda tx: move_names(tx, old, new, secrets))


@pytest.mark.parametrize("tenant", ["ours", "a/b%~", "50%"])
async def test_documents_subscriptions_reactions_and_secrets_are_given_to_a_tenant(
    store_url: str, tmp_path: Path, tenant: str
) -> None:
    async with open_database(store_url) as database:
        wallet = open_wallet(database, tmp_path)
        await furnish(database, wallet)
        caller = Principal(tenant=tenant, scopes=frozenset({"operator", "worker"}))
        for old, new in (("", "between"), ("between", tenant)):
            moved = await move(database, wallet, old, new)
            assert moved == {
                "tape_catalog": 3,
                "tape_subscriptions": 1,
                "tape_subscription_runtimes": 0,
                "tape_taken": 1,
                "tape_dedup": 1,
                "tape_reactions": 1,
                "tape_secrets": 2,
            }
        with acting_as(caller):
            found = await database.read(lambda reader: catalog.require(reader, qualify("orders")))
            assert (found.version, display(found.path)) == (2, "orders")
            (registration,) = await database.read(lifecycle.list_registrations)
            assert (display(registration.path), registration.state) == ("hooks/orders", "ACTIVE")
            claimed = await database.write(
                lambda tx: claims.claim_tasks(tx, ClaimRequest(registry.resolve(tx, "r"), "w"), 10)
            )
            ranges = await database.read(lambda reader: executed_ranges(reader, qualify("hooks/orders")))
        assert ranges == {"0": [(0, 7)]}
        # The task itself has the tenant of its entry, which `move_tenant` moves.
        assert claimed.tasks == []
        (reaction,) = [each for each in await database.read(registry.list_registered) if each.tenant]
        assert (reaction.reaction_id, reaction.tenant) == (name_within(tenant, "r"), tenant)
        rows = await database.read(lambda reader: reader.query("SELECT reaction_id FROM tape_tasks ORDER BY 1"))
        assert [row[0] for row in rows] == ["pool:shared", name_within(tenant, "r")]
        assert await wallet.reveal_all(name_within(tenant, "stripe")) == ["s3cret", "old"]
        with pytest.raises(SecretNotFound):
            await wallet.reveal("stripe")
        rows = await database.read(lambda reader: reader.query("SELECT scope FROM tape_dedup"))
        assert rows[0][0] == f"tenant:{tenant}:subscription:hooks/orders"


@pytest.mark.parametrize("thing", ["document", "reaction", "secret"])
async def test_no_named_thing_is_moved_onto_one_of_the_same_name(store_url: str, tmp_path: Path, thing: str) -> None:
    async with open_database(store_url) as database:
        wallet = open_wallet(database, tmp_path)
        if thing == "document":
            await database.write(lambda tx: catalog.register(tx, Document(PLAYBOOK), path="~ours/orders"))
        elif thing == "reaction":
            with acting_as(OURS):
                reaction = Reaction("r", "r", "/tape/order/**", "", HandlerKind.TASK)
                await database.write(lambda tx: registry.register(tx, reaction))
        else:
            for _ in range(3):
                await wallet.set("~ours/stripe", "another")
        await furnish(database, wallet)
        with pytest.raises(InvalidInput, match="both tenants; nothing was moved"):
            await move(database, wallet, "", "ours")
        assert await wallet.reveal("stripe") == "s3cret"
        assert await database.read(lambda reader: catalog.fetch(reader, "orders")) is not None


async def test_a_secret_that_was_changed_meanwhile_is_not_moved(store_url: str, tmp_path: Path) -> None:
    async with open_database(store_url) as database:
        wallet = open_wallet(database, tmp_path)
        await wallet.set("stripe", "s3cret")
        secrets = await wallet.reseal_for("", "ours")
        await wallet.rotate()
        with pytest.raises(InvalidInput, match="was changed meanwhile"):
            await database.write(lambda tx: move_names(tx, "", "ours", secrets))
        assert await wallet.reveal("stripe") == "s3cret"


def test_the_command_moves_everything_of_no_tenant(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'tape.db'}"
    runner = CliRunner()
    set_ = runner.invoke(app, ["wallet", "set", "stripe", "--store", store], input="s3cret")
    assert set_.exit_code == 0, set_.output
    moved = runner.invoke(app, ["access", "migrate", "--to", "ours", "--store", store, "--output", "json"])
    assert json.loads(moved.stdout)["tape_secrets"] == 1
    listed = runner.invoke(app, ["wallet", "list", "--tenant", "ours", "--store", store, "--output", "json"])
    assert [each["alias"] for each in json.loads(listed.stdout)] == ["~ours/stripe"]
    assert (
        json.loads(runner.invoke(app, ["wallet", "list", "--tenant", "x", "--store", store, "-o", "json"]).stdout) == []
    )
    deleted = runner.invoke(app, ["wallet", "delete", "stripe", "--tenant", "ours", "--yes", "--store", store])
    assert deleted.exit_code == 0, deleted.output
