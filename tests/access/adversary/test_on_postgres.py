"""The part of the adversarial suite that depends on the database, on PostgreSQL: what has a key with a tenant in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.access.adversary.attack import attack_route, attack_rpc
from tests.access.adversary.world import World, open_world
from tests.services import Postgres

pytestmark = pytest.mark.asyncio(loop_scope="module")

RPCS = (
    *("Append", "BeginRun", "GetRun", "ListRuns", "SubscribeRun", "BeginEffect", "ListPendingEffects", "SetTimer"),
    *("ListDueTimers", "SendSignal", "WriteValue", "GetValue", "DeleteValue", "CreateSession", "AppendEvent"),
    *("ListSessions", "RegisterReaction", "ListReactions", "GetReactionStats", "ClaimTasks", "ListTasks"),
    *("RedriveTasks", "RegisterResource", "GetResource", "ListResources", "Execute"),
)
ROUTES = (
    *("POST /v1/events", "POST /v1/events/list", "POST /v1/events/aggregate", "GET /v1/artifacts/"),
    *("GET /api/credentials/", "GET /api/keys", "GET /api/subscriptions", "POST /api/subscriptions"),
    *("GET /api/taken", "POST /api/taken", "POST /api/execute", "GET /api/executions/", "GET /api/pools/"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A server on PostgreSQL with a victim and two attackers."""
    path: Path = tmp_path_factory.mktemp("world")
    with postgres.migrated_database() as url:
        async with open_world(url, path) as world:
            yield world


@pytest.mark.parametrize("method", RPCS)
async def test_an_rpc_treats_a_foreign_name_like_one_that_does_not_exist(world: World, method: str) -> None:
    await attack_rpc(world, method, ("service",))


@pytest.mark.parametrize("route", ROUTES)
async def test_a_route_treats_a_foreign_name_like_one_that_does_not_exist(world: World, route: str) -> None:
    await attack_route(world, route, ("service", "none") if "/v1/" in route else ("admin",))
