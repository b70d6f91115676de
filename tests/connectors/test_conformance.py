"""What every connector keeps to, whatever is on its other side."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tape import connectors
from tape.connectors import (
    CompensationResult,
    DispatchResult,
    EffectConnector,
    HttpConnector,
    LocalConnector,
    ObservationResult,
    call_compensate,
    call_dispatch,
    call_observe,
)
from tape.errors import InvalidConnector
from tape.proto import tape_pb2 as pb
from tests.pubsub import PROJECT
from tests.receiver import Receiver

pytestmark = pytest.mark.usefixtures("loopback_allowed")

EFFECT = pb.EffectRecord(
    run_id="run-1",
    tool_name="pay",
    idempotency_key="run-1/decision-0/pay/0",
    request_json='{"amount": 5}',
    connector="bank",
)
OBLIGATION = pb.ObligationRecord(run_id="run-1", seq=7, kind="refund", payload_json='{"amount": 5}')


def pay(amount: int, idempotency_key: str) -> dict[str, Any]:
    return {"external_ref": f"{idempotency_key}:{amount}"}


async def pay_later(amount: int, idempotency_key: str) -> DispatchResult:
    await asyncio.sleep(0)
    return DispatchResult("confirmed", external_ref=f"{idempotency_key}:{amount}")


async def refund_later(payload: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return payload


@pytest.fixture(params=["functions", "coroutines", "http", "pubsub"])
def connector(request: pytest.FixtureRequest) -> Iterator[EffectConnector]:
    if request.param == "functions":
        yield LocalConnector("bank", pay, look=lambda effect: True, undo=lambda amount: None)
    elif request.param == "coroutines":
        yield LocalConnector("bank", pay_later, look=lambda effect: "confirmed", undo=refund_later)
    elif request.param == "http":
        bank: Receiver = request.getfixturevalue("bank")
        http = HttpConnector(
            "bank",
            f"{bank.url}/payments",
            status_url=f"{bank.url}/payments/{{idempotency_key}}",
            compensate_url=f"{bank.url}/refunds",
        )
        yield http
        http.close()
    else:
        topic, _ = request.getfixturevalue("pubsub").topic()
        sending = connectors.PubSubConnector("bank", PROJECT, topic)
        yield sending
        sending.publisher.stop()
        sending.publisher.transport.close()


def test_it_is_a_connector(connector: EffectConnector) -> None:
    assert isinstance(connector, EffectConnector)
    connectors.register(connector)
    connectors.register(connector, name="other")
    assert connectors.get("bank") is connectors.get("other") is connector
    assert set(connectors.all_registered()) == {"bank", "other"}
    connectors.clear()
    assert connectors.get("bank") is None


def test_what_was_sent_is_confirmed_and_has_a_reference(connector: EffectConnector) -> None:
    result = call_dispatch(connector, EFFECT)
    assert isinstance(result, DispatchResult)
    assert (result.status, bool(result.external_ref), result.error) == ("confirmed", True, {})


def test_an_effect_can_be_observed_or_is_stuck(connector: EffectConnector) -> None:
    call_dispatch(connector, EFFECT)
    seen = call_observe(connector, EFFECT)
    assert isinstance(seen, ObservationResult)
    assert seen.status in ("confirmed", "stuck")


def test_it_undoes_or_says_that_it_cannot(connector: EffectConnector) -> None:
    result = call_compensate(connector, OBLIGATION)
    assert isinstance(result, CompensationResult)
    assert result.status == "compensated" or result.error


def test_a_coroutine_may_run_on_another_thread(connector: EffectConnector) -> None:
    async def main() -> DispatchResult:
        return await asyncio.to_thread(call_dispatch, connector, EFFECT)

    assert asyncio.run(main()).status == "confirmed"


# ── connectors that go wrong ─────────────────────────────────────────────────────────────────────


def broken(how: Callable[..., Any]) -> LocalConnector:
    return LocalConnector("broken", how, look=how, undo=how)


def test_an_exception_is_never_taken_for_a_certainty() -> None:
    def fail(effect: Any = None) -> None:
        raise OSError("the line is dead")

    error = {"type": "OSError", "message": "the line is dead"}
    assert call_dispatch(broken(fail), EFFECT) == DispatchResult("unknown", error=error)
    assert call_observe(broken(fail), EFFECT) == ObservationResult("stuck", response={"error": error})
    assert call_compensate(broken(fail), OBLIGATION) == CompensationResult("failed", error=error)


def test_an_answer_that_none_may_give_is_reported() -> None:
    result = call_dispatch(broken(lambda: "sent"), EFFECT)
    assert result.status == "unknown"
    assert "answered 'sent' instead of a DispatchResult" in result.error["message"]


@pytest.mark.parametrize("kind", [DispatchResult, ObservationResult, CompensationResult])
def test_a_status_that_there_is_not_is_refused_by_name(kind: Callable[[str], object]) -> None:
    with pytest.raises(InvalidConnector, match=r"status 'perhaps' of a \w+Result is not one of"):
        kind("perhaps")


def test_a_connector_that_lacks_something_is_refused() -> None:
    with pytest.raises(InvalidConnector, match="The connector 'half' lacks observe and compensate"):
        connectors.register(type("Half", (), {"name": "half", "dispatch": print})())
    with pytest.raises(InvalidConnector, match="has no name"):
        connectors.register(LocalConnector("", print))


@pytest.mark.parametrize(("name", "client", "extra"), [
    ("PubSubConnector", "google.cloud", "pubsub"),
])  # fmt: skip
def test_a_client_that_is_not_installed_is_one_sentence(name: str, client: str, extra: str) -> None:
    program = f"import sys; sys.modules[{client!r}] = None; import tape.connectors; tape.connectors.{name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"pip install 'tape[{extra}]'" in done.stderr.splitlines()[-1]
