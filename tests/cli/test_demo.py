"""The demonstrations show what they promise, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys


def demo(name: str) -> str:
    """What a demonstration prints."""
    env = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "tape", "demo", name], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BOOK = """
  T-001   25,000  savings
  T-002   10,000  bonds
  T-003    5,000  reserve
"""


def test_a_killed_agent_is_finished_by_another_and_no_money_moves_twice() -> None:
    shown = demo("crash-resume")
    assert "killed (exit code -9)" in shown
    assert shown.count("model:") == 1
    assert "effect transfer pending" in shown
    assert BOOK in shown
    assert "The bank was asked 4 times and moved money 3 times" in shown


def test_a_lost_answer_is_reconciled_and_nothing_is_repeated() -> None:
    shown = demo("unknown-reconcile")
    assert shown.count("model:") == 1
    assert "effect transfer unknown" in shown
    assert "reactor: transfer is confirmed" in shown
    assert BOOK in shown
    assert "asked to move money 3 times: nothing was repeated" in shown
