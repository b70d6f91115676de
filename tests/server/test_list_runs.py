"""ListRuns: all runs, an app's, a user's, a session's, on both databases."""

from __future__ import annotations

import itertools

import pytest

from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb
from tape.server.server import Server


@pytest.fixture
async def begun(client: AsyncTapeClient) -> list[str]:
    """Runs of two apps, two users and two sessions; every third one is over. In the order they began."""
    found = []
    identities = itertools.product(("billing", "treasury"), ("ann", "bob"), ("s1", "s2"), range(3))
    for app_name, user_id, session_id, number in identities:
        begun = await client.begin_run(
            app_name=app_name, user_id=user_id, session_id=session_id, invocation_id=str(number)
        )
        if number == 2:
            await client.end_run(run_id=begun.run_id)
        found.append(begun.run_id)
    return found


def order(runs: list[pb.RunState]) -> list[tuple[int, str]]:
    return [(run.started_at_ms, run.run_id) for run in runs]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({}, 24),
        ({"app_name": "billing"}, 12),
        ({"app_name": "billing", "user_id": "bob"}, 6),
        ({"app_name": "billing", "user_id": "bob", "session_id": "s2"}, 3),
        ({"status": pb.RUN_STATUS_TERMINAL}, 8),
        ({"app_name": "treasury", "status": pb.RUN_STATUS_TERMINAL}, 4),
        ({"app_name": "treasury", "user_id": "ann", "status": pb.RUN_STATUS_RUNNING}, 4),
        ({"app_name": "treasury", "user_id": "ann", "session_id": "s1", "status": pb.RUN_STATUS_TERMINAL}, 1),
        ({"status": pb.RUN_STATUS_STUCK}, 0),
        ({"app_name": "missing"}, 0),
    ],
)
async def test_runs_are_listed_newest_first_and_only_those_wanted(
    client: AsyncTapeClient, begun: list[str], wanted: dict[str, object], count: int
) -> None:
    runs = list((await client.list_runs(**wanted)).runs)  # type: ignore[arg-type]
    assert len(runs) == count
    assert order(runs) == sorted(order(runs), reverse=True)
    assert all(getattr(run, name) == value for run in runs for name, value in wanted.items())
    assert {run.run_id for run in runs} <= set(begun)


@pytest.mark.parametrize("wanted", [{}, {"app_name": "billing"}, {"app_name": "billing", "user_id": "ann"}])
async def test_pages_follow_each_other_without_a_gap_also_among_runs_of_one_millisecond(
    client: AsyncTapeClient, server: Server, begun: list[str], wanted: dict[str, str]
) -> None:
    await server.database.write(lambda tx: tx.execute("UPDATE tape_runs SET started_at_ms = 1000 + seq_cursor / 2"))
    whole = order(list((await client.list_runs(**wanted)).runs))
    paged: list[tuple[int, str]] = []
    before = (0, "")
    while page := order(
        list((await client.list_runs(**wanted, limit=2, before_started_at_ms=before[0], before_run_id=before[1])).runs)
    ):
        assert len(page) <= 2
        paged += page
        before = page[-1]
    assert paged == whole
    assert len({started for started, _ in whole}) < len(whole) / 2


async def test_a_page_may_begin_at_a_time_alone(client: AsyncTapeClient, begun: list[str]) -> None:
    newest = (await client.list_runs(limit=1)).runs[0]
    older = (await client.list_runs(before_started_at_ms=newest.started_at_ms)).runs
    assert all(run.started_at_ms < newest.started_at_ms for run in older)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"user_id": "ann"}, "user_id 'ann' needs the app_name it belongs to"),
        ({"app_name": "billing", "session_id": "s1"}, "session_id 's1' needs the user_id it belongs to"),
        ({"status": 99}, "status 99 is not one of RUNNABLE"),
    ],
)
async def test_an_invalid_filter_is_rejected_by_name(
    client: AsyncTapeClient, wanted: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        await client.list_runs(**wanted)  # type: ignore[arg-type]
