"""Programs as users of the log write them, run as they are printed in `programs.md`.

They import from `adk_fluent`, a framework whose names for these parts are the same as ours; here that name is `tape`.
"""

from __future__ import annotations

import asyncio
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import tape

PROGRAMS = re.findall(r"^```python\n(.*?)^```$", (Path(__file__).parent / "programs.md").read_text(), re.M | re.S)


class App:
    """The framework's builder, as far as the programs use it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.plugins: list[Any] = []

    def root(self, workflow: Any) -> App:
        self.workflow = workflow
        return self

    def plugin(self, plugin: Any) -> App:
        self.plugins.append(plugin)
        return self

    def build(self) -> App:
        return self


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("adk_fluent")
    module.__getattr__ = lambda name: App if name == "App" else getattr(tape, name)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "adk_fluent", module)


def run(number: int, tmp_path: Path, **names: Any) -> dict[str, Any]:
    program = PROGRAMS[number].replace("/tmp/", f"{tmp_path}/")
    space: dict[str, Any] = dict(names)
    exec(compile(program, f"program {number}", "exec"), space)
    return space


def test_there_are_five() -> None:
    assert len(PROGRAMS) == 5


def test_cursors_and_seq(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(0, tmp_path)
    assert capsys.readouterr().out == "1 text\n"


async def test_async_tail(tmp_path: Path) -> None:
    shown: list[Any] = []

    async def push_to_ui(entry: Any) -> None:
        shown.append(entry["text"])

    space = run(1, tmp_path, push_to_ui=push_to_ui)
    log = tape.SessionTape()
    log.record({"kind": "text", "text": "old"})
    mirror = asyncio.create_task(space["mirror_to_ui"](log))
    while len(shown) < 1:
        await asyncio.sleep(0)
    log.record({"kind": "text", "text": "new"})
    while len(shown) < 2:
        await asyncio.sleep(0)
    mirror.cancel()
    assert shown == ["old", "new"]


def test_pluggable_backends(tmp_path: Path) -> None:
    space = run(2, tmp_path)
    space["tape"].close()
    assert tape.SessionTape.load(tmp_path / "session.jsonl").events == space["mirror"].entries


async def test_workflow_lifecycle(tmp_path: Path) -> None:
    workflow = types.SimpleNamespace(name="flow")
    space = run(3, tmp_path, my_workflow=workflow)
    for plugin in space["app"].plugins:
        await plugin.before_agent_callback(agent=workflow, callback_context=None)
        await plugin.after_agent_callback(agent=workflow, callback_context=None)
    assert [entry["kind"] for entry in space["store"].tape.events] == ["step_started", "step_completed"]


async def test_stream_from_a_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = run(4, tmp_path)
    for kind, text in (("text", "a"), ("note", "b"), ("text", "c")):
        space["tape"].record({"kind": kind, "text": text})
    watching = asyncio.create_task(space["watch_text"](1))
    while not space["tape"]._waiters:
        await asyncio.sleep(0)
    watching.cancel()
    assert capsys.readouterr().out == "2 c\n"
