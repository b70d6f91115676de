"""Every generated request with the names of its own caller: what another tenant is refused is a valid request."""

from __future__ import annotations

import pytest

from tests.access.adversary.outcomes import send_http, send_rpc
from tests.access.adversary.requests import METHODS, NOTHING, ROUTES, Aim, Pick, aims, message, request
from tests.access.adversary.world import World

pytestmark = pytest.mark.asyncio(loop_scope="package")

# The server found the thing that the request names. Whether it may change depends on the calls before.
FOUND = ("OK", "ACCEPTED", "FAILED_PRECONDITION", "ALREADY_EXISTS", "CONFLICT", "SERVICE_UNAVAILABLE", "UNAUTHORIZED")
# The listener of this world has no handshake that begins with a GET.
FOUND += ("METHOD_NOT_ALLOWED",)
# Only an upgrade is of use there.
FOUND += ("UPGRADE_REQUIRED",)
# Calls whose request is not valid yet, with the reason.
PENDING: dict[str, str] = {}


@pytest.mark.parametrize("method", METHODS)
async def test_a_generated_rpc_is_valid_with_the_callers_own_names(world: World, method: str) -> None:
    names = world.control.names

    def build(pick: Pick, choice: int) -> object:
        return message(METHODS[method].input_type, pick, choice)

    for choice in sorted({aim.choice for aim in aims(build)} - {NOTHING}):
        built = message(METHODS[method].input_type, Aim().pick(names, names), choice)
        _check(method, await send_rpc(world, method, built, world.control.all_scopes))


@pytest.mark.parametrize("route", ROUTES)
async def test_a_generated_http_request_is_valid_with_the_callers_own_names(world: World, route: str) -> None:
    names = world.control.names
    built = request(route, Aim().pick(names, names))
    _check(route, await send_http(world, built, world.control.all_scopes, route=route))


def _check(call: str, outcome: str) -> None:
    if call in PENDING:
        assert not outcome.startswith(FOUND), f"{call} is valid now: remove it from PENDING."
        pytest.xfail(f"{PENDING[call]}: {outcome}")
    assert outcome.startswith(FOUND), outcome
