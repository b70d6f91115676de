"""Data from before callers had tenants is given to one."""

from __future__ import annotations

import pytest

from tape.engine.ledgers import runs, values
from tape.engine.ledgers.tenant_migration import move_tenant
from tape.errors import InvalidInput
from tape.model.ledger_states import RunStatus
from tape.model.principal import Principal, acting_as
from tape.store import open_database

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
