"""OpenAPI, AsyncAPI and the catalogue: they say what is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema_rs import ValidationError
from schemathesis import openapi as schemathesis
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import ScopeDenied
from tape.journal.reader import EVERYTHING
from tape.journal.retention import prune
from tape.model.event_types import EVENTS
from tape.proto import tape_pb2 as pb
from tape.server.http import documents
from tape.server.http.operations import OPERATIONS
from tape.server.permissions import TOKENLESS_ROUTES, scopes_for
from tape.server.server import Server
from tests.server.test_stream import bearer
from tests.services import ServerProcess
from tests.web import call


async def test_the_documents_are_served(server: Server) -> None:
    described = (await call(server.http_address, "GET", "/v1/openapi.json")).json()
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for method in methods:
            answer = await call(server.http_address, "TRACE", re.sub("{[^}]*}", "x", path))
            assert method.upper() in answer.headers["allow"].split(", "), path
    heard = (await call(server.http_address, "GET", "/v1/asyncapi.json")).json()
    assert {event.name for event in EVENTS} == set(heard["components"]["messages"])


async def test_every_event_that_tape_emits_is_in_the_catalogue(server: Server, client: AsyncTapeClient) -> None:
    run_id = (await client.begin_run(app_name="a", user_id="u", session_id="s", invocation_id="i")).run_id
    await client.record_decision(run_id=run_id, decision_index=0, model="m")

    async def effect(index: int) -> dict[str, str]:
        begun = await client.begin_effect(run_id=run_id, decision_index=0, tool_name="t", call_index=index)
        return {"run_id": run_id, "idempotency_key": begun.idempotency_key}

    await client.complete_effect(**await effect(0), status=2)
    await client.complete_effect(**await effect(1), status=3)
    await client.record_dispatch_attempt(**(unknown := await effect(2)), error="e", next_dispatch_at_ms=0)
    await client.reconcile_effect(**unknown, resolved_status=2)
    await client.record_external_observation(**await effect(3), resolution=1, external_ref="x")
    with pytest.raises(ScopeDenied):
        await client.begin_effect(run_id=run_id, decision_index=0, tool_name="t", call_index=9, scope="more")
    for number, status in enumerate((3, 4)):
        owed = await client.register_compensation(run_id=run_id, effect_key=str(number), kind="undo")
        which = {"run_id": run_id, "obligation_seq": owed.seq}
        await client.claim_obligation(**which, claimer="me")
        await client.record_obligation_attempt(**which, error="e", next_attempt_at_ms=1)
        await client.resolve_obligation(**which, status=status)
    await client.await_signal(run_id=run_id, gate_name="g")
    await client.send_signal(run_id=run_id, gate_name="g")
    await client.send_signal(run_id=run_id, gate_name="not-reached-yet")
    await client.set_timer(run_id=run_id, fire_at_ms=1 << 50, kind="wake", timer_id="t")
    await client.cancel_timer(run_id=run_id, timer_id="t")
    await client.create_schedule("s", "0 3 * * *", app_name="a")
    await client.pause_schedule("s")
    await client.resume_schedule("s")
    await client.trigger_schedule("s")
    await client.delete_schedule("s")
    await client.write_value(namespace="n", key="k", value_json="1")
    await client.delete_value(namespace="n", key="k")
    await client.append_event(app_name="a", user_id="u", session_id="s", event=pb.EventRecord(author="me"))
    await client.end_run(run_id=run_id, status=4)
    await client.compact_run(run_id)
    await prune(server.database, before_seq=2)
    await call(server.http_address, "POST", "/v1/events/list", {"filter": {"tenant_ids": ["a"]}})
    await call(server.http_address, "POST", "/api/keys", {"name": "k", "tenant": "a"})
    await call(server.http_address, "POST", "/api/keys/k/rotate", {})
    await call(server.http_address, "POST", "/api/keys/k/revoke", {})
    await call(server.http_address, "POST", "/api/tokens/revoke", {"jti": "j", "tenant": "a"})
    head = (await server.journal.head()).global_seq
    subscription = await server.hub.subscribe(EVERYTHING, 0)
    entries = []
    while not entries or entries[-1].global_seq < head:
        entries += (await subscription.next()).entries
    subscription.close()
    known = {event.name: event for event in EVENTS}
    for entry in entries:
        assert set(entry.payload) <= set(known[entry.type].fields), entry.type
    # What subscriptions, executions and the wallet write is compared with the catalogue where they are tested.
    others = ("subscription.", "wallet.", "command.")
    here = {event.name for event in EVENTS if not (event.is_notice or event.name.startswith(others))}
    unseen = here - {entry.type for entry in entries}
    assert unseen == {
        *("run.waiting", "run.failed", "run.cancelled", "run.stuck", "run.compensating"),
        *("run.summary", "run.split", "audit.dead_letters_redriven", "audit.dead_letters_dropped"),
        *("audit.redaction_failed", "audit.tenant_moved", "auth.rejected", "journal.damaged", "journal.diverged"),
        *("gate.reminded", "gate.escalated", "timer.fired", "schedule.updated", "schedule.skipped"),
        *("schedule.buffered", "schedule.missed", "schedule.failed"),
    }


def test_the_openapi_document_is_valid() -> None:
    described = documents.openapi()
    schemathesis.from_dict(described).validate()
    broken = json.loads(json.dumps(described))
    broken["paths"]["/api/execute"]["post"]["responses"] = 5
    with pytest.raises(ValidationError):
        schemathesis.from_dict(broken).validate()


def test_the_openapi_document_names_every_schema_and_parameter_that_it_has() -> None:
    described = documents.openapi()
    used = set(re.findall('"#/components/schemas/([^"]*)"', json.dumps(described)))
    assert used == described["components"]["schemas"].keys()
    for path, methods in described["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert named == set(re.findall("{([^}]*)}", path)), path


@pytest.mark.parametrize("route", sorted(OPERATIONS))
def test_the_openapi_document_has_the_scopes_of_the_table_of_permissions(route: str) -> None:
    method, _, path = route.partition(" ")
    operation = documents.openapi()["paths"][OPERATIONS[route].path or path][method.lower()]
    if route in TOKENLESS_ROUTES:
        assert operation["security"] == []
        assert "x-scopes" not in operation
    else:
        assert "security" not in operation
        assert operation["x-scopes"] == sorted(scopes_for(route))
        assert {"400", "401", "403"} <= operation["responses"].keys()


# The stream does not end; upgrades, deliveries and handshakes of webhooks have tests of their own.
UNEXPLORED = ("calls", "events.subscribe", "ingress.deliver", "ingress.handshake")
EXPLORED = sorted(each.name for each in OPERATIONS.values() if each.name not in UNEXPLORED)
JOURNAL = frozenset({"events.publish", "events.list", "events.aggregate", "runtime.info", "artifacts.get"})
# Bodies that the schema alone would hardly ever make: a bucket divides its window, an offset lies in its range.
BODIES = {
    "events.aggregate": {"window": 3_600_000_000_000, "bucket": 60_000_000_000},
    "keys.create": {"name": "k", "tenant": "a"},
    "tokens.revoke": {"jti": "j", "tenant": "a"},
    "offsets.take": {"subscription": "s", "part": "0", "begin": 0, "end": 1, "records": []},
}
# Operations for which a name that the schema makes up does not exist.
NEVER_FOUND = frozenset(
    {
        *("artifacts.get", "catalog.register", "catalog.resource", "credentials.get", "execute", "executions.show"),
        *("ingress.show", "keys.change", "subscriptions.act", "subscriptions.register", "subscriptions.register.alias"),
        *("subscriptions.events", "subscriptions.show", "deliveries.list", "deliveries.resend", "holds.act"),
    }
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server with keys, and the Authorization header of a caller that may make every call."""
    path = tmp_path_factory.mktemp("guarded")
    key, _ = load_key(path / "dev.key")
    with ServerProcess(f"sqlite:{path / 'tape.db'}", "--auth-jwks", str(jwks_path(path / "dev.key"))) as server:
        yield server.http_url, bearer(key, scopes=["system"])


@pytest.mark.parametrize("operation", EXPLORED)
def test_requests_made_from_the_schema_get_answers_of_the_schema(guarded: tuple[str, str], operation: str) -> None:
    base, authorization = guarded
    schema = schemathesis.from_dict(documents.openapi())
    schema.config.update(base_url=base)
    described: Any = schema.find_operation_by_id(operation)
    statuses: list[int] = []

    def check(case: Any) -> None:
        headers = {"Authorization": authorization}
        answer = case.call(headers=headers)
        statuses.append(answer.status_code)
        # A schema cannot say that a bucket divides a window, or that 1.0 is no integer on this wire. Probes and
        # documents look at no token, so a wrong one cannot be refused.
        case.validate_response(answer, headers=headers, excluded_checks=[positive_data_acceptance, ignored_auth])

    @settings(
        max_examples=60 if operation in JOURNAL else 25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described.as_strategy())
    def explore(case: Any) -> None:
        check(case)

    explore()
    if operation in BODIES:
        check(described.Case(body=BODIES[operation], media_type="application/json"))
    assert operation in NEVER_FOUND or 200 in statuses
