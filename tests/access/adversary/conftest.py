"""One server for all generated tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.access.adversary.world import World, open_world


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A server on SQLite with a victim and two attackers."""
    path = tmp_path_factory.mktemp("world")
    async with open_world(f"sqlite:{path / 'tape.db'}", path) as world:
        yield world
