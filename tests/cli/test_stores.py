"""Every command finds its store in the same way, and a command that reads creates none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tape.cli.main import COMMANDS, app
from tape.model.service_key import make_key
from tests.forked import tape

# The commands that work on a store, with the least arguments that they need.
READING = {
    "access check": ["BeginRun", "--as", make_key().text],
    "access migrate": ["--to", "acme"],
    "cel eval": ["true", "--seq", "1"],
    "cel explain": ["true", "--seq", "1"],
    "keys list": [],
    "keys revoke": ["worker"],
    "keys revoke-token": ["some-jti"],
    "keys rotate": ["worker"],
    "migrate": ["--check"],
    "pipeline run archive": ["--lake", "lake"],
    "pipeline run backtest": [],
    "pipeline run fanout": ["--sink", "log:", "--name", "x"],
    "pipeline run ingest": ["x"],
    "pipeline run match": ["--reaction", "x"],
    "pipeline run replay": ["--with", "x:y"],
    "pipeline run report": [],
    "pipeline run rollup": [],
    "prune": ["--before", "1", "--dry-run"],
    "reactions backtest": [],
    "backup": ["target"],
    "checkpoint": [],
    "info": [],
    "verify": [],
    "wallet delete": ["alias", "--yes"],
    "wallet list": [],
    "wallet rotate": [],
}
CREATING = {
    "keys create": ["worker", "--tenant", "acme", "--scope", "agent"],
    "migrate": [],
    "wallet set": ["alias"],
}
# They are tested below, or their store is another thing: where executors of Spark write directly.
OTHERS = {"serve", "doctor", "restore", "pipeline run subscription", "ingress test"}
SOURCES = ("--store", "TAPE_STORE", "TAPE_DB", "TAPE_CONFIG", "tape.toml", "default")


def commands_with_a_store() -> Iterator[str]:
    group: Any = typer.main.get_group(app)

    def walk(command: Any, path: list[str]) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, [*path, name])
        if any("--store" in param.opts for param in command.params):
            yield " ".join(path)

    for name in COMMANDS:
        yield from walk(group.get_command(typer.Context(group), name), [name])


def point_to(source: str, folder: Path) -> tuple[list[str], dict[str, str], str]:
    """Arguments and variables that name a store by one of the sources, and the name of its file."""
    if source == "--store":
        return ["--store", "sqlite:wanted.db"], {"TAPE_STORE": "sqlite:other.db"}, "wanted.db"
    if source == "TAPE_STORE":
        (folder / "tape.toml").write_text('store = "sqlite:other.db"\n')
        return [], {"TAPE_STORE": "sqlite:wanted.db", "TAPE_DB": "sqlite:other.db"}, "wanted.db"
    if source == "TAPE_DB":
        return [], {"TAPE_DB": "sqlite:wanted.db"}, "wanted.db"
    if source == "default":
        return [], {}, "tape.db"
    file = folder / ("tape.toml" if source == "tape.toml" else "settings.toml")
    file.write_text('store = "sqlite:wanted.db"\n')
    return [], {} if source == "tape.toml" else {"TAPE_CONFIG": str(file)}, "wanted.db"


def test_every_command_with_a_store_is_tested_here() -> None:
    assert set(commands_with_a_store()) == {*READING, *CREATING, *OTHERS}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("command", sorted(READING))
def test_a_command_that_reads_finds_the_store_and_creates_none(command: str, source: str, tmp_path: Path) -> None:
    flags, env, name = point_to(source, tmp_path)
    done = tape(*command.split(), *READING[command], *flags, env=env, cwd=tmp_path)
    assert done.returncode == 1
    assert name in done.stderr
    found_by = str(tmp_path / "settings.toml") if source == "TAPE_CONFIG" else source
    assert f"(found by: {found_by})" in done.stderr
    assert not list(tmp_path.glob("*.db*"))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("command", sorted(CREATING))
def test_a_command_that_creates_the_store_says_so(command: str, source: str, tmp_path: Path) -> None:
    flags, env, name = point_to(source, tmp_path)
    done = tape(*command.split(), *CREATING[command], *flags, env=env, cwd=tmp_path, stdin="a secret")
    assert done.returncode == 0
    assert f"There is no database at sqlite:{name}" in done.stderr
    assert [file.name for file in tmp_path.glob("*.db")] == [name]
    again = tape("verify", *flags, env=env, cwd=tmp_path)
    assert again.returncode == 0


@pytest.mark.parametrize("source", SOURCES)
def test_doctor_finds_the_store_and_creates_none(source: str, tmp_path: Path) -> None:
    flags, env, name = point_to(source, tmp_path)
    done = tape("doctor", *flags, env=env, cwd=tmp_path)
    assert f"sqlite:{name} does not exist yet" in done.stdout
    assert not list(tmp_path.glob("*.db*"))


def test_a_database_without_tables_of_tape_is_named_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    done = tape("verify", "--store", f"sqlite:{file}")
    assert done.returncode == 1
    assert "has no tables of Tape" in done.stderr
    assert file.stat().st_size == 0


def test_a_store_in_memory_cannot_be_read_by_another_process() -> None:
    done = tape("verify", "--store", "memory")
    assert done.returncode == 1
    assert "There is no database at" in done.stderr
