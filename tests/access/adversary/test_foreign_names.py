"""Every RPC and every route as another tenant: no read, no count, no effect, and no sign that a name exists."""

from __future__ import annotations

import pytest

from tests.access.adversary.attack import attack_route, attack_rpc
from tests.access.adversary.requests import ROUTES, by_rpc
from tests.access.adversary.world import World

pytestmark = pytest.mark.asyncio(loop_scope="package")

# The address of a listener is public: a delivery without proof gets 401, one to an unknown address 404.
# The metrics count what all tenants do.
PUBLIC = frozenset({"POST /ingress/", "GET /ingress/", "GET /metrics"})


@by_rpc
async def test_an_rpc_treats_a_foreign_name_like_one_that_does_not_exist(
    world: World, method: str, in_frames: bool
) -> None:
    await attack_rpc(world, method, in_frames=in_frames)


@pytest.mark.parametrize("route", [route for route in ROUTES if route not in PUBLIC])
async def test_a_route_treats_a_foreign_name_like_one_that_does_not_exist(world: World, route: str) -> None:
    await attack_route(world, route)
