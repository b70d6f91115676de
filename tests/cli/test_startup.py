"""What commands load: a module that a command can do without makes its start longer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import tape
from tests.services import ServerProcess

# Runs `tape …`, and names the modules that are loaded when it ends.
PROGRAM = """
import atexit, sys
from pathlib import Path
loaded = sys.argv.pop(1)
atexit.register(lambda: Path(loaded).write_text("\\n".join(sys.modules)))
from tape.cli import main
main()
"""
# Libraries that some commands need, and none of those tested here.
OTHERS = {
    "cryptography",
    "deltalake",
    "google.auth",
    "google.cloud",
    "jwt",
    "markdown_it",
    "nats",
    "obstore",
    "opentelemetry",
    "psycopg",
    "pyarrow",
    "pydantic",
    "pygments",
    "urllib3",
    "yaml",
}
SERVER = {"apsw", "prometheus_client", "starlette", "tape.engine", "tape.server", "tape.store", "uvicorn"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(f"sqlite:{tmp_path_factory.mktemp('store') / 'tape.db'}") as server:
        yield server


def run_tape(folder: Path, *arguments: str) -> tuple[str, set[str]]:
    """Run a command; what it printed, and the modules that it loaded."""
    file = folder / "loaded"
    command = [sys.executable, "-c", PROGRAM, str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(file.read_text().split())


def test_help_lists_commands_without_loading_them(tmp_path: Path) -> None:
    _, loaded = run_tape(tmp_path, "--help")
    assert {name for name in loaded if name.startswith("tape.cli.")} == {
        "tape.cli.commands",
        "tape.cli.help_page",
        "tape.cli.main",
        "tape.cli.plain_values",
    }
    assert loaded & (OTHERS | SERVER | {"asyncio", "grpc", "msgspec", "tape.client", "typer.rich_utils"}) == set()


def test_append_loads_the_client_and_nothing_else(tmp_path: Path, running: ServerProcess) -> None:
    printed, loaded = run_tape(tmp_path, "append", "/tape/order/created/1", "{}", "-o", "json", "--url", running.url)
    assert printed == '{"global_seq":1}\n'
    assert "tape.client.aio" in loaded
    assert loaded & (OTHERS | SERVER | {"re2", "rich", "tape.base.config", "tape.cel"}) == set()


def test_tail_loads_neither_cel_nor_the_http_client(tmp_path: Path, running: ServerProcess) -> None:
    _, loaded = run_tape(tmp_path, "tail", "--no-follow", "--url", running.url)
    assert loaded & (OTHERS | SERVER | {"re2", "tape.base.http", "tape.cel"}) == set()


def test_a_server_without_tokens_tls_and_documents_starts_without_their_libraries(tmp_path: Path) -> None:
    file = tmp_path / "loaded"
    arguments = ["serve", "--store", "memory", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    command = [sys.executable, "-c", PROGRAM, str(file), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stdout is not None
        assert any("Ctrl-C" in line for line in server.stdout)
        server.send_signal(signal.SIGTERM)
        server.stdout.read()
    loaded = set(file.read_text().split())
    assert "tape.server.server" in loaded
    assert loaded & (OTHERS | {"rich"}) == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tail", "--count", "many"), "Invalid value for '--count'"),
        (("tail", "--output", "JSON"), "Invalid value for '--output'"),
        (("reactions", "test", "/tape/**", "--samples", "101"), "Invalid value for '--samples'"),
        (("tail", "--no-such-option"), "No such option"),
    ],
)
def test_a_value_that_is_not_plain_is_checked_by_typer(arguments: tuple[str, ...], message: str) -> None:
    done = tape(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
