"""Effects with unknown outcome are observed by their status check, else by their connector."""

from __future__ import annotations

from typing import Any

import pytest

from tape.client import TapeClient
from tape.connectors import LocalConnector, ObservationResult, register
from tape.effect import register_status_check
from tape.reactors import outbox_dispatch_once, reconcile_once
from tape.reactors.reconciliation import Reconciler
from tests.reactors.scene import IDEMPOTENT, NON_IDEMPOTENT, begin, effect_of, outcomes, send

PENDING, CONFIRMED, FAILED, UNKNOWN = 1, 2, 3, 4


def inline(client: TapeClient, run_id: str, tool: str = "pay", *, unknown: bool = True) -> str:
    key = client.begin_effect(run_id=run_id, decision_index=0, tool_name=tool, request_json='{"n": 7}').idempotency_key
    if unknown:
        client.complete_effect(run_id=run_id, idempotency_key=key, status=UNKNOWN)
    return key


@pytest.mark.parametrize(
    ("answer", "outcome", "status", "response"),
    [
        ({"ref": 1}, "confirmed", CONFIRMED, '{"ref":1}'),
        (True, "confirmed", CONFIRMED, "{}"),
        (False, "pending", PENDING, ""),
        ("failed", "failed", FAILED, ""),
        (ObservationResult("confirmed", "tx", {"a": 1}), "confirmed", CONFIRMED, '{"a":1,"external_ref":"tx"}'),
        (None, "unknown", UNKNOWN, ""),
        ("stuck", "unknown", UNKNOWN, ""),
        ("nonsense", "unknown", UNKNOWN, ""),
    ],
)
def test_a_status_check_settles_what_is_unknown(
    client: TapeClient, answer: Any, outcome: str, status: int, response: str
) -> None:
    register_status_check("pay", lambda n: answer if n == 7 else pytest.fail("the argument"))
    run_id = begin(client)
    key = inline(client, run_id)
    assert outcomes(reconcile_once(client=client)) == [outcome]
    effect = effect_of(client, run_id, key)
    assert (effect.status, effect.response_json) == (status, response)


@pytest.mark.parametrize(("semantics", "status"), [(IDEMPOTENT, PENDING), (NON_IDEMPOTENT, FAILED)])
def test_a_connector_is_asked_where_there_is_no_status_check(client: TapeClient, semantics: int, status: int) -> None:
    register(LocalConnector("bank", lambda: None, look=lambda: False))
    run_id = begin(client)
    key = send(client, run_id, semantics)
    ids = {"run_id": run_id, "idempotency_key": key}
    client.record_dispatch_attempt(**ids, error="?", next_dispatch_at_ms=0)
    assert outcomes(reconcile_once(client=client)) == ["pending" if status == PENDING else "failed"]
    assert effect_of(client, run_id, key).status == status
    # What is harmless to repeat is sent again; what is not, is not.
    assert outcomes(outbox_dispatch_once(client=client)) == (["confirmed"] if status == PENDING else [])


def test_an_effect_without_a_check_is_reported(client: TapeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tape.reactors.reconciliation.LIMIT", 5)
    run_id = begin(client)
    for number in range(8):
        inline(client, run_id, f"mystery-{number}")
    inline(client, run_id)
    register_status_check("pay", lambda: True)
    reports = reconcile_once(client=client)
    assert outcomes(reports) == ["unknown"] * 8 + ["confirmed"]
    assert "neither a status check nor a connector" in reports[0]["reason"]


def test_a_pending_effect_is_asked_for_only_when_it_is_old(client: TapeClient) -> None:
    asked: list[int] = []
    register_status_check("pay", lambda: asked.append(1))
    run_id = begin(client)
    inline(client, run_id, unknown=False)
    send(client, run_id)
    assert reconcile_once(client=client) == []
    assert reconcile_once(client=client, reconcile_pending_after_ms=10_000_000) == []
    while not asked:
        reports = reconcile_once(client=client, reconcile_pending_after_ms=1)
    assert outcomes(reports) == ["pending"]  # the one in the outbox is the dispatcher's


def test_an_answer_that_does_not_come_is_asked_for_less_and_less(client: TapeClient) -> None:
    asked: list[int] = []
    register_status_check("pay", lambda: asked.append(1))
    run_id = begin(client)
    inline(client, run_id)
    reconciler = Reconciler(client)
    assert outcomes(reconciler.once()) == ["unknown"]
    assert (reconciler.once(), len(asked)) == ([], 1)


def test_two_who_find_out_the_same_record_it_once(client: TapeClient) -> None:
    run_id = begin(client)
    key = inline(client, run_id)

    def meanwhile() -> dict[str, int]:
        client.record_external_observation(run_id=run_id, idempotency_key=key, resolution=1, response_json='{"ref":1}')
        return {"ref": 1}

    register_status_check("pay", meanwhile)
    before = client.get_run(run_id).seq_cursor
    assert outcomes(reconcile_once(client=client)) == ["confirmed"]
    assert client.get_run(run_id).seq_cursor == before + 1
