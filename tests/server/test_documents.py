"""OpenAPI, AsyncAPI and the catalogue: they say what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import openapi as schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import ScopeDenied
from tape.journal.reader import EVERYTHING
from tape.journal.retention import prune
from tape.model.event_types import EVENTS
from tape.proto import tape_pb2 as pb
from tape.server.http import documents
from tape.server.server import Server
from tests.server.test_stream import bearer
from tests.services import ServerProcess
from tests.web import call


async def test_the_documents_are_served(server: Server) -> None:
    described = (await call(server.http_address, "GET", "/v1/openapi.json")).json()
    assert described["openapi"].startswith("3.1")
    for path, methods in described["paths"].items():
        for method in methods:
            answer = await call(server.http_address, "TRACE", path.replace("{id}", "x"))
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
    await client.write_value(namespace="n", key="k", value_json="1")
    await client.delete_value(namespace="n", key="k")
    await client.append_event(app_name="a", user_id="u", session_id="s", event=pb.EventRecord(author="me"))
    await client.end_run(run_id=run_id, status=4)
    await client.compact_run(run_id)
    await prune(server.database, before_seq=2)
    await call(server.http_address, "POST", "/v1/events/list", {"filter": {"tenant_ids": ["a"]}})
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
        *("run.running", "run.failed", "run.cancelled", "run.stuck", "run.compensating"),
        *("audit.redaction_failed", "auth.rejected"),
    }


OPERATIONS = ["events.publish", "events.list", "events.aggregate", "runtime.info", "artifacts.get"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_requests_made_from_the_schema_get_answers_of_the_schema(tmp_path: Path, operation: str) -> None:
    key, _ = load_key(tmp_path / "dev.key")
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}", "--auth-jwks", str(jwks_path(tmp_path / "dev.key"))) as server:
        _explore(server.http_url, operation, bearer(key, scopes=["admin"]))


def _explore(base: str, operation: str, authorization: str) -> None:
    schema = schemathesis.from_dict(documents.openapi())
    schema.config.update(base_url=base)
    cases: Any = schema.find_operation_by_id(operation).as_strategy()
    statuses: list[int] = []

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def explore(case: Any) -> None:
        headers = {"Authorization": authorization}
        answer = case.call(headers=headers)
        statuses.append(answer.status_code)
        # A schema cannot say that a bucket divides a window, or that 1.0 is no integer on this wire.
        case.validate_response(answer, headers=headers, excluded_checks=[positive_data_acceptance])
        if answer.status_code != 200:
            assert set(answer.json()) == {"code", "message"}

    explore()
    assert len(statuses) >= 30
    assert operation == "artifacts.get" or 200 in statuses
