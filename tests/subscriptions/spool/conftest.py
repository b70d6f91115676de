"""Every spool backend: a folder, memory, a bucket of a real S3 server, a real NATS server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tape.subscriptions.spool.backend import SpoolBackend
from tape.subscriptions.spool.disk import DiskBackend
from tape.subscriptions.spool.nats import NatsBackend
from tape.subscriptions.spool.objects import BucketBackend
from tests.broker_services import NatsServer
from tests.objects import S3Server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=["disk", "memory", "s3", "nats"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SpoolBackend]:
    backend: SpoolBackend
    match request.param:
        case "disk":
            backend = DiskBackend(tmp_path / "spool")
        case "memory":
            from obstore.store import MemoryStore

            backend = BucketBackend(MemoryStore(), "subscriptions/orders", "memory")
        case "s3":
            server = request.getfixturevalue("s3_server")
            backend = BucketBackend(server.store("spool"), f"subscriptions/{uuid.uuid4().hex}", "s3://spool")
        case _:
            server = request.getfixturevalue("nats_server")
            backend = NatsBackend(f"spool_{uuid.uuid4().hex}", servers=f"nats://{server.address}")
    yield backend
    await backend.close()
