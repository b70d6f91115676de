"""A claim that leases new tasks before they are inserted gives what it gives after they are inserted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.engine.reactions import claims, registry
from tape.engine.reactions.claims import ANY_SHARD, ClaimRequest, ClaimResult
from tape.engine.reactions.new_tasks import NewTasks
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.engine.reactions.task_order import WAITS_MS
from tape.engine.reactions.tasks import CLAIMED, COLUMNS, DONE, PENDING, Task
from tape.model.principal import SYSTEM, Principal, acting_as
from tape.model.reaction_states import HandlerKind
from tape.store import Transaction, open_database
from tape.store.connection import DatabaseConnection
from tape.store.records import row_of

EXAMPLES = settings.default.max_examples  # more of them in proofs
NOW = 1_763_000_000_000
DAY = 86_400_000
PRINCIPALS = (SYSTEM, Principal(tenant="a"), Principal(tenant="a", read=("/tape/order/1/**",)))
# Those before now are due, or have expired; the one in 40 days is void.
TIMES = (NOW - 1_000, NOW, NOW + 1_000, NOW + 2_000, NOW + 40 * DAY, WAITS_MS, WAITS_MS)


class Ask(NamedTuple):
    """A claim: whose, of which reaction and shard, and how many."""

    principal: int
    reaction_id: str
    shard: int
    max: int


def task(number: int, **fields: Any) -> Task:
    """A task that is due; its number is its entry's."""
    defaults: dict[str, Any] = {
        "task_id": f"t{number:03d}",
        "reaction_id": "r",
        "shard": 0,
        "source_run_id": "run",
        "source_global_seq": number,
        "subject": "/tape/order/1/paid",
        "payload_json": "{}",
        "status": PENDING,
        "attempts": 0,
        "next_attempt_at_ms": NOW,
        "lease_owner": "",
        "lease_expires_at_ms": 0,
        "last_error": "",
        "created_at_ms": NOW,
        "completed_at_ms": 0,
        "trace_id": "",
        "parent_span_id": "",
        "first_global_seq": number,
        "coalesced": 0,
        "redriven": 0,
        "debounced": False,
        "strict_order": False,
        "source_seq": number,
        "source_ts_ms": NOW,
        "schema_version": 1,
    }
    return Task(**(defaults | fields))


def of_any_kind(numbers: Sequence[int], *, is_new: bool) -> st.SearchStrategy[list[Task]]:
    """Tasks with these numbers, in any state that such tasks can have."""
    due = st.sampled_from((NOW, NOW, NOW, WAITS_MS) if is_new else TIMES)
    state = (
        st.just((PENDING, 0, 0))
        if is_new
        else st.one_of(
            st.tuples(st.just(PENDING), st.integers(0, 2), st.just(0)),
            st.tuples(
                st.just(CLAIMED), st.integers(1, 2), st.sampled_from([each for each in TIMES if each < WAITS_MS])
            ),
            st.tuples(st.just(DONE), st.just(1), st.just(0)),
        )
    )

    def build(number: int) -> st.SearchStrategy[Task]:
        return st.builds(
            lambda state, due, reaction_id, shard, tenant, place, batch: task(
                number,
                status=state[0],
                attempts=state[1],
                lease_expires_at_ms=state[2],
                lease_owner="before" if state[0] == CLAIMED else "",
                next_attempt_at_ms=due,
                reaction_id=reaction_id,
                shard=shard,
                tenant=tenant,
                subject=f"/tape/order/{place}/paid",
                batch=batch,
            ),
            state,
            due,
            st.sampled_from(["r", "r", "s"]),
            st.integers(0, 1),
            st.sampled_from(["a", "b"]),
            st.integers(1, 2),
            st.sampled_from([0] * 9 + [2]),
        )

    return st.tuples(*map(build, numbers)).map(list)


REACTIONS = st.fixed_dictionaries(
    {
        "max_concurrency": st.integers(1, 6),
        "rate_limit_per_s": st.sampled_from([0, 0, 20]),
        "strict_order": st.sampled_from([False, False, True]),
        "dlq_after_n": st.integers(1, 3),
    }
)
ASKS = st.lists(
    st.builds(
        Ask,
        st.integers(0, len(PRINCIPALS) - 1),
        st.sampled_from(["r", "r", "s"]),
        st.sampled_from([ANY_SHARD, ANY_SHARD, 1]),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def connection(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseConnection]:
    """A connection to an empty database."""
    path = tmp_path_factory.mktemp("new-tasks") / "tape.db"
    shutil.copyfile(migrated_file, path)
    connection = open_database(f"sqlite:{path}").connect()
    yield connection
    connection.close()


@pytest.fixture
def tx(connection: DatabaseConnection) -> Iterator[Transaction]:
    """A transaction that is undone."""
    connection.begin()
    yield Transaction(connection)
    connection.rollback()


def register(tx: Transaction, reaction_id: str = "r", **fields: Any) -> None:
    wanted = Reaction(reaction_id, "", "/tape/order/1/**", "", HandlerKind.TASK, **fields)
    registry.register(tx, check_reaction(wanted))


def assert_same_in_either_order(
    connection: DatabaseConnection, before: list[Task], created: list[Task], fields: dict[str, Any], asks: list[Ask]
) -> None:
    """Assert that claims give the same before and after new tasks are inserted, and leave the same rows."""

    def play(tx: Transaction, *, inserts_first: bool) -> tuple[list[ClaimResult], list[Any]]:
        for reaction_id in ("r", "s"):
            register(tx, reaction_id, num_shards=2, **fields)
        is_strict = fields.get("strict_order", False)
        before_rows, rows = (
            [row_of(msgspec.structs.replace(each, strict_order=is_strict)) for each in some]
            for some in (before, created)
        )
        tx.insert("tape_tasks", Task.__struct_fields__, before_rows)
        new = NewTasks(rows)
        if inserts_first:
            new.insert(tx)
        results = []
        for number, ask in enumerate(asks):
            request = ClaimRequest(ask.reaction_id, f"w{number}", 60_000, ask.max, ask.shard)
            with acting_as(PRINCIPALS[ask.principal]):
                results.append(claims.claim_tasks(tx, request, NOW, new))
        new.insert(tx)
        pace = tx.query("SELECT * FROM tape_reaction_pace ORDER BY reaction_id")
        return results, [*pace, *tx.query(f"SELECT {COLUMNS} FROM tape_tasks ORDER BY task_id")]

    results = []
    for inserts_first in (True, False):
        connection.begin()
        try:
            results.append(play(Transaction(connection), inserts_first=inserts_first))
        finally:
            connection.rollback()
    assert results[0] == results[1]


@settings(max_examples=5 * EXAMPLES)
@given(
    before=st.sampled_from([0, 0, 1, 1, 4]).flatmap(lambda count: of_any_kind(range(count), is_new=False)),
    created=st.integers(1, 5).flatmap(lambda count: of_any_kind(range(10, 10 + count), is_new=True)),
    fields=REACTIONS,
    asks=ASKS,
)
def test_new_tasks_are_claimed_as_if_they_were_inserted_before(
    connection: DatabaseConnection, before: list[Task], created: list[Task], fields: dict[str, Any], asks: list[Ask]
) -> None:
    assert_same_in_either_order(connection, before, created, fields, asks)


@pytest.mark.parametrize(
    ("before", "fields"),
    [
        ({}, {}),
        ({}, {"strict_order": True}),
        ({}, {"rate_limit_per_s": 1}),
        ({}, {"max_concurrency": 1}),
        ({"next_attempt_at_ms": NOW - 1}, {}),
        ({"next_attempt_at_ms": NOW + 1}, {}),
        ({"next_attempt_at_ms": NOW + 40 * DAY}, {}),
        ({"next_attempt_at_ms": WAITS_MS}, {}),
        ({"status": CLAIMED, "lease_expires_at_ms": NOW + 1, "lease_owner": "before"}, {"max_concurrency": 1}),
        ({"status": CLAIMED, "lease_expires_at_ms": NOW - 1, "lease_owner": "before"}, {}),
        ({"status": CLAIMED, "lease_expires_at_ms": NOW - 1, "attempts": 9}, {"max_concurrency": 1}),
    ],
    ids=str,
)
def test_tasks_in_the_table_come_before_new_ones(
    connection: DatabaseConnection, before: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert_same_in_either_order(
        connection,
        [task(1, **before)] if before else [],
        [task(10), task(11)],
        {"max_concurrency": 10} | fields,
        [Ask(0, "r", ANY_SHARD, 2), Ask(0, "r", ANY_SHARD, 2)],
    )


def test_new_tasks_are_inserted_once_and_leased_as_they_were_claimed(tx: Transaction) -> None:
    register(tx, max_concurrency=2)
    new = NewTasks([row_of(task(number)) for number in (1, 2, 3)])
    claimed = claims.claim_tasks(tx, ClaimRequest("r", "w", 60_000, 16), NOW, new)
    assert [each.task_id for each in claimed.tasks] == ["t001", "t002"]
    assert tx.query("SELECT task_id FROM tape_tasks") == [], "they are leased before they are inserted"
    new.insert(tx)
    new.insert(tx)
    rows = tx.query("SELECT task_id, status, attempts, lease_owner FROM tape_tasks ORDER BY task_id")
    assert rows == [("t001", CLAIMED, 1, "w"), ("t002", CLAIMED, 1, "w"), ("t003", PENDING, 0, "")]


def test_a_second_claim_counts_what_the_first_has_leased(tx: Transaction) -> None:
    register(tx, max_concurrency=3)
    new = NewTasks([row_of(task(number)) for number in range(1, 6)])
    first = claims.claim_tasks(tx, ClaimRequest("r", "v", 60_000, 2), NOW, new)
    second = claims.claim_tasks(tx, ClaimRequest("r", "w", 60_000, 16), NOW, new)
    assert [each.task_id for each in first.tasks] == ["t001", "t002"]
    assert [each.task_id for each in second.tasks] == ["t003"]


def test_other_servers_are_notified_of_tasks_that_are_not_leased_only(tx: Transaction) -> None:
    register(tx, max_concurrency=1)
    for number, is_notified in ((1, False), (2, True)):
        tx.notices.clear()
        new = NewTasks([row_of(task(number))])
        claims.claim_tasks(tx, ClaimRequest("r", "w", 60_000, 1), NOW, new)
        new.insert(tx)
        assert ("tape_tasks" in tx.notices) is is_notified
