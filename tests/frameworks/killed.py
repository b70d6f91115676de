"""Examples of agent frameworks, killed at each commit of the server and in the middle of a tool, and carried on.

An example prints a line for each call of its model (`asking …`) and for each request that its other side receives
(`bank: … with key …`). Its other side recognises a key that it has seen.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tape import TapeClient
from tape.errors import ServerUnreachable
from tape.proto import tape_pb2 as pb
from tests.services import ServerProcess
from tests.system.fragile_server import MOMENTS, FragileServer

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MOST = 120  # commits of one drive, with what a server commits for itself meanwhile

# Nothing of a test calls out: no framework sends traces.
QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}


@dataclass(frozen=True)
class Example:
    """A program, and what it comes to."""

    name: str
    app: str
    asked: int  # calls of the model
    received: tuple[str, ...]  # what the other side gets, without the keys
    answer: str


@dataclass
class Story:
    """What a program printed, over all of its executions."""

    lines: list[str]

    def asked(self) -> int:
        return sum(line.startswith("asking") for line in self.lines)

    def received(self) -> dict[str, str]:
        """What the other side got, by key."""
        seen: dict[str, set[str]] = {}
        for line in self.lines:
            if line.startswith("bank: "):
                what, _, key = line.removeprefix("bank: ").partition(" with key ")
                seen.setdefault(key, set()).add(what)
        assert all(len(each) == 1 for each in seen.values()), f"one key for several requests: {seen}"
        return {key: each.pop() for key, each in seen.items()}


def drive(example: Example, url: str, day: str, capture: pytest.CaptureFixture[str]) -> tuple[list[str], bool]:
    """Execute the program in this process; what it printed, and whether it came to its end."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUIET, "TAPE_URL": url, "DAY": day}.items():
            patch.setenv(name, value)
        # One owner for all executions, so that a test does not have to wait for leases to expire.
        patch.setattr("tape.durable.runs.new_owner", lambda: "agent")
        patch.setattr("tape.durable.server_retry.DEADLINE_S", 0)
        capture.readouterr()
        try:
            runpy.run_path(str(EXAMPLES / example.name), run_name="__main__")
            is_done = True
        except ServerUnreachable:
            is_done = False
    return capture.readouterr().out.splitlines(), is_done


def kill_server_at_each_commit(
    example: Example, store: str, moment: str, capture: pytest.CaptureFixture[str], *, every: int = 1
) -> None:
    """Execute the program once for each commit at which its server dies, and carry each on."""
    stories: dict[str, Story] = {}
    with ServerProcess(store):
        pass  # it makes the tables: those commits are not of interest
    for number in range(1, MOST + 1, every):
        with FragileServer(store, moment, number) as server:
            lines, is_done = drive(example, server.url, f"{moment}-{number}", capture)
            stories[f"{moment}-{number}"] = Story(lines)
            if is_done:
                break
    else:
        raise AssertionError("the program does not come to its end")
    assert len(stories) > 10 // every, "it has more commits than that"
    with ServerProcess(store) as server, TapeClient(server.url) as client:
        on_record = recorded_decisions(client)
        for day, story in stories.items():
            recorded = sum(on_record[run.run_id] for run in runs_of(client, example, day))
            lines, is_done = drive(example, server.url, day, capture)
            assert is_done
            again = Story(lines)
            assert again.asked() <= max(0, example.asked - recorded), f"{day}: asked for what is on record: {lines}"
            story.lines += lines
            assert Counter(story.received().values()) == Counter(example.received), f"{day}: {story.lines}"
            assert example.asked <= story.asked() <= example.asked + 1, f"{day}: {story.lines}"
            assert [run.status for run in runs_of(client, example, day)] == [pb.RUN_STATUS_TERMINAL], day


def kill_program_at(example: Example, url: str, line: str) -> None:
    """kill -9 the program when its other side has got a request, and execute it again."""
    code = (
        "import runpy, sys, tape.durable.runs as runs; runs.new_owner = lambda: 'agent'; "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(EXAMPLES / example.name)]
    env: Mapping[str, str] = os.environ | QUIET | {"TAPE_URL": url, "DAY": "killed", "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for printed in program.stdout:
            lines.append(printed.rstrip("\n"))
            if printed.startswith(line):
                program.kill()
                break
    assert program.returncode == -9, lines
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    story = Story(lines + done.stdout.splitlines())
    assert Counter(story.received().values()) == Counter(example.received), story.lines
    assert story.asked() == example.asked, story.lines
    assert story.lines[-1] == example.answer


def recorded_decisions(client: TapeClient) -> Counter[str]:
    """How many answers of models each run has on record."""
    counts: Counter[str] = Counter()
    head = client.head().global_seq
    for entry in client.follow(""):
        if entry.subject.startswith("/tape/decision/recorded/"):
            counts[entry.run_id] += 1
        if entry.global_seq >= head:
            break
    return counts


def runs_of(client: TapeClient, example: Example, day: str) -> list[pb.RunState]:
    """The runs of a day."""
    runs = client.list_runs(app_name=example.app, limit=MOST * 2).runs
    return [run for run in runs if run.invocation_id.endswith(f"-{day}")]


__all__ = ["MOMENTS", "Example", "Story", "drive", "kill_program_at", "kill_server_at_each_commit"]
