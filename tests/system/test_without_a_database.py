"""A remote runtime needs an address and a token: it has no database, and its server may lose the one it has."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from tape import TapeClient
from tape.subscriptions.api_client import Control
from tests.broker_services import NatsServer
from tests.services import Postgres, ServerProcess, free_port, wait_for
from tests.system.test_outage import commands
from tests.system.test_subscriptions import PATH, TOKEN, Stream, register

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to look at a process")


@pytest.fixture
def postgres_of_its_own() -> Iterator[Postgres]:
    """One that may be stopped: no other test uses it."""
    with Postgres() as postgres:
        yield postgres


def links(pid: int) -> set[str]:
    """What a process has open."""
    found = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(handle.readlink()))
    return found


def peers(pid: int) -> set[int]:
    """The ports that a process has connected to."""
    inodes = {number for link in links(pid) for number in re.findall(r"^socket:\[(\d+)\]$", link)}
    ends = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                ends.append(tuple(int(field.rpartition(":")[2], 16) for field in fields[1:3]))
    served = {here for here, there in ends if there == 0}  # who asks for its metrics came by himself
    return {there for here, there in ends if there and here not in served}


def drivers(pid: int) -> set[str]:
    """The database libraries that a process has loaded, and the database files that it has open."""
    loaded = Path(f"/proc/{pid}/maps").read_text()
    opened = links(pid)
    libraries = set(re.findall(r"libpq|psycopg|apsw|_sqlite3", loaded))
    return libraries | {name for name in opened if name.endswith((".db", ".db-wal")) or ".s.PGSQL" in name}


def test_a_runtime_outlives_the_servers_database_without_having_one(
    postgres_of_its_own: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
    spool = tmp_path / "spool"
    with (
        NatsServer() as broker,
        postgres_of_its_own.migrated_database() as store,
        ServerProcess(store) as server,
    ):
        stream = Stream(broker, ack_wait_s=30)
        spool_spec = {"mode": "buffer_and_ack", "backend": "local_disk", "path": str(spool), "ordering": "global"}
        circuit = {"trip_after": 2, "probe_after_ms": 200, "probe_interval_ms": 200}
        register(
            Control(server.http_url, TOKEN), stream, spool={**spool_spec, "circuit": circuit}, dedup={"enabled": True}
        )
        # All that it is given; a store that it would try to reach is not there.
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "TAPE_INTERNAL_API_TOKEN": TOKEN,
            "TAPE_STORE": "postgresql://unused@127.0.0.1:1/nowhere",
        }
        metrics = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "tape", "subscription", "run", PATH, "--server", server.http_url]
        command += ["--metrics-listen", metrics]
        runtime = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        expected = {int(address.rpartition(":")[2]) for address in (server.http_url, broker.address)}
        try:
            stream.publish(range(10))
            wait_for(lambda: len(commands(server)) == 10, "the first messages to become runs")
            assert (peers(runtime.pid), drivers(runtime.pid)) == (expected, set())

            postgres_of_its_own.stop()
            stream.publish(range(10, 30))
            wait_for(stream.is_empty, "all messages to be in the spool")
            assert len(list(spool.glob("*.json"))) == 20
            page = urllib3.request("GET", f"http://{metrics}/metrics").data.decode()
            assert f'tape_subscription_spool_items{{source="nats",subscription="{PATH}"}} 20.0' in page
            assert f'tape_subscription_source_lag{{subscription="{PATH}"}}' in page
            assert peers(runtime.pid) <= expected
            assert drivers(runtime.pid) == set()

            postgres_of_its_own.start()
            wait_for(lambda: not list(spool.glob("*.json")), "the spool to be drained")
            wait_for(lambda: len(read(server)) >= 30, "every message to be a run")
        finally:
            runtime.kill()
            runtime.wait()
        assert sorted(read(server)) == list(range(30))  # messages left to NATS are redelivered after others


def read(server: ServerProcess) -> list[int]:
    """The messages that became runs, in their order; nothing while the server looks for its database."""
    from tape.errors import TapeError

    try:
        with TapeClient(server.url) as client:
            client.head()
        return commands(server)
    except TapeError:
        return []
