"""`pip install tape` without the extra `server`: the client commands work, `tape serve` says what to install."""

from __future__ import annotations

import re
import subprocess
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tape.base.extras import SERVER_LIBRARIES
from tape.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"


@pytest.fixture(scope="module")
def client_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment with the dependencies of `pip install tape` and nothing else."""
    folder = tmp_path_factory.mktemp("client")
    venv.create(folder, symlinks=True, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in _with_dependencies(project["dependencies"]):
        _link(name, packages)
    (packages / "tape.pth").write_text(f"{SOURCES}\n")
    return folder / "bin" / "python"


def _with_dependencies(requirements: list[str]) -> set[str]:
    """The distributions that requirements name, and those that these require, without extras."""
    found: set[str] = set()
    waiting = [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for requirement in distribution(name).requires or []:
            if ";" not in requirement:
                waiting.append(re.split(r"[^\w.-]", requirement)[0])
    return found


def _link(name: str, packages: Path) -> None:
    """Put a distribution that is installed here into another environment."""
    for file in distribution(name).files or []:
        source = Path(str(file.locate()))
        if ".." in file.parts or not source.exists():
            continue
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(source)


def _run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"COLUMNS": "120", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python, *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=cwd
    )


def test_the_environment_of_these_tests_has_no_library_of_the_server(client_python: Path, tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {SERVER_LIBRARIES} if u.find_spec(n)])"
    done = _run(client_python, "-c", code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_client_installs_no_library_of_the_server() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in project["dependencies"]}
    extra = {re.split(r"[^\w.-]", requirement)[0] for requirement in project["optional-dependencies"]["server"]}
    assert not names & extra
    assert len(extra - {"uvloop"}) == len(SERVER_LIBRARIES)


def test_a_client_installation_has_the_sdk(client_python: Path, tmp_path: Path) -> None:
    code = """
import tape, tape.session, tape.sinks, tape.reactors, tape.reactions, tape.connectors, tape.playbooks
import tape.reactions.dispatcher, tape.playbooks.worker, tape.subscriptions.runtime.remote
tape.TapeClient, tape.AsyncTapeClient, tape.durable_run, tape.effect.effect_semantics, tape.gate, tape.RetryPolicy
tape.SessionTape, tape.run_worker

@tape.on("/tape/order/**")
def order_created(event): ...

@tape.function
def add(a: int, b: int) -> int: return a + b

print("works")
"""
    done = _run(client_python, "-W", "error", "-c", code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("works\n", "")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_shows_its_help_in_a_client_installation(
    client_python: Path, tmp_path: Path, command: str
) -> None:
    done = _run(client_python, "-m", "tape", *command.split(), "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


def test_a_client_command_looks_for_its_server(client_python: Path, tmp_path: Path) -> None:
    command = ["append", "--url", "tape://127.0.0.1:9", "/tape/a/b", '{"n": 1}', "--where", "payload.n > 0"]
    done = _run(client_python, "-m", "tape", *command, cwd=tmp_path)
    assert done.returncode == 1
    assert "error TAPE-1602: " in done.stderr


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("serve", "tape serve"),
        ("gateway --server http://127.0.0.1:9", "tape gateway"),
        ("token", "tape token"),
        ("wallet list", "tape wallet"),
        ("demo crash-resume", "tape demo"),
        ("migrate", "A SQLite store"),
        ("verify", "A SQLite store"),
        ("prune --before 1d", "A SQLite store"),
    ],
)
def test_a_command_that_needs_the_server_says_what_to_install(
    client_python: Path, tmp_path: Path, command: str, what: str
) -> None:
    done = _run(client_python, "-m", "tape", *command.split(), cwd=tmp_path)
    sentence = f"error TAPE-1701: {what} needs libraries that are not installed: pip install 'tape[server]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_of_a_client_installation_names_the_extra(client_python: Path, tmp_path: Path) -> None:
    done = _run(client_python, "-m", "tape", "doctor", cwd=tmp_path)
    assert "Server libraries: not installed" in done.stdout
    assert "pip install 'tape[server]'" in done.stdout
    assert done.returncode == 0
