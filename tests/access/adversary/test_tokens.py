"""Every RPC and every route without a valid token, and with a token that lacks the scopes it needs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tape.engine.security.tokens import load_key
from tape.server.permissions import PERMISSIONS, TOKENLESS_ROUTES, is_permitted
from tests.access.adversary.outcomes import REFUSAL_S, STREAM_S, send_http, send_rpc
from tests.access.adversary.requests import METHODS, OWN, ROUTES, UNARY, Aim, by_rpc, message, request
from tests.access.adversary.world import SCOPE_SETS, World, mint, principal_of

pytestmark = pytest.mark.asyncio(loop_scope="package")

GUARDED = [route for route in ROUTES if route not in TOKENLESS_ROUTES]


async def test_the_server_has_no_services_but_those_that_are_tried(world: World) -> None:
    async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    stub = reflection_pb2_grpc.ServerReflectionStub(world.channel)
    (reply,) = [each async for each in stub.ServerReflectionInfo(ask())]
    assert {service.name for service in reply.list_services_response.service} == {
        "tape.v1.Tape",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.fixture(scope="module")
def bad_tokens(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tokens that prove nothing."""
    names = world.victim.names
    stranger, _ = load_key(Path(tmp_path_factory.mktemp("stranger")) / "dev.key")
    good = jwt.decode(mint(world.key, names, ["admin"]), options={"verify_signature": False})

    def signed(**claims: object) -> str:
        return jwt.encode(good | claims, world.key._private, algorithm="ES256", headers={"kid": world.key.kid})

    return {
        "none": "",
        "garbage": "no-token",
        "expired": signed(iat=time.time() - 7200, exp=time.time() - 3600),
        "signed by another key": mint(stranger, names, ["system"]),
        "for another audience": signed(aud="another"),
        "by another issuer": signed(iss="another"),
        "unsigned": jwt.encode(good, None, algorithm="none"),
        "without an end": signed(exp=10**400),
    }


@by_rpc
async def test_an_rpc_without_a_valid_token_is_unauthenticated(
    world: World, bad_tokens: dict[str, str], method: str, in_frames: bool
) -> None:
    names = world.victim.names
    built = message(METHODS[method].input_type, Aim().pick(names, names))
    for label, token in bad_tokens.items():
        outcome = await send_rpc(world, method, built, token, read_s=REFUSAL_S, in_frames=in_frames)
        assert outcome.startswith("UNAUTHENTICATED"), f"{label}: {outcome}"


@pytest.mark.parametrize("route", GUARDED)
async def test_a_route_without_a_valid_token_is_unauthenticated(
    world: World, bad_tokens: dict[str, str], route: str
) -> None:
    names = world.victim.names
    for label, token in bad_tokens.items():
        built = request(route, Aim().pick(names, names))
        outcome = await send_http(world, built, token, route=route)
        assert outcome.startswith("UNAUTHORIZED"), f"{label}: {outcome}"


@pytest.mark.parametrize("call", [*METHODS, *GUARDED])
async def test_a_call_needs_a_scope_that_the_table_names(world: World, call: str) -> None:
    names = world.control.names
    pick = OWN.pick(names, names)
    for label, scopes in SCOPE_SETS.items():
        token = world.control.tokens[label]
        is_allowed = is_permitted(call, principal_of(world.control, scopes))
        if call in METHODS:
            read_s = STREAM_S if is_allowed else REFUSAL_S
            outcome = await send_rpc(world, call, message(METHODS[call].input_type, pick), token, read_s=read_s)
            if call in UNARY and not is_allowed:
                built = message(METHODS[call].input_type, pick)
                assert await send_rpc(world, call, built, token, in_frames=True) == outcome, label
        else:
            outcome = await send_http(world, request(call, pick), token, route=call)
        if is_allowed:
            assert "needs the scope" not in outcome, f"{label}: {outcome}"
            assert not outcome.startswith(("UNAUTHENTICATED", "UNAUTHORIZED")), f"{label}: {outcome}"
        else:
            assert outcome.startswith(("PERMISSION_DENIED", "FORBIDDEN")), f"{label}: {outcome}"
            assert any(f"`{scope}`" in outcome for scope in PERMISSIONS[call]), f"{label}: {outcome}"


async def test_a_route_without_tokens_shows_nothing_of_a_tenant(world: World) -> None:
    for route in sorted(TOKENLESS_ROUTES - {"POST /ingress/", "GET /ingress/"}):
        outcome = await send_http(world, request(route, Aim().pick(world.absent, world.absent)), "")
        assert outcome.startswith("UPGRADE_REQUIRED" if route == "GET /v1/calls" else "OK"), outcome
        assert world.victim.names["tenant"] not in outcome
