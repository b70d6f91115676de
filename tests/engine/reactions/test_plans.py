"""Nothing that is asked all the time reads a whole table: SQLite says how it would answer each question."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from tape.engine.reactions import claims, compiled, dead_letters, registry, statistics
from tape.engine.reactions.claims import ClaimTerms
from tape.engine.reactions.explanation import _task_of
from tape.engine.reactions.reaction import Reaction
from tape.model.principal import Principal, acting_as
from tape.model.reaction_states import HandlerKind
from tape.store import Reader, Transaction, open_database
from tests.engine.ledgers.test_plans import Planner

REACTION = Reaction("r", "", "/tape/**", "", HandlerKind.TASK, num_shards=2)
STRICT = Reaction("r", "", "/tape/**", "", HandlerKind.TASK, strict_order=True)
TERMS = ClaimTerms("w", 60_000, 5, first_expiry=1)
ONE_SHARD = ClaimTerms("w", 60_000, 5, shard=1, first_expiry=1)


def as_a_tenant(question: Callable[[], object]) -> object:
    with acting_as(Principal(tenant="t")):
        return question()


QUESTIONS: dict[str, Callable[[Any], object]] = {
    "candidates": lambda reader: claims._candidates(reader, REACTION, 10, TERMS),
    "candidates of a shard": lambda reader: claims._candidates(reader, REACTION, 10, ONE_SHARD),
    "candidates in strict order": lambda reader: claims._candidates(reader, STRICT, 10, TERMS),
    "candidates of a tenant": lambda reader: as_a_tenant(lambda: claims._candidates(reader, REACTION, 10, TERMS)),
    "dead letters of a tenant": lambda reader: as_a_tenant(lambda: dead_letters.list_tasks(reader, "", status=5)),
    "abandoned at the last attempt": lambda reader: claims._dead_letter_exhausted(reader, REACTION, 5),
    "what is due next": lambda reader: claims._next_due(reader, REACTION, TERMS, True),
    "tasks whose due time is void": lambda reader: claims._select_void(reader, "r", 5, 1, 10),
    "the last due time": lambda reader: claims.read_last_due(reader, "r"),
    "what is ready": lambda reader: claims.find_ready(reader, ["r"], 5),
    "tasks of a reaction": lambda reader: dead_letters.list_tasks(reader, "r"),
    "dead letters of a reaction": lambda reader: dead_letters.list_tasks(reader, "r", status=5),
    "dead letters of all": lambda reader: dead_letters.list_tasks(reader, "", status=5),
    "claimed tasks of all": lambda reader: dead_letters.list_tasks(reader, "", status=2),
    "done tasks": lambda reader: dead_letters.list_tasks(reader, "r", status=3, before=9),
    "dead letters to redrive": lambda reader: dead_letters._read_page(reader, "r", (0, "")),
    "tasks by state": lambda reader: statistics._open_tasks(reader, "reaction_id = ?", "r"),
    "changes of the registry": lambda reader: registry.list_changed_since(reader, 3),
    "shards": lambda reader: compiled.read_shards(reader, ["r"]),
    "whether a lane is used": lambda reader: registry._has_live_cursor(reader, 3),
    "the task of an entry": lambda reader: _task_of(reader, REACTION, cast(Any, _Entry), ""),
}


class _Entry:
    global_seq = 4
    subject = "/tape/a/b"
    tenant = ""


class _Planner(Planner):
    def one(self, sql: str, *params: Any) -> None:
        self.query(sql, *params)

    def is_any(self, column: str, values: list[str]) -> tuple[str, Any]:
        return self._reader.is_any(column, values)


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_question_is_answered_from_an_index(sqlite_url: str, question: str) -> None:
    def plan(reader: Reader) -> list[str]:
        planner = _Planner(reader)
        QUESTIONS[question](cast(Transaction, planner))
        return planner.steps

    async with open_database(sqlite_url) as database:
        steps = await database.read(plan)
    assert any("USING INDEX" in step or "USING COVERING INDEX" in step or "PRIMARY KEY" in step for step in steps), (
        steps
    )
    assert not [step for step in steps if re.fullmatch(r"SCAN tape_\w+", step)], steps
