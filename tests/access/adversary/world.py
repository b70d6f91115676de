"""A server with three tenants: the victim, whose things are marked, and two attackers that are twins.

Both twins have the same things and make the same calls. The one puts names of the victim into them, the other names
that do not exist. Whatever the state of a twin, both get the same answers, or the victim's names are not hidden.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.engine.security.keyfile import KeyFile
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.model.entry import Draft
from tape.model.principal import ALL_TENANTS, SCOPES, SYSTEM_SCOPE, Principal, expand_scopes
from tape.model.tenant_names import name_within
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.calls import Calls
from tests.engine.reactions.helpers import matched
from tests.web import call

# Prefixes of all names that clients choose. No other word of the product contains them.
VICTIM, ATTACKER, TWIN, CONTROL, ABSENT = "zqname", "bravos", "charli", "deltas", "zvoids"
# In every payload of the victim, and in the names of its things that no attacker says.
SECRET = "zqdata"

# Callers with one scope each, and with none. Those of `tenant:*` and `system` may see the victim.
SCOPE_SETS: dict[str, tuple[str, ...]] = {
    "none": (),
    **{scope: (scope,) for scope in sorted(SCOPES - {ALL_TENANTS, SYSTEM_SCOPE})},
}
EVERY_SCOPE = tuple(sorted(SCOPES - {ALL_TENANTS, SYSTEM_SCOPE}))

PLAYBOOK = """\
kind: Playbook
metadata: {{path: {prefix}/playbook}}
workflow:
  - {{step: a, tool: {{kind: value, value: {payload}}}}}
"""
SUBSCRIPTION = """\
kind: Subscription
metadata: {{name: {prefix}, path: {prefix}/subscription}}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/{prefix}-hook
    verify: {{type: hmac_sha256, header: X-Signature, secret: {prefix}_secret}}
  dispatch: {{playbook: {prefix}/playbook}}
"""

Names = dict[str, Any]


def chosen_names(prefix: str) -> Names:
    """Names that clients choose, by role."""
    simple = ("tenant", "user", "session", "log", "app", "invocation", "owner", "effect", "business", "connector")
    simple += ("gate", "timer", "namespace", "key", "event", "reaction", "pool", "dedup", "message", "part")
    simple += ("request", "dimension", "service_key", "token", "schedule")
    return {
        **{role: f"{prefix}-{role}" for role in simple},
        "subject": f"/tape/order/paid/{prefix}",
        "pattern": f"/tape/never/{prefix}/**",
        "path": f"{prefix}/playbook",
        "subscription": f"{prefix}/subscription",
        "alias": f"{prefix}_secret",
        "listener": f"{prefix}-hook",
        "address": f"~{prefix}-tenant/{prefix}-hook",
        "pool_reaction": f"pool:{prefix}-pool",
        "document": PLAYBOOK.format(prefix=prefix, payload=1),
    }


# Names that the server chooses, as they look when there is no such thing.
UNKNOWN_IDS: Names = {
    "run": "00000000-0000-4000-8000-00000000dead",
    "task": "00000000-0000-7000-8000-00000000dead",
    "dead_letter": "task/00000000-0000-7000-8000-00000000feed",
    "execution": "899999999999999999",
    "delivery": "899999999999999997",
    "registration": "899999999999999998",
    "catalog": 899_999_999,
    "entry": 899_999_997,
    "artifact": "d" * 64 + ".txt",
}


@dataclass
class Tenant:
    """A tenant with one thing of each kind, and its tokens by set of scopes."""

    prefix: str
    names: Names
    tokens: Mapping[str, str]
    all_scopes: str
    runs: list[str] = field(default_factory=list)


class LogWatch(logging.Handler):
    """Keeps records with a traceback or of level ERROR."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info or record.levelno >= logging.ERROR or "Traceback" in text:
            self.found.append(f"{record.name}: {text} {record.exc_info or ''}")

    def take(self) -> list[str]:
        """What was logged since the last call."""
        found, self.found = self.found, []
        return found


@dataclass
class World:
    """The server, its tenants, and names that do not exist."""

    server: Server
    key: SigningKey
    channel: grpc.aio.Channel
    calls: Calls
    observer: AsyncTapeClient
    victim: Tenant
    attacker: Tenant
    twin: Tenant
    control: Tenant
    log: LogWatch
    # The last snapshot; whatever ran since does not touch the victim.
    seen: dict[str, str] | None = None
    absent: Names = field(default_factory=lambda: chosen_names(ABSENT) | UNKNOWN_IDS)

    async def settle(self) -> None:
        """Wait until reactions have been matched against the whole journal."""
        await matched(self.observer)

    async def rpc(self, method: str, request: Any, token: str, *metadata: tuple[str, str]) -> Any:
        """The reply of a unary RPC."""
        send = self.channel.unary_unary(
            f"/tape.v1.Tape/{method}",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=reply_class(method).FromString,
        )
        return await send(request, metadata=(("authorization", f"Bearer {token}"), *metadata), timeout=60)

    async def snapshot(self) -> dict[str, str]:
        """Everything that the victim sees of its own, as text."""
        names, token = self.victim.names, self.victim.all_scopes
        about = {name: names[role] for name, role in _SESSION.items()}
        requests: list[tuple[str, Any]] = [
            *(("GetRun", pb.GetRunRequest(run_id=run)) for run in self.victim.runs),
            *(("ListObligations", pb.ListObligationsRequest(run_id=run)) for run in self.victim.runs),
            ("GetDecision", pb.GetDecisionRequest(run_id=names["run"])),
            ("GetEffect", pb.GetEffectRequest(run_id=names["run"], idempotency_key=names["effect"])),
            ("AdmitBudget", pb.AdmitBudgetRequest(run_id=names["run"])),
            ("ListRuns", pb.ListRunsRequest()),
            ("ListRunsToRecover", pb.ListRunsToRecoverRequest()),
            ("ListCompactableRuns", pb.ListCompactableRunsRequest()),
            ("ListUnresolvedObligations", pb.ListUnresolvedObligationsRequest()),
            ("ListPendingEffects", pb.ListPendingEffectsRequest()),
            ("ListEffectsToDispatch", pb.ListEffectsToDispatchRequest(now_ms=1 << 50)),
            ("ListDueTimers", pb.ListDueTimersRequest(now_ms=1 << 50)),
            ("ListGates", pb.ListGatesRequest()),
            ("ListSchedules", pb.ListSchedulesRequest()),
            ("GetValue", pb.GetValueRequest(namespace=names["namespace"], key=names["key"])),
            ("GetSession", pb.GetSessionRequest(**about)),
            ("ListSessions", pb.ListSessionsRequest(app_name=names["app"])),
            ("ListReactions", pb.ListReactionsRequest()),
            *(
                ("ListTasks", pb.ListTasksRequest(reaction_id=names["reaction"], status=status))
                for status in pb.TaskStatus.values()
            ),
            ("ListTasks", pb.ListTasksRequest(status=pb.TASK_STATUS_DLQ)),
            ("GetResource", pb.GetResourceRequest(path=names["path"])),
            ("GetResource", pb.GetResourceRequest(path=names["subscription"])),
            ("ListResources", pb.ListResourcesRequest()),
        ]
        routes: list[tuple[str, str, Any]] = [
            ("GET", f"/api/executions/{names['execution']}", None),
            ("GET", f"/api/pools/{names['pool']}", None),
            ("GET", f"/api/taken?subscription={names['subscription']}", None),
            ("GET", "/api/subscriptions", None),
            ("GET", f"/api/subscriptions/{names['registration']}", None),
            ("GET", f"/api/credentials/{names['alias']}", None),
            ("GET", "/api/keys?all=true", None),
            ("GET", f"/v1/artifacts/{names['artifact']}", None),
            ("POST", "/v1/events/list", {"limit": 200}),
            ("POST", "/api/catalog/list", {}),
        ]
        seen = {}
        for number, (method, request) in enumerate(requests):
            seen[f"{number} {method}"] = str(await self.rpc(method, request, token))
        for method, path, body in routes:
            answer = await call(
                self.server.http_address, method, path, b"" if body is None else body, authorization=f"Bearer {token}"
            )
            seen[f"{method} {path}"] = f"{answer.status} {answer.body.decode()}"
        seen["entries"] = await self._entries(token)
        return seen

    async def _entries(self, token: str) -> str:
        head = (await self.observer.head()).global_seq
        stream = self.channel.unary_stream(
            "/tape.v1.Tape/Follow",
            request_serializer=pb.FollowRequest.SerializeToString,
            response_deserializer=pb.EntryBatch.FromString,
        )(pb.FollowRequest(), metadata=(("authorization", f"Bearer {token}"),), timeout=60)
        entries: list[str] = []
        async for batch in stream:
            entries += map(str, batch.entries)
            if batch.position >= head:
                break
        stream.cancel()
        return "\n".join(entries)


_SESSION = {"app_name": "app", "user_id": "user", "session_id": "session"}


def reply_class(method: str) -> Any:
    """The message that an RPC answers with."""
    output = pb.DESCRIPTOR.services_by_name["Tape"].methods_by_name[method].output_type
    return getattr(pb, output.name)


def principal_of(tenant: Tenant, scopes: Sequence[str]) -> Principal:
    """The principal of a token of the tenant."""
    return Principal(
        tenant=tenant.names["tenant"],
        user=tenant.names["user"],
        session=tenant.names["session"],
        scopes=expand_scopes(frozenset(scopes)),
    )


@asynccontextmanager
async def open_world(store: str, path: Path) -> AsyncIterator[World]:
    """A server on a store, with its tenants populated over its public endpoints."""
    key, _ = load_key(path / "dev.key")
    KeyFile(path / "wallet.key").create()
    settings = Settings(
        store=store,
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
        artifacts=str(path / "artifacts"),
        artifact_threshold_bytes=4_096,
        wallet_key=str(path / "wallet.key"),
        shutdown_grace_s=1.0,
    )
    log = LogWatch()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))
        logging.getLogger().addHandler(log)
        stack.callback(logging.getLogger().removeHandler, log)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.grpc_address))
        unbound = key.mint(tenant="observer", user="u", session="s", scopes=["service", "tenant:*"])
        calls = await stack.enter_async_context(Calls(server.http_address))
        # A connection without an admitted call is closed after a time.
        await calls.call("GetHead", metadata=[("authorization", f"Bearer {unbound}")])
        url = f"tape://{server.grpc_address}"
        observer = await stack.enter_async_context(AsyncTapeClient(url, id_token=unbound))
        tenants = []
        for prefix in (VICTIM, ATTACKER, TWIN, CONTROL):
            names = chosen_names(prefix)
            tokens = {label: mint(key, names, scopes) for label, scopes in {**SCOPE_SETS, "every": EVERY_SCOPE}.items()}
            tenant = Tenant(prefix, names, tokens, tokens["every"])
            async with AsyncTapeClient(url, id_token=tenant.all_scopes) as client:
                if prefix == VICTIM:
                    unsaid = chosen_names(SECRET) | {role: names[role] for role in ("tenant", "user", "session")}
                    await _Population(server, client, observer, replace(tenant, prefix=SECRET, names=unsaid)).make()
                await _Population(server, client, observer, tenant).make()
            tenants.append(tenant)
        world = World(server, key, channel, calls, observer, *tenants, log)
        # Counted within its run, so no name of its own.
        world.absent["obligation"] = world.victim.names["obligation"]
        await world.settle()
        yield world


def mint(key: SigningKey, names: Names, scopes: Sequence[str]) -> str:
    """A token of a tenant."""
    return key.mint(tenant=names["tenant"], user=names["user"], session=names["session"], scopes=list(scopes))


class _Population:
    """Makes one thing of each kind for a tenant."""

    def __init__(self, server: Server, client: AsyncTapeClient, observer: AsyncTapeClient, tenant: Tenant) -> None:
        self._server = server
        self._client = client
        self._observer = observer
        self._tenant = tenant
        self._names = tenant.names
        self._is_victim = tenant.names["tenant"].startswith(VICTIM)
        self._payload = json.dumps({"note": f"{SECRET if self._is_victim else 'note'} of {tenant.prefix}"})

    async def make(self) -> None:
        await self._make_reaction()
        await self._make_runs()
        await self._make_values()
        await self._make_entries()
        await self._make_tasks()
        await self._make_documents()
        await self._make_key()

    async def _make_reaction(self) -> None:
        # The victim's fires on everything: an entry of another tenant that reaches it becomes a task.
        await self._client.register_reaction(
            reaction_id=self._names["reaction"],
            subject_pattern="/tape/**" if self._is_victim else "/tape/seed/**",
            handler_kind=pb.HANDLER_KIND_TASK,
            max_concurrency=1_000,
        )

    async def _make_runs(self) -> None:
        names, client = self._names, self._client
        about = {name: names[role] for name, role in _SESSION.items()}
        for number in range(3):
            invocation = names["invocation"] + f"-{number}" * bool(number)
            begun = await client.begin_run(
                **about, invocation_id=invocation, lease_owner=names["owner"], lease_ttl_ms=3_600_000
            )
            self._tenant.runs.append(begun.run_id)
        names["run"], parked, ended = self._tenant.runs[-3:]
        run = {"run_id": names["run"]}
        await client.record_decision(**run, decision_index=0, model="m", response_json=self._payload)
        await client.begin_effect(
            **run,
            decision_index=0,
            tool_name="tool",
            custom_key=names["effect"],
            business_key=names["business"],
            connector=names["connector"],
            request_json=self._payload,
            dispatch_mode=pb.EFFECT_DISPATCH_MODE_OUTBOX,
        )
        owed = await client.register_compensation(
            **run, effect_key=names["effect"], kind="undo", payload_json=self._payload
        )
        names["obligation"] = owed.seq
        await client.set_budget(**run, usd_cap=5.0, token_cap=5)
        await client.set_timer(**run, timer_id=names["timer"], fire_at_ms=1, kind="wake", payload_json=self._payload)
        await client.await_signal(run_id=parked, gate_name=names["gate"], payload_json=self._payload)
        await client.create_schedule(names["schedule"], "0 3 1 1 *", app_name=names["app"], input_json=self._payload)
        await client.end_run(run_id=ended, status=pb.RUN_STATUS_TERMINAL, detail_json=self._payload)

    async def _make_values(self) -> None:
        names, client = self._names, self._client
        about = {name: names[role] for name, role in _SESSION.items()}
        await client.write_value(
            namespace=names["namespace"], key=names["key"], value_json=self._payload, writer=names["owner"]
        )
        await client.create_session(**about, state_json=self._payload)
        await client.append_event(
            **about, event=pb.EventRecord(id=names["event"], author="a", content_json=self._payload)
        )

    async def _make_entries(self) -> None:
        names = self._names
        subject = f"/tape/seed/made/{self._tenant.prefix}"
        payload = json.loads(self._payload)
        large = payload | {"large": payload["note"] * 300}
        names["entry"] = await self._client.append(
            subject, large, run_id=names["log"], user=names["user"], session=names["session"]
        )
        draft = Draft(subject=subject, payload_json=self._payload, run_id=names["log"])
        await self._client.append_many([draft], request_id=names["request"])
        await self._http(
            "POST",
            "/v1/events",
            {
                "specversion": "1.0",
                "id": names["request"],
                "source": names["request"],
                "type": "seed.made",
                "subject": names["dimension"],
                "data": payload,
            },
            content_type="application/cloudevents+json",
        )
        page = await self._http("POST", "/v1/events/list", {"limit": 200})
        names["artifact"] = next(
            event["payload"]["large"]["artifact_ref"]
            for event in reversed(page["events"])
            if "large" in event["payload"]
        )

    async def _make_tasks(self) -> None:
        names = self._names
        await matched(self._observer)
        about = {"reaction_id": names["reaction"], "owner": names["owner"], "lease_ms": 3_600_000, "shard": -1}
        dead, held, *_ = (await self._client.claim_tasks(**about, max=100)).tasks
        names["task"] = held.task_id
        names["dead_letter"] = f"task/{dead.task_id}"
        await self._client.nack_task(task_id=dead.task_id, owner=names["owner"], error=self._payload, permanent=True)

    async def _make_documents(self) -> None:
        names, prefix = self._names, self._tenant.prefix
        await self._server.wallet.set(name_within(names["tenant"], names["alias"]), self._payload)
        document = PLAYBOOK.format(prefix=prefix, payload=json.dumps(self._payload))
        names["catalog"] = (await self._client.register_resource(document)).catalog_id
        begun = await self._client.execute(
            names["path"], json.loads(self._payload), pool=names["pool"], dedup_key=names["dedup"]
        )
        names["execution"] = str(begun.execution_id)
        await self._client.register_resource(SUBSCRIPTION.format(prefix=prefix))
        registered = await self._http("POST", "/api/subscriptions", {"path": names["subscription"]})
        names["registration"] = registered["subscription_id"]
        await self._http("POST", f"/api/subscriptions/{names['registration']}/activate", {})
        delivery = {"path": names["path"], "subscription": names["subscription"], "execution_pool": names["pool"]}
        delivered = await self._http("POST", "/api/execute", delivery | {"payload": json.loads(self._payload)})
        names["delivery"] = delivered["execution_id"]
        await self._http(
            "POST",
            "/api/taken",
            {"subscription": names["subscription"], "part": names["part"], "begin": 0, "end": 1, "records": []},
        )

    async def _make_key(self) -> None:
        await self._http("POST", "/api/keys", {"name": self._names["service_key"], "scopes": ["agent"]})

    async def _http(self, method: str, path: str, body: Any, **headers: str) -> Any:
        token = self._tenant.all_scopes
        answer = await call(self._server.http_address, method, path, body, authorization=f"Bearer {token}", **headers)
        assert answer.status == 200, f"{method} {path}: {answer.status} {answer.body!r}"
        return answer.json()
