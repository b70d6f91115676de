"""Programs written from the text of the contracts run when only their imports are changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape.reactions import get_registry

HERE = Path(__file__).parent


def programs(name: str) -> list[tuple[str, str]]:
    text = (HERE / name).read_text()
    return re.findall(r"^(\w[^\n]*):\n\n```python\n(.*?)^```$", text, re.M | re.S)


BUS = programs("bus_programs.md")
SESSION = programs("session_programs.md")


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    before = list(get_registry())
    get_registry().clear()
    yield
    get_registry()[:] = before


def run(title: str, program: str, **names: Any) -> None:
    exec(compile(program, title, "exec"), {"__name__": "program", **names})


@pytest.mark.parametrize(("title", "program"), BUS, ids=[title for title, _ in BUS])
def test_a_program_of_the_event_bus_sdk_runs(title: str, program: str, url: str) -> None:
    changed = re.sub(r"^import tape$", "from tape.compat import bus as tape", program, flags=re.M)
    run(title, re.sub(r"^from tape\.(?!compat)", "from tape.compat.bus.", changed, flags=re.M), URL=url)


@pytest.mark.parametrize(("title", "program"), SESSION, ids=[title for title, _ in SESSION])
def test_a_program_of_the_durable_event_log_runs(title: str, program: str, tmp_path: Path) -> None:
    run(title, program.replace("from adk_fluent import", "from tape.compat.session import"), FOLDER=str(tmp_path))


def test_the_programs_are_found() -> None:
    assert (len(BUS), len(SESSION)) == (4, 6)
