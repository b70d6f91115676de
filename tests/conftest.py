"""What every test can use: databases of each kind, servers in this process and in others."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests start other programs while gRPC's threads run; its fork handlers are not made for that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.durable import registry
from tape.engine.fanout.hub import Hub
from tape.journal.journal import Journal
from tape.server.server import Server
from tape.store import Database, open_database
from tests.services import Postgres, free_port

# What takes long begins first, so that nothing is left to wait for at the end.
FIRST = ("tests/pipeline/", "tests/bench/", "tests/test_documentation.py", "tests/adk/test_crash.py", "tests/system/")
# These share something costly, a Spark session or a run of the bench: they go to one process. So do those that need
# Google's emulator of Pub/Sub.
TOGETHER = (
    "tests/pipeline/",
    "tests/bench/",
    "tests/access/adversary/",
    "tests/subscriptions/spool/",
    "tests/engine/reactions/test_simulation.py",
    "tests/cli/test_ledgers.py",
    "tests/cli/test_subscriptions.py",
    "tests/test_examples.py",
)


class Shared(LoadScopeScheduling):
    """Spreads tests over processes one by one, except for those that share something costly."""

    def _split_scope(self, nodeid: str) -> str:
        if "pubsub" in nodeid:
            return "pubsub"
        return next((prefix for prefix in TOGETHER if nodeid.startswith(prefix)), nodeid)


# The same examples every time, for as long as it takes; `make proof` tries many others.
WITHOUT_DEADLINE: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("steady", derandomize=True, **WITHOUT_DEADLINE)
hypothesis.settings.register_profile("proof", max_examples=2_000, **WITHOUT_DEADLINE)
hypothesis.settings.load_profile("steady")


def pytest_configure() -> None:
    """Make the surroundings the same everywhere."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background, where every child would ignore it too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Files are in memory if possible: kill -9 leaves the same files, and tests do not wait for a disk.
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note failed tests in the file that `make test` names, to run them again alone."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ and (file := os.environ.get("TAPE_FAILED_TESTS")):
        with Path(file).open("a", encoding="utf-8") as failed:
            failed.write(f"{report.nodeid}\n")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shared:
    """How `pytest -n` hands out tests."""
    return Shared(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first."""
    items.sort(
        key=lambda item: next((n for n, prefix in enumerate(FIRST) if item.nodeid.startswith(prefix)), len(FIRST))
    )


@pytest.fixture(autouse=True)
def declared_for_itself() -> Iterator[None]:
    """What a test declares by a tool's name is not there for the next one, in whatever order they come."""
    registries = (registry._compensators, registry._tool_compensators, registry._status_checks)
    before = [dict(each) for each in registries]
    yield
    for each, entries in zip(registries, before, strict=True):
        each.clear()
        each.update(entries)  # type: ignore[arg-type]


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what processes would write to the state folder of the user, such as witnesses, in a temporary one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of this test process; databases are made per test."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with tables and nothing in them, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "tape.db"
    open_database(f"sqlite:{path}").migrate()
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind with nothing in its tables; a test that uses this runs once on each."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "tape.db")
        yield f"sqlite:{tmp_path / 'tape.db'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        with server.migrated_database() as url:
            yield url


@pytest.fixture(params=["sqlite", "postgres"])
def bare_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind without any tables: before its migrations."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'tape.db'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        with server.fresh_database() as url:
            yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty SQLite database."""
    return f"sqlite:{tmp_path / 'tape.db'}"


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """An open database of each kind."""
    async with open_database(store_url) as database:
        yield database


@pytest.fixture
def journal(database: Database) -> Journal:
    """The journal of that database."""
    return Journal(database)


@pytest.fixture
async def hub(database: Database) -> AsyncIterator[Hub]:
    """A started hub on that database."""
    hub = Hub(database)
    await hub.start()
    yield hub
    await hub.close()


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[Server]:
    """A server in this process, on free ports, on each kind of database."""
    async with Server(settings_for(store_url)) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncTapeClient]:
    """A client of that server."""
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        yield client


def settings_for(store: str, **changes: object) -> Settings:
    """Settings for a server on free ports."""
    artifacts = f"{tempfile.gettempdir()}/tape-no-artifacts" if "artifacts" not in changes else ""
    options = {
        "artifacts": artifacts,
        "store": store,
        "listen": f"127.0.0.1:{free_port()}",
        "http_listen": "127.0.0.1:0",
        "shutdown_grace_s": 2.0,
    }
    return Settings(**(options | changes))  # type: ignore[arg-type]


@pytest.fixture
def loopback_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows outgoing requests to loopback, for tests whose downstreams run on this machine."""
    monkeypatch.setenv("TAPE_HTTP_ALLOW", "127.0.0.1")
