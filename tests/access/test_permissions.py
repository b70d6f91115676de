"""One table says which scopes may make which call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.errors import NotFound, ScopeRequired
from tape.model.principal import ADMIN, ALL_TENANTS, OPERATOR, SCOPES, SYSTEM, WORKER, Principal, expand_scopes
from tape.proto import tape_pb2
from tape.server.calls import CALLS, VARIANTS, display, find_call
from tape.server.http.operations import OPERATIONS
from tape.server.http.router import App
from tape.server.permissions import (
    GRANTS,
    PERMISSIONS,
    PROGRAMS_ONLY,
    ROUTES,
    RPCS,
    WHOLLY_GRANTED,
    authorize,
    is_permitted,
)
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import call as send

TOKEN = "a-token-of-programs"


def test_every_rpc_of_the_service_is_in_the_table() -> None:
    methods = {method.name for method in tape_pb2.DESCRIPTOR.services_by_name["Tape"].methods}
    assert methods == RPCS.keys()


async def test_every_http_route_is_in_the_table_and_in_the_openapi_document(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes: set[str] = set()
    for name in ("add", "add_raw"):
        original = getattr(App, name)

        def record(app: App, method: str, path: str, handler: Any, original: Any = original) -> None:
            routes.add(f"{method} {path}")
            original(app, method, path, handler)

        monkeypatch.setattr(App, name, record)
    async with Server(settings_for(sqlite_url)):
        assert routes - {"HEAD /v1/events"} == CALLS - RPCS.keys() - VARIANTS.keys() == OPERATIONS.keys()


def test_grants_hold_for_calls_that_there_are() -> None:
    assert GRANTS.keys() | WHOLLY_GRANTED <= PERMISSIONS.keys()


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_call_is_found_by_the_name_that_documents_give_it(call: str) -> None:
    assert find_call(display(call)) == call


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("/tape.v1.Tape/BeginRun", "BeginRun"),
        ("post /api/subscriptions/orders/pause", "POST /api/subscriptions/{}/"),
        ("GET /api/credentials/stripe", "GET /api/credentials/"),
        ("GET /api/credentials/stripe?include_data=true", "GET /api/credentials/?include_data"),
        ("GET /v1/events?resume_seq=0&admin=1", "GET /v1/events?admin"),
        ("HEAD /v1/events", "GET /v1/events"),
    ],
)
def test_a_call_is_found_by_its_path_and_parameters(text: str, call: str) -> None:
    assert find_call(text) == call


@pytest.mark.parametrize("text", ["BeginRuns", "beginrun", "POST /api/exec", "/api/execute", "PUT /api/execute"])
def test_an_unknown_call_is_answered_with_near_matches(text: str) -> None:
    with pytest.raises(NotFound, match=r"Near matches: .*(BeginRun|POST /api/execute)"):
        find_call(text)


@pytest.mark.parametrize("scope", sorted(SCOPES))
def test_the_table_says_who_may_read_all_identities(scope: str) -> None:
    principal = Principal(tenant="a", user="u", session="s", scopes=frozenset({scope}))
    assert is_permitted("GET /v1/events?admin", principal) == principal.can_widen


@pytest.mark.parametrize("name", PERMISSIONS)
def test_a_principal_without_scopes_makes_only_the_calls_that_need_none(name: str) -> None:
    assert is_permitted(name, Principal(tenant="a", user="u", session="s")) == (not PERMISSIONS[name])
    assert is_permitted(name, SYSTEM)
    assert is_permitted(name, Principal(scopes=frozenset({ADMIN}))) == (PERMISSIONS[name] not in PROGRAMS_ONLY)


def test_a_refused_call_names_the_scopes_that_would_do() -> None:
    with pytest.raises(ScopeRequired, match="RedriveTasks needs the scope `operator`; this caller's scopes: `worker`"):
        authorize("RedriveTasks", Principal(scopes=frozenset({WORKER})))


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_a_scope_suffices_within_its_tenant(name: str) -> None:
    for scope in PERMISSIONS[name]:
        assert is_permitted(name, Principal(tenant="a", scopes=frozenset({scope})))


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
            answer = await send(server.http_address, "POST", "/api/execute", {"path": "a"}, **headers)
            assert answer.status == status
        async with AsyncTapeClient(server.grpc_address) as client:
            with pytest.raises(ScopeRequired, match="internal token"):
                await client.execute("a")
            with pytest.raises(ScopeRequired, match="internal token"):
                await client.register_resource(document)
            assert await client.append("/tape/order/paid/1") == 1  # what needs no key stays open
