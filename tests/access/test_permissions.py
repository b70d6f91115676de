"""One table says which scopes may make which call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.errors import ScopeRequired
from tape.model.principal import ADMIN, ALL_TENANTS, OPERATOR, SYSTEM, WORKER, Principal, expand_scopes
from tape.proto import tape_pb2
from tape.server.permissions import PERMISSIONS, PROGRAMS_ONLY, RPCS, authorize, is_permitted
from tape.server.server import Server
from tests.web import call

TOKEN = "a-token-of-programs"


def test_every_rpc_of_the_service_is_in_the_table() -> None:
    methods = {method.name for method in tape_pb2.DESCRIPTOR.services_by_name["Tape"].methods}
    assert methods == RPCS.keys()


@pytest.mark.parametrize("name", PERMISSIONS)
def test_a_principal_without_scopes_makes_only_the_calls_that_need_none(name: str) -> None:
    assert is_permitted(name, Principal(tenant="a", user="u", session="s")) == (not PERMISSIONS[name])
    assert is_permitted(name, SYSTEM)
    assert is_permitted(name, Principal(scopes=frozenset({ADMIN}))) == (PERMISSIONS[name] not in PROGRAMS_ONLY)


def test_a_refused_call_names_the_scopes_that_would_do() -> None:
    with pytest.raises(ScopeRequired, match="RedriveTasks needs the scope `operator`; this caller's scopes: `worker`"):
        authorize("RedriveTasks", Principal(scopes=frozenset({WORKER})))


def test_service_is_a_name_for_three_scopes_and_not_for_all_tenants() -> None:
    scopes = expand_scopes(frozenset({"service", "unknown"}))
    assert scopes == {"service", "agent", "worker", "operator"}
    assert not Principal(tenant="a", scopes=scopes).sees("b")
    assert Principal(tenant="a", scopes=scopes | {ALL_TENANTS}).sees("b")


def test_something_new_belongs_to_the_principals_own_tenant() -> None:
    bound = Principal(tenant="a", scopes=frozenset({OPERATOR}))
    assert bound.tenant_for("") == bound.tenant_for("a") == "a"
    with pytest.raises(ScopeRequired, match="tenant 'b' is not the caller's"):
        bound.tenant_for("b")


async def test_the_internal_token_guards_grpc_as_it_guards_http(tmp_path: Path) -> None:
    settings = Settings(
        store=f"sqlite:{tmp_path / 'tape.db'}", listen="127.0.0.1:0", http_listen="127.0.0.1:0", internal_token=TOKEN
    )
    document = "apiVersion: tape/v1\nkind: Playbook\nmetadata: {path: a}\nsteps: []\n"
    async with Server(settings) as server:
        for headers, status in (({}, 403), ({"Authorization": f"Bearer {TOKEN}"}, 404)):
            answer = await call(server.http_address, "POST", "/api/execute", {"path": "a"}, **headers)
            assert answer.status == status
        async with AsyncTapeClient(server.grpc_address) as client:
            with pytest.raises(ScopeRequired, match="internal token"):
                await client.execute("a")
            with pytest.raises(ScopeRequired, match="internal token"):
                await client.register_resource(document)
            assert await client.append("/tape/order/paid/1") == 1  # what needs no key stays open
