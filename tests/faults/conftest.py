"""Brokers, a bucket and databases for the fault harness, shared by all cells of a test process."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_services import KafkaCluster, NatsServer
from tests.faults.cells import Cell
from tests.faults.scene import TOKEN, Scene
from tests.objects import S3Server

Open = Callable[..., Scene]


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server
        server.start()


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def faults_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processes of a scene inherit."""
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
    monkeypatch.setenv("TAPE_HTTP_ALLOW", "127.0.0.1")  # the downstream
    monkeypatch.setenv("TAPE_WALLET_KEY", str(tmp_path / "wallet.key"))


@pytest.fixture
def open_scene(request: pytest.FixtureRequest, tmp_path: Path, faults_environment: None) -> Iterator[Open]:
    """Opens the scene of a cell, with what that cell needs and nothing else."""
    with contextlib.ExitStack() as opened:

        def open_one(cell: Cell, **spool: Any) -> Scene:
            services: dict[str, Any] = {}
            if cell.source == "nats" or cell.backend == "nats_object":
                services["nats"] = request.getfixturevalue("nats_server")
            if cell.source == "kafka":
                services["kafka"] = request.getfixturevalue("kafka_cluster")
            if cell.backend == "s3":
                services["bucket"] = request.getfixturevalue("bucket_server")
            if cell.store == "postgres":
                url = opened.enter_context(request.getfixturevalue("postgres").migrated_database())
            else:
                shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "tape.db")
                url = f"sqlite:{tmp_path / 'tape.db'}"
            return opened.enter_context(Scene(cell, url, tmp_path, **services, **spool))

        yield open_one
