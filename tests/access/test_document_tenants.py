"""Documents, subscriptions and secrets of two tenants: the same names, and nothing to learn of the other's."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.engine.security.keyfile import KeyFile
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import TapeError
from tape.playbooks.worker import work
from tape.proto import tape_pb2 as pb
from tape.server import server as server_module
from tape.server.gateway import Gateway
from tape.server.server import Server
from tape.subscriptions.ingress import listeners
from tests.engine.reactions.helpers import matched
from tests.web import Answer, call

INTERNAL = "int3rnal"
SCOPES = ["service", "runtime", "gateway"]

PLAYBOOK = """\
kind: Playbook
metadata: {{path: {path}}}
workflow:
  - {{step: a, tool: {{kind: value, value: {value}}}}}
"""
CALLER = """\
kind: Playbook
metadata: {{path: caller}}
workflow:
  - {{step: a, tool: {{kind: playbook, path: {path}}}}}
"""
PUSH = """\
kind: Subscription
metadata: {{path: orders}}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/orders
    verify: {{type: hmac_sha256, header: X-Signature, secret: {secret}}}
  dispatch: {{playbook: {playbook}}}
  dedup: {{enabled: true}}
"""


class Caller:
    """A client of one tenant over both protocols."""

    def __init__(self, server: Server, tenant: str, token: str) -> None:
        self.server = server
        self.tenant = tenant
        self.token = token
        self.rpc = AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token)

    async def http(self, method: str, path: str, body: Any = b"") -> Answer:
        return await call(self.server.http_address, method, path, body, authorization=f"Bearer {self.token}")

    async def api(self, path: str, body: Any = None) -> Any:
        answer = await self.http("GET" if body is None else "POST", path, b"" if body is None else body)
        assert answer.status == 200, answer.body
        return answer.json()

    async def open(self, content: str, path: str = "orders") -> str:
        """Store, register and activate a subscription; its id."""
        await self.api("/api/catalog/register", {"content": content})
        found = str((await self.api("/api/subscriptions/register", {"path": path}))["subscription_id"])
        await self.api(f"/api/subscriptions/{found}/activate", {"force": True})
        return found


class Tenants:
    """Two tenants on one server, a caller of all with the tenant ops, and the internal token, which has no tenant."""

    def __init__(self, server: Server, ours: Caller, theirs: Caller, unbound: Caller, system: Caller) -> None:
        self.server, self.ours, self.theirs, self.unbound, self.system = server, ours, theirs, unbound, system

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.server.database.read(lambda reader: reader.query(sql))]

    async def deliver(self, name: str, secret: str, body: bytes = b'{"n": 1}', address: str = "") -> int:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        address = address or self.server.http_address
        answer = await call(address, "POST", f"/ingress/{name}", body, x_signature=f"sha256={digest}")
        return answer.status


@pytest.fixture
async def tenants(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tenants]:
    monkeypatch.setattr(server_module, "LISTENERS_S", 0.0)
    monkeypatch.setattr(listeners, "NAMES_S", 0.0)
    key, _ = load_key(tmp_path / "dev.key")
    KeyFile(tmp_path / "wallet.key").create()
    settings = Settings(
        store=store_url,
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(tmp_path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
        internal_token=INTERNAL,
        wallet_key=str(tmp_path / "wallet.key"),
        artifacts=str(tmp_path / "artifacts"),
        artifact_threshold_bytes=1_000,
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))
        callers = []
        for tenant, more in (("ours", []), ("theirs", []), ("ops", ["tenant:*"]), ("", [])):
            scopes = [*SCOPES, *more]
            token = key.mint(tenant=tenant, user="u", session="s", scopes=scopes) if tenant else INTERNAL
            callers.append(Caller(server, tenant, token))
            await stack.enter_async_context(callers[-1].rpc)
        yield Tenants(server, *callers)


# ── documents ────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_path_in_two_tenants_is_two_documents(tenants: Tenants) -> None:
    for caller, versions in ((tenants.theirs, 3), (tenants.ours, 1)):
        for version in range(versions):
            content = PLAYBOOK.format(path="a/b", value=f"{caller.tenant}-{version}")
            resource = await caller.rpc.register_resource(content)
            assert (resource.path, resource.version) == ("a/b", version + 1)
    for caller, version in ((tenants.theirs, 3), (tenants.ours, 1)):
        over_rpc = await caller.rpc.get_resource(path="a/b")
        over_http = await caller.api("/api/catalog/resource", {"path": "a/b"})
        assert caller.tenant in over_rpc.content
        assert (over_rpc.content, over_rpc.path) == (over_http["content"], over_http["path"])
        assert over_rpc.version == over_http["version"] == version
        assert [each.path for each in (await caller.rpc.list_resources()).resources] == ["a/b"]
        assert [each["path"] for each in (await caller.api("/api/catalog/list", {}))["entries"]] == ["a/b"]
        assert not (await caller.rpc.list_resources(after_path="a/b")).resources
    listed = (await tenants.unbound.rpc.list_resources()).resources
    assert [each.path for each in listed] == ["~ours/a/b", "~theirs/a/b"]
    assert "theirs-0" in (await tenants.unbound.rpc.get_resource(path="~theirs/a/b", version=1)).content


async def test_a_kind_that_one_tenant_gave_a_path_does_not_bind_another(tenants: Tenants) -> None:
    await tenants.theirs.rpc.register_resource(PLAYBOOK.format(path="orders", value=1))
    await tenants.ours.api("/api/catalog/register", {"content": PUSH.format(secret="s", playbook="p")})
    assert (await tenants.ours.rpc.get_resource(path="orders")).kind == "subscription"


async def test_a_document_of_no_tenant_is_not_one_of_each(tenants: Tenants) -> None:
    for caller in (tenants.system, tenants.unbound):
        assert (await caller.rpc.register_resource(PLAYBOOK.format(path="p", value=1))).path == "p"
    assert [each.path for each in (await tenants.unbound.rpc.list_resources()).resources] == ["~/p", "p"]
    assert [each.path for each in (await tenants.unbound.rpc.list_resources(after_path="~/p")).resources] == ["p"]
    assert [each.path for each in (await tenants.system.rpc.list_resources()).resources] == ["p", "~ops/p"]
    unknown = await outcome(tenants.ours.rpc.get_resource(path="p"))
    assert unknown == (await outcome(tenants.ours.rpc.get_resource(path="q"))).replace("q", "p")
    assert "Playbook not found: p" in await outcome(tenants.ours.rpc.execute("p"))


Probe = Callable[[Caller, str], Awaitable[str]]


async def outcome(call: Awaitable[Any]) -> str:
    try:
        answer = await call
    except TapeError as error:
        return f"{error.code} {error}"
    return f"{answer.status} {answer.body.decode()}" if isinstance(answer, Answer) else repr(answer)


def post(path: str, body: Callable[[str], Any]) -> Probe:
    return lambda caller, name: outcome(caller.http("POST", path, body(name)))


# Each probe names a thing that only the other tenant has, and one that no tenant has.
BY_PATH: dict[str, Probe] = {
    "GetResource": lambda caller, name: outcome(caller.rpc.get_resource(path=name)),
    "ListResources": lambda caller, name: outcome(caller.rpc.list_resources(after_path=name)),
    "Execute": lambda caller, name: outcome(caller.rpc.execute(name)),
    "POST /api/catalog/resource": post("/api/catalog/resource", lambda name: {"path": name}),
    "POST /api/catalog/list": post("/api/catalog/list", lambda name: {"after": name}),
    "POST /api/execute": post("/api/execute", lambda name: {"path": name}),
    "POST /api/execute/batch": post("/api/execute/batch", lambda name: {"executions": [{"path": name}]}),
    "POST /api/subscriptions": post("/api/subscriptions", lambda name: {"path": name}),
    "POST /api/subscriptions/register": post("/api/subscriptions/register", lambda name: {"path": name}),
    "GET /api/subscriptions": lambda caller, name: outcome(caller.http("GET", f"/api/subscriptions?path={name}")),
    "GET /api/taken": lambda caller, name: outcome(caller.http("GET", f"/api/taken?subscription={name}")),
    "GET /api/credentials/": lambda caller, name: outcome(caller.http("GET", f"/api/credentials/{name}")),
    "GET /api/credentials/?include_data": lambda caller, name: outcome(
        caller.http("GET", f"/api/credentials/{name}?include_data=true&host=example.com")
    ),
    "GET /api/internal/ingress/": lambda caller, name: outcome(caller.http("GET", f"/api/internal/ingress/{name}")),
}
BY_CATALOG_ID: dict[str, Probe] = {
    "GetResource": lambda caller, name: outcome(caller.rpc.get_resource(catalog_id=int(name))),
    "POST /api/execute": post("/api/execute", lambda name: {"catalog_id": name}),
}
BY_SUBSCRIPTION_ID: dict[str, Probe] = {
    "GET /api/subscriptions/": lambda caller, name: outcome(caller.http("GET", f"/api/subscriptions/{name}")),
    **{
        f"POST /api/subscriptions/{{}}/{action}": lambda caller, name, action=action: outcome(  # type: ignore[misc]
            caller.http("POST", f"/api/subscriptions/{name}/{action}", {})
        )
        for action in ("activate", "pause", "deactivate")
    },
    "POST /api/holds": post("/api/holds", lambda name: {"subscription_id": name, "reasons": ["no"]}),
    "POST /api/events": post(
        "/api/events", lambda name: {"event_type": "subscription.source.lost", "execution_id": name}
    ),
}


async def furnish(tenants: Tenants) -> str:
    """Give the other tenant a playbook, a subscription, its offsets and a secret, all named `orders` or `zebra`."""
    await tenants.theirs.rpc.register_resource(PLAYBOOK.format(path="zebra", value=1))
    await tenants.server.wallet.set("~theirs/orders", "s3cret")
    await tenants.server.wallet.set("~theirs/zebra", "s3cret")
    found = await tenants.theirs.open(PUSH.format(secret="orders", playbook="zebra"))
    await tenants.theirs.api("/api/taken", {"subscription": "orders", "part": "0", "begin": 0, "end": 5})
    assert await tenants.deliver("~theirs/orders", "s3cret") == 202
    return found


@pytest.mark.parametrize("name", ["orders", "zebra", "~theirs/orders", "~theirs/zebra"])
@pytest.mark.parametrize("call", BY_PATH)
async def test_a_foreign_name_is_answered_like_one_that_does_not_exist(tenants: Tenants, call: str, name: str) -> None:
    await furnish(tenants)
    count = await tenants.rows("SELECT count(*) FROM tape_journal")
    foreign = await BY_PATH[call](tenants.ours, name)
    unknown = name.replace("orders", "xrders").replace("zebra", "xebra")
    assert foreign.replace(name, "NAME") == (await BY_PATH[call](tenants.ours, unknown)).replace(unknown, "NAME")
    assert "s3cret" not in foreign
    assert await tenants.rows("SELECT count(*) FROM tape_journal") == count
    assert await tenants.rows("SELECT count(*) FROM tape_runs") == [(1,)]


@pytest.mark.parametrize("call", BY_CATALOG_ID)
async def test_a_foreign_catalog_id_is_answered_like_one_that_does_not_exist(tenants: Tenants, call: str) -> None:
    resource = await tenants.theirs.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
    shared = await tenants.system.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
    unknown = (await BY_CATALOG_ID[call](tenants.ours, "99")).removesuffix(" 99").replace(": 99", "")
    for number in (resource.catalog_id, shared.catalog_id):
        foreign = await BY_CATALOG_ID[call](tenants.ours, str(number))
        assert foreign.removesuffix(f" {number}").replace(f": {number}", "") == unknown


@pytest.mark.parametrize("call", BY_SUBSCRIPTION_ID)
async def test_a_foreign_registration_is_answered_like_one_that_does_not_exist(tenants: Tenants, call: str) -> None:
    found = await furnish(tenants)
    (execution,) = (await tenants.rows("SELECT run_id FROM tape_runs"))[0]
    count = await tenants.rows("SELECT count(*) FROM tape_journal")
    unknown = (await BY_SUBSCRIPTION_ID[call](tenants.ours, "123")).replace("123", "ID")
    for name in (found, execution):
        assert (await BY_SUBSCRIPTION_ID[call](tenants.ours, name)).replace(name, "ID") == unknown
    assert await tenants.rows("SELECT count(*) FROM tape_journal") == count
    assert (await tenants.theirs.api(f"/api/subscriptions/{found}"))["state"] == "ACTIVE"


# ── executions ───────────────────────────────────────────────────────────────────────────────────


async def run_pool(tenants: Tenants, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_TOKEN", caller.token)
    await matched(tenants.unbound.rpc)
    async with asyncio.timeout(120):
        await work(caller.rpc.url, once=True)


@pytest.mark.parametrize("worker", ["ours", "unbound", "system"])
async def test_a_run_uses_the_playbooks_of_its_own_tenant(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    for caller in (tenants.theirs, tenants.system, tenants.unbound, tenants.ours):
        await caller.rpc.register_resource(PLAYBOOK.format(path="part", value=caller.tenant or "none"))
    await tenants.ours.rpc.register_resource(CALLER.format(path="part"))
    started = await tenants.ours.rpc.execute("caller")
    run = await tenants.ours.rpc.get_run(str(started.execution_id))
    assert (run.tenant_id, run.agent_id) == ("ours", "caller")
    command = [json.loads(text) for (text,) in await tenants.rows("SELECT payload_json FROM tape_tasks")]
    await run_pool(tenants, getattr(tenants, worker), monkeypatch)
    shown = await tenants.ours.api(f"/api/executions/{started.execution_id}")
    assert (shown["status"], shown["path"], shown["output"]) == ("TERMINAL", "caller", "ours"), (shown, command)
    assert (await tenants.theirs.http("GET", f"/api/executions/{started.execution_id}")).status == 404


@pytest.mark.parametrize("worker", ["ours", "unbound", "system"])
async def test_a_playbook_cannot_run_one_of_another_tenant(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    await tenants.theirs.rpc.register_resource(PLAYBOOK.format(path="part", value="theirs"))
    await tenants.ours.rpc.register_resource(CALLER.format(path='"~theirs/part"'))
    started = await tenants.ours.rpc.execute("caller")
    await run_pool(tenants, getattr(tenants, worker), monkeypatch)
    shown = await tenants.ours.api(f"/api/executions/{started.execution_id}")
    assert shown["status"] == "FAILED"
    assert "Playbook not found: ~theirs/part" in shown["error"]["message"]


async def test_a_caller_of_all_tenants_runs_a_document_in_its_tenant(tenants: Tenants) -> None:
    await tenants.ours.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
    started = await tenants.unbound.rpc.execute("~ours/p")
    assert (await tenants.ours.rpc.get_run(str(started.execution_id))).tenant_id == "ours"
    for caller, path in ((tenants.unbound, "p"), (tenants.system, "p"), (tenants.unbound, "~/p")):
        await caller.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
        run = await caller.rpc.get_run(str((await caller.rpc.execute(path)).execution_id))
        assert run.tenant_id == ("" if path == "~/p" else caller.tenant)


async def test_the_same_dedup_key_in_two_tenants_starts_two_runs(tenants: Tenants) -> None:
    for caller in (tenants.theirs, tenants.ours):
        await caller.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
        outcomes = [(await caller.rpc.execute("p", dedup_key="k")).status for _ in range(2)]
        body = {"path": "p", "subscription": "orders", "dedup": {"key": "k", "window_secs": 60}}
        outcomes += [(await caller.api("/api/execute", body))["status"] for _ in range(2)]
        assert outcomes == ["started", "duplicate"] * 2


# ── subscriptions and secrets ────────────────────────────────────────────────────────────────────


async def open_both(tenants: Tenants) -> dict[str, str]:
    ids = {}
    for caller in (tenants.theirs, tenants.ours):
        await caller.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
        await tenants.server.wallet.set(f"~{caller.tenant}/secret", f"s3cret of {caller.tenant}")
        ids[caller.tenant] = await caller.open(PUSH.format(secret="secret", playbook="p"))
    return ids


async def test_each_tenant_has_its_own_listener_of_a_name(tenants: Tenants) -> None:
    ids = await open_both(tenants)
    assert await tenants.deliver("orders", "s3cret of ours") == 404
    assert await tenants.deliver("~ours/orders", "s3cret of theirs") == 401
    assert await tenants.deliver("~nobody/orders", "s3cret of ours") == 404
    for name in ("ours", "theirs"):
        assert await tenants.deliver(f"~{name}/orders", f"s3cret of {name}") == 202
        assert await tenants.deliver(f"~{name}/orders", f"s3cret of {name}") == 202  # a duplicate of the same key
    runs = await tenants.rows("SELECT tenant, tenant_id, agent_id, session_id FROM tape_runs ORDER BY tenant")
    assert runs == [("ours", "ours", "p", "orders"), ("theirs", "theirs", "p", "orders")]
    for caller in (tenants.ours, tenants.theirs):
        (listed,) = (await caller.api("/api/subscriptions"))["subscriptions"]
        assert (listed["subscription_id"], listed["path"]) == (ids[caller.tenant], "orders")
        events = await tenants.rows(
            f"SELECT subject, payload_json FROM tape_journal WHERE tenant = '{caller.tenant}' AND kind = 'subscription'"
            " ORDER BY global_seq"
        )
        assert {json.loads(payload)["subscription"] for _, payload in events} == {"orders"}
        verbs = {subject.split("/")[3] for subject, _ in events}
        assert {"registered", "activated", "message.deduplicated"} <= verbs
    others = await tenants.rows("SELECT payload_json FROM tape_journal WHERE kind = 'subscription' AND tenant = ''")
    assert {json.loads(payload)["reason"] for (payload,) in others} <= {"unknown_listener"}


@pytest.mark.parametrize("gateway", ["ours", "unbound", "system"])
async def test_a_gateway_serves_the_listeners_of_its_tenant_or_of_all(tenants: Tenants, gateway: str) -> None:
    await open_both(tenants)
    token = getattr(tenants, gateway).token
    async with Gateway(f"http://{tenants.server.http_address}", token, fresh_s=0.0) as running:
        own = "orders" if gateway == "ours" else "~ours/orders"
        assert await tenants.deliver(own, "s3cret of theirs", address=running.address) == 401
        assert await tenants.deliver(own, "s3cret of ours", address=running.address) == 202
        foreign = await tenants.deliver("~theirs/orders", "s3cret of theirs", address=running.address)
        assert foreign == (404 if gateway == "ours" else 202)
    runs = await tenants.rows("SELECT tenant, agent_id, session_id FROM tape_runs ORDER BY tenant")
    assert runs == [("ours", "p", "orders"), ("theirs", "p", "orders")][: 1 if gateway == "ours" else 2]


@pytest.mark.parametrize("alias", ["~theirs/secret", "~nobody/secret", "only_theirs"])
async def test_a_document_gets_no_secret_of_another_tenant(tenants: Tenants, alias: str) -> None:
    await tenants.server.wallet.set("~theirs/secret", "s3cret")
    await tenants.server.wallet.set("~theirs/only_theirs", "s3cret")
    await tenants.server.wallet.set("only_theirs", "s3cret")  # of no tenant, which is not of every tenant
    await tenants.ours.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
    await tenants.ours.open(PUSH.format(secret=f'"{alias}"', playbook="p"))
    assert await tenants.deliver("~ours/orders", "s3cret") == 503  # held
    shown = await tenants.ours.api("/api/internal/ingress/orders")
    assert not shown["secrets"]
    hint = (await tenants.ours.http("GET", "/api/credentials/only_their")).body
    assert b"nearest" not in hint


async def test_a_subscription_runs_no_playbook_of_another_tenant(tenants: Tenants) -> None:
    await tenants.theirs.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
    await tenants.system.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
    await tenants.server.wallet.set("~ours/secret", "s3cret")
    for playbook in ("p", '"~theirs/p"'):
        await tenants.ours.open(PUSH.format(secret="secret", playbook=playbook))
        assert await tenants.deliver("~ours/orders", "s3cret") >= 400
    assert await tenants.rows("SELECT count(*) FROM tape_runs") == [(0,)]


async def test_secrets_of_a_name_are_used_and_journaled_in_their_own_tenants(tenants: Tenants) -> None:
    for caller in (tenants.ours, tenants.theirs):
        await tenants.server.wallet.set(f"~{caller.tenant}/stripe", caller.tenant, hosts=["a.example:443"])
    for caller in (tenants.ours, tenants.theirs):
        path = "/api/credentials/stripe?include_data=true&host=a.example:443"
        found = await caller.api(path)
        assert (found["alias"], found["data"]) == ("stripe", caller.tenant)
        entries = await tenants.rows(
            "SELECT subject, payload_json FROM tape_journal WHERE kind = 'wallet'"
            f" AND tenant = '{caller.tenant}' ORDER BY global_seq"
        )
        assert [subject for subject, _ in entries] == ["/tape/wallet/set/stripe", "/tape/wallet/revealed/stripe"]
        assert {json.loads(payload)["alias"] for _, payload in entries} == {"stripe"}
    await tenants.server.wallet.rotate()
    assert await tenants.server.wallet.reveal("~ours/stripe") == "ours"
    await tenants.server.wallet.delete("~theirs/stripe")
    assert await tenants.server.wallet.reveal("~ours/stripe") == "ours"


async def test_a_secret_that_is_moved_to_another_tenants_row_does_not_open(tenants: Tenants) -> None:
    await tenants.server.wallet.set("~theirs/stripe", "s3cret")
    await tenants.server.database.write(lambda tx: tx.execute("UPDATE tape_secrets SET alias = '~ours/stripe'"))
    answer = await tenants.ours.http("GET", "/api/credentials/stripe?include_data=true")
    assert answer.status >= 400
    assert b"s3cret" not in answer.body


async def test_offsets_of_a_subscription_of_the_same_path_are_apart(tenants: Tenants) -> None:
    for caller, end in ((tenants.theirs, 5), (tenants.ours, 2)):
        await caller.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
        execution = {"path": "p", "subscription": "orders", "message_id": "0"}
        body = {"subscription": "orders", "part": "0", "begin": 0, "end": end}
        answer = await caller.api("/api/taken", body | {"records": [{"offset": 0, "execution": execution}]})
        assert [each["status"] for each in answer["results"]] == ["started"]
    for caller, end in ((tenants.theirs, 5), (tenants.ours, 2)):
        assert await caller.api("/api/taken?subscription=orders") == {"parts": {"0": [[0, end]]}}
    assert await tenants.unbound.api("/api/taken?subscription=~ours/orders") == {"parts": {"0": [[0, 2]]}}


async def test_events_of_a_runtime_belong_to_its_tenant(tenants: Tenants) -> None:
    ids = await open_both(tenants)
    event = {"event_type": "subscription.source.lost", "event_id": "e", "context": {"source": "nats"}}
    for caller in (tenants.ours, tenants.theirs):
        for name in ("orders", "~theirs/orders"):
            await caller.api("/api/events", event | {"subscription": name, "event_id": f"e-{name}"})
        await caller.api("/api/events", event | {"execution_id": ids[caller.tenant]})
    rows = await tenants.rows(
        "SELECT tenant, payload_json FROM tape_journal WHERE subject >= '/tape/subscription/source.lost/'"
        " AND subject < '/tape/subscription/source.lost0' ORDER BY global_seq"
    )
    assert [(tenant, json.loads(payload)["subscription"]) for tenant, payload in rows] == [
        ("ours", "orders"),
        ("ours", "~theirs/orders"),
        ("ours", "orders"),
        ("theirs", "orders"),
        ("theirs", "orders"),
        ("theirs", "orders"),
    ]


async def test_things_without_a_tenant_have_bare_names(tenants: Tenants) -> None:
    await open_both(tenants)
    for caller, alias in ((tenants.system, "secret"), (tenants.unbound, "~ops/secret")):
        await caller.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
        await tenants.server.wallet.set(alias, f"s3cret of {caller.tenant}")
        await caller.open(PUSH.format(secret="secret", playbook="p"))
    assert await tenants.deliver("orders", "s3cret of ") == 202
    assert await tenants.deliver("~ops/orders", "s3cret of ops") == 202
    assert sorted(await tenants.rows("SELECT tenant_id FROM tape_runs")) == [("",), ("ops",)]
    listed = (await tenants.system.api("/api/subscriptions"))["subscriptions"]
    assert {each["path"] for each in listed} == {"orders", "~ops/orders", "~ours/orders", "~theirs/orders"}
    listed = (await tenants.unbound.api("/api/subscriptions"))["subscriptions"]
    assert {each["path"] for each in listed} == {"~/orders", "orders", "~ours/orders", "~theirs/orders"}
    for name, secret in (("~/secret", "s3cret of "), ("secret", "s3cret of ops")):
        found = await tenants.unbound.api(f"/api/credentials/{name}?include_data=true")
        assert found["data"] == secret
    async with Gateway(f"http://{tenants.server.http_address}", tenants.unbound.token, fresh_s=0.0) as gateway:
        assert await tenants.deliver("~/orders", "s3cret of ", b"{}", gateway.address) == 202
        assert await tenants.deliver("orders", "s3cret of ops", b"{}", gateway.address) == 202


async def test_the_digest_of_a_foreign_artifact_is_answered_like_one_that_does_not_exist(tenants: Tenants) -> None:
    await tenants.theirs.rpc.append("/tape/order/paid/1", {"large": "x" * 5_000}, user="u", session="s")
    ((payload,),) = await tenants.rows("SELECT payload_json FROM tape_journal WHERE kind = 'order'")
    name = json.loads(payload)["large"]["artifact_ref"]
    assert (await tenants.theirs.http("GET", f"/v1/artifacts/{name}")).status == 200
    unknown = "0" * 64 + ".txt"
    foreign, missing = [await tenants.ours.http("GET", f"/v1/artifacts/{each}") for each in (name, unknown)]
    assert (foreign.status, foreign.body.replace(name.encode(), b"")) == (
        404,
        missing.body.replace(unknown.encode(), b""),
    )


async def test_a_pool_is_shared_and_its_commands_are_not(tenants: Tenants) -> None:
    for caller in (tenants.ours, tenants.theirs):
        await caller.rpc.register_resource(PLAYBOOK.format(path="p", value=1))
        await caller.rpc.execute("p")
    await matched(tenants.unbound.rpc)
    for caller in (tenants.ours, tenants.theirs):
        assert (await caller.api("/api/pools/shared"))["waiting"] == 1
        (task,) = (await caller.rpc.claim_tasks(reaction_id="pool:shared", owner="w")).tasks
        assert json.loads(task.payload_json)["path"] == f"~{caller.tenant}/p"
        assert task.status == pb.TASK_STATUS_CLAIMED
