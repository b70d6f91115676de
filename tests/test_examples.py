"""Every example runs as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import ServerProcess

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with ServerProcess(f"sqlite:{tmp_path_factory.mktemp('examples') / 'tape.db'}") as server:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield os.environ | {"PATH": path, "TAPE_URL": server.url, "PYTHONUNBUFFERED": "1"}


def run(command: list[str], env: dict[str, str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def example(name: str, env: dict[str, str]) -> list[str]:
    return run([sys.executable, str(EXAMPLES / name)], env)


def test_the_treasury_agent_sweeps_once(env: dict[str, str]) -> None:
    first = example("treasury.py", env)
    assert first[0] == "asking the model"
    assert first[1].startswith("bank: move 40,000 with key …")
    assert first[2] == "swept 40,000 as T-1"
    [second] = example("treasury.py", env)
    assert "nothing is left to do" in second


def test_the_approval_parks_and_goes_on(env: dict[str, str]) -> None:
    [parked] = example("approval.py", env)
    assert "waits at the gate 'release'" in parked
    answer = '{"approved": true, "by": "ann"}'
    who = ["--app", "payments", "--user", "ann", "--session", "november"]
    run([sys.executable, "-m", "tape", "signal", "release", *who, "--resolution", answer], env)
    assert example("approval.py", env) == ["approved by ann", "paid 12,000 for invoice-7"]


def test_the_budget_stops_the_agent(env: dict[str, str]) -> None:
    *searches, stop = example("budget_stop.py", env)
    assert searches == ["searching: attempt 1", "searching: attempt 2"]
    assert "usd cap" in stop


def test_the_compensation_undoes_newest_first(env: dict[str, str]) -> None:
    assert example("compensation.py", env) == [
        "flight TP 531 booked",
        "hotel Miramar booked",
        "The effect 'pay' failed: ValueError: the card was declined",
        "hotel Miramar cancelled",
        "flight TP 531 cancelled",
    ]


def test_the_outbox_sends_once(env: dict[str, str]) -> None:
    assert example("outbox.py", env) == [
        "queued: pending",
        "bank: 99.50 for inv-9",
        "dispatched: confirmed",
        "answer: {'booked': 9950}",
    ]


def test_the_pydantic_ai_agent_asks_and_pays_once(env: dict[str, str]) -> None:
    first = example("pydantic_ai_agent.py", env)
    assert [line for line in first if line.startswith("asking")] == [
        f"asking the model after {n} results" for n in (0, 2, 3)
    ]
    assert first[-1] == "Both invoices are paid."
    [second] = example("pydantic_ai_agent.py", env)
    assert second == "Both invoices are paid."  # from the record


def test_the_openai_agents_agent_hands_off_asks_and_pays_once(env: dict[str, str]) -> None:
    first = example("openai_agents_agent.py", env)
    assert len([line for line in first if line.startswith("asking")]) == 3
    assert first[-1] == "Both invoices are paid."
    [second] = example("openai_agents_agent.py", env)
    assert second == "Both invoices are paid."  # from the record


def test_the_langgraph_agent_asks_and_pays_once(env: dict[str, str]) -> None:
    first = example("langgraph_agent.py", env)
    assert [line for line in first if line.startswith("asking")] == [
        f"asking the model after {n} results" for n in (0, 2)
    ]
    assert first[-1] == "Both invoices are paid."
    [second] = example("langgraph_agent.py", env)
    assert second == "Both invoices are paid."  # from the record
