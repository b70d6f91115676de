"""An agent's process is killed at every step, and another process finishes: nothing is done or asked twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tape.proto import tape_pb2 as pb
from tests.adk.crashing import CALLS
from tests.services import ServerProcess

# Dozens of processes are started, one after the other: on a busy machine that takes a while.
pytestmark = pytest.mark.timeout(900)

# What each scenario comes to: how many things are done, which answers models are asked for, what is said.
SCENARIOS: dict[str, dict[str, Any]] = {
    "one agent": {
        "done": 3,
        "asked": ["one-0", "one-1", "one-2"],
        "state": {"paid-1": 1, "paid-2": 2},
        "said": ["done"],
    },
    "sequential agents": {
        "done": 2,
        "asked": ["left-0", "left-1", "right-0", "right-1"],
        "state": {"paid-3": 3},
        "said": ["paid", "paid"],
    },
    "parallel agents": {
        "done": 2,
        "asked": ["left-0", "left-1", "right-0", "right-1"],
        "state": {"paid-3": 3},
        "said": ["paid", "paid"],
    },
    "loop": {
        "done": 2,
        "asked": ["again-0", "again-1", "again-2", "again-3"],
        "state": {"paid-3": 3},
        "said": ["paid", "paid"],
    },
    "workflow": {
        "done": 2,
        "asked": ["left-0", "left-1", "right-0", "right-1"],
        "state": {"paid-3": 3},
        "said": ["paid", "paid"],
    },
    "workflow that forks": {
        "done": 2,
        "asked": ["left-0", "left-1", "right-0", "right-1"],
        "state": {"paid-3": 3},
        "said": ["paid", "paid"],
    },
    "transfer to another agent": {
        "done": 1,
        "asked": ["helper-0", "helper-1", "root-0"],
        "state": {"paid-3": 3},
        "said": ["paid"],
    },
    "agent of a single turn": {
        "done": 1,
        "asked": ["inner-0", "inner-1", "outer-0", "outer-1"],
        "state": {"paid-3": 3},
        "said": ["paid", "done"],
    },
    "agent as a tool": {
        "done": 1,
        "asked": ["inner-0", "inner-1", "outer-0", "outer-1"],
        "state": {"paid-3": 3},
        "said": ["done"],
    },
}


def deaths(store: str, scenario: str, folder: Path) -> list[dict[str, Any]]:
    """One story per call of the server at which the agent's process died."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.adk.crashing"]
    with ServerProcess(store) as server:
        done = subprocess.run(
            [*command, server.url, scenario, str(folder)],
            capture_output=True,
            text=True,
            timeout=800,
            env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "0"},
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(scenario: str, stories: list[dict[str, Any]]) -> None:
    expected = SCENARIOS[scenario]
    died_at = [story["died_at"] for story in stories]
    assert set(CALLS) <= set(died_at), died_at
    for story in stories:
        where = f"{story['moment']} {story['died_at']}: {json.dumps(story)}"
        assert story["statuses"] == [pb.RUN_STATUS_TERMINAL], where
        assert len(story["keys"]) == expected["done"], where
        assert story["state"] == expected["state"], where
        assert story["said"] == expected["said"], where
        assert len(story["marks"]) == len(set(story["marks"])), f"a decision was shown twice {where}"
        assert sorted(story["asked"]) == expected["asked"], where
        # Only an answer that died with its process before it was on record has to be asked for again.
        assert story["asked_although_on_record"] == [], where
        assert set(story["asked"].values()) <= {1, 2}, where


# A third of them; the others are proofs, and one agent alone is tried on PostgreSQL below.
QUICK = ("parallel agents", "workflow", "agent as a tool")


@pytest.mark.parametrize("scenario", QUICK)
def test_an_agent_killed_at_any_step_finishes_without_acting_or_asking_twice(
    scenario: str, sqlite_url: str, tmp_path: Path
) -> None:
    check(scenario, deaths(sqlite_url, scenario, tmp_path))


def test_the_same_on_postgres(postgres: Any, tmp_path: Path) -> None:
    with postgres.fresh_database() as url:
        check("one agent", deaths(url, "one agent", tmp_path))


@pytest.mark.proof
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_on_both_stores(scenario: str, store_url: str, tmp_path: Path) -> None:
    check(scenario, deaths(store_url, scenario, tmp_path))
