"""A server for the tests of one file, and nothing that calls out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tape import TapeClient
from tests.frameworks.killed import QUIET
from tests.services import ServerProcess


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(f"sqlite:{tmp_path_factory.mktemp('frameworks') / 'tape.db'}") as server:
        yield server.url


@pytest.fixture
def tape_client(server_url: str) -> Iterator[TapeClient]:
    with TapeClient(server_url) as client:
        yield client


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
