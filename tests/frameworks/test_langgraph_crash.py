"""The example of LangGraph, killed at each commit and in the middle of a tool."""

from __future__ import annotations

import pytest

from tests.frameworks.killed import MOMENTS, Example, kill_program_at, kill_server_at_each_commit
from tests.services import ServerProcess

EXAMPLE = Example(
    name="langgraph_agent.py",
    app="graphs",
    asked=2,
    received=("pay i-1", "pay i-2", "book 5 messages"),
    answer="Both invoices are paid.",
)


def test_its_server_killed_at_commits_leaves_nothing_asked_or_paid_twice(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_server_at_each_commit(EXAMPLE, sqlite_url, "after", capsys, every=3)


def test_its_process_killed_in_a_tool_is_carried_on_by_another(sqlite_url: str) -> None:
    with ServerProcess(sqlite_url) as server:
        kill_program_at(EXAMPLE, server.url, "bank: pay i-2")


@pytest.mark.proof
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_same_at_every_commit_and_moment(store_url: str, moment: str, capsys: pytest.CaptureFixture[str]) -> None:
    kill_server_at_each_commit(EXAMPLE, store_url, moment, capsys)
