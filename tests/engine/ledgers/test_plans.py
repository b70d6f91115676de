"""No listing reads a whole table: SQLite says how it would answer each question."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from tape.engine import catalog
from tape.engine.ledgers import compaction, effects, obligations, runs, sessions, timers
from tape.store import Reader, open_database
from tests.services import Postgres

LISTINGS: dict[str, Callable[[Reader], object]] = {
    "runs to recover": runs.list_recoverable,
    "compactable runs": compaction.list_compactable,
    "effects to dispatch": effects.list_dispatchable,
    "effects of a connector to dispatch": lambda reader: effects.list_dispatchable(reader, connector="bank"),
    "unsettled effects": effects.list_open,
    "unknown effects": lambda reader: effects.list_open(reader, pending=False),
    "old pending effects": lambda reader: effects.list_open(reader, unknown=False, older_than_ms=5),
    "a run's obligations": lambda reader: obligations.list_of_run(reader, "r"),
    "due obligations": obligations.list_unresolved,
    "stuck obligations": lambda reader: obligations.list_unresolved(reader, stuck=True),
    "owed obligations": lambda reader: obligations.list_unresolved(reader, only_owed=True),
    "due timers": timers.list_due,
    "an app's sessions": lambda reader: sessions.list_sessions(reader, "app"),
    "a session's events": lambda reader: sessions.list_events(reader, "app", "u", "s"),
    "all runs": runs.list_newest_first,
    "runs in a state": lambda reader: runs.list_newest_first(reader, status=2),
    "an app's runs": lambda reader: runs.list_newest_first(reader, app_name="a"),
    "an app's runs in a state": lambda reader: runs.list_newest_first(reader, app_name="a", status=2, before=(5, "r")),
    "a user's runs": lambda reader: runs.list_newest_first(reader, app_name="a", user_id="u", status=2),
    "latest documents": catalog.list_latest,
    "latest documents of a kind": lambda reader: catalog.list_latest(reader, "playbook"),
    "versions of a document": lambda reader: catalog.versions(reader, "a"),
    "a session's runs": lambda reader: runs.list_newest_first(reader, app_name="a", user_id="u", session_id="s"),
}


class Planner:
    """Answers every question with no rows, and keeps how it would have been answered."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.dialect = reader.dialect
        self.steps: list[str] = []

    def query(self, sql: str, *params: Any) -> list[Any]:
        self.steps += [str(row[3]) for row in self._reader.query(f"EXPLAIN QUERY PLAN {sql}", *params)]
        return []


@pytest.mark.parametrize("listing", LISTINGS)
async def test_a_listing_is_answered_from_an_index(sqlite_url: str, listing: str) -> None:
    def plan(reader: Reader) -> list[str]:
        planner = Planner(reader)
        LISTINGS[listing](cast(Reader, planner))
        return planner.steps

    async with open_database(sqlite_url) as database:
        steps = await database.read(plan)
    assert any("USING INDEX tape_" in step or "USING INDEX sqlite_autoindex" in step for step in steps), steps
    assert not [step for step in steps if re.fullmatch(r"SCAN tape_\w+", step)], steps


async def test_runs_are_recovered_without_looking_at_executions_that_wait_for_a_worker(sqlite_url: str) -> None:
    def plan(reader: Reader) -> list[str]:
        planner = Planner(reader)
        runs.list_recoverable(cast(Reader, planner))
        return planner.steps

    async with open_database(sqlite_url) as database:
        steps = await database.read(plan)
    assert "INDEX tape_runs_to_recover" in steps[0], steps


async def test_events_of_a_session_are_found_without_looking_at_those_of_other_tenants(sqlite_url: str) -> None:
    def plan(reader: Reader) -> list[str]:
        planner = Planner(reader)
        sessions.list_events(cast(Reader, planner), "app", "u", "s", newest=1)
        return planner.steps

    async with open_database(sqlite_url) as database:
        steps = await database.read(plan)
    assert len(steps) == 1, steps
    assert steps[0].endswith("(app_name=? AND user_id=? AND session_id=? AND tenant=?)"), steps


async def test_owed_obligations_are_found_without_looking_at_the_others(sqlite_url: str) -> None:
    def plan(reader: Reader) -> list[str]:
        planner = Planner(reader)
        obligations.list_unresolved(cast(Reader, planner), only_owed=True)
        return planner.steps

    async with open_database(sqlite_url) as database:
        steps = await database.read(plan)
    assert "INDEX tape_obligations_owed" in steps[0], steps
    assert not [step for step in steps if "tape_obligations_open" in step], steps


async def test_postgres_finds_owed_obligations_without_looking_at_the_others(postgres: Postgres) -> None:
    def plan(reader: Reader) -> str:
        class Explainer:
            def query(self, sql: str, *params: Any) -> list[Any]:
                steps.extend(str(row[0]) for row in reader.query(f"EXPLAIN {sql}", *params))
                return []

        steps: list[str] = []
        obligations.list_unresolved(cast(Reader, Explainer()), only_owed=True)
        return "\n".join(steps)

    columns = ("run_id", "seq", "effect_key", "kind", "status", "ts_ms", "next_attempt_at_ms")
    healthy = [("r", number, f"k{number}", "refund", 1, 1, 1) for number in range(20_000)]
    with postgres.fresh_database() as url:
        async with open_database(url) as database:
            await database.write(lambda tx: tx.insert("tape_obligations", columns, healthy))
            seen = await database.read(plan)
    assert "tape_obligations_owed" in seen, seen
    assert "tape_obligations_open" not in seen
