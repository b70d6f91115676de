"""What answers of an HTTP server mean for an effect."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator

import httpx
import pytest

from tape.connectors import HttpConnector, ObservationResult, call_dispatch, call_observe
from tape.errors import InvalidConnector
from tape.proto import tape_pb2 as pb
from tests.receiver import Receiver
from tests.services import wait_for

pytestmark = pytest.mark.usefixtures("loopback_allowed")


def payment(**fields: object) -> pb.EffectRecord:
    defaults = {"run_id": "r", "idempotency_key": f"r/pay/{uuid.uuid4().hex}", "request_json": '{"amount": 5}'}
    return pb.EffectRecord(**(defaults | fields))  # type: ignore[arg-type]


Making = Callable[..., HttpConnector]


@pytest.fixture
def connector(bank: Receiver) -> Iterator[Making]:
    """Makes connectors to the bank."""
    made: list[HttpConnector] = []

    def make(**options: object) -> HttpConnector:
        urls = {"url": f"{bank.url}/payments", "status_url": f"{bank.url}/payments/{{idempotency_key}}"}
        made.append(HttpConnector("bank", **(urls | options)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("status", "meaning", "is_retried"),
    [
        (302, "failed", False),
        (400, "failed", False),
        (404, "failed", False),
        (422, "failed", False),
        (408, "unknown", False),
        (409, "unknown", False),
        (425, "failed", True),
        (429, "failed", True),
        (500, "unknown", False),
        (503, "unknown", False),
    ],
)
def test_an_answer_says_what_is_certain_and_no_more(
    bank: Receiver, connector: Making, status: int, meaning: str, is_retried: bool
) -> None:
    bank.post(f"/answer/{status}")
    result = connector().dispatch(payment())
    assert (result.status, result.error["status"], result.retry_at_ms > 0) == (meaning, status, is_retried)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("after", ["120", "Fri, 31 Dec 2100 23:59:59 GMT"])
def test_retry_after_says_when(bank: Receiver, connector: Making, status: int, after: str) -> None:
    bank.post(f"/answer/{status}", **{"Retry-After": after})
    result = connector().dispatch(payment())
    assert result.retry_at_ms > time.time() * 1000 + 100_000


def test_a_conflict_can_mean_no(bank: Receiver, connector: Making) -> None:
    bank.post("/answer/409")
    assert connector(conflict="failed").dispatch(payment()).status == "failed"


def test_the_business_key_is_the_key_and_the_answer_names_it(bank: Receiver, connector: Making) -> None:
    effect = payment(business_key="invoice/7 é")
    result = connector().dispatch(effect)
    last = bank.ledger()[-1]
    assert (result.status, result.external_ref) == ("confirmed", result.response["id"])
    assert (last["key"], last["body"]) == ("invoice/7%20%C3%A9", {"amount": 5})


def test_a_refused_connection_means_not_sent(connector: Making) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = connector(url=f"http://127.0.0.1:{taken.getsockname()[1]}/").dispatch(payment())
    assert result.status == "failed"
    assert result.retry_at_ms > 0


def test_an_answer_that_does_not_come_in_time_is_unknown_and_can_be_looked_up(
    bank: Receiver, connector: Making
) -> None:
    bank.post("/hold")
    effect = payment()
    slow = connector(timeout_s=0.2)
    assert slow.dispatch(effect).status == "unknown"
    wait_for(lambda: effect.idempotency_key in [each["key"] for each in bank.ledger()], "the payment to happen")
    observing = connector()
    assert observing.observe(effect).status == "confirmed"
    assert observing.observe(payment()).status == "absent"


def test_a_status_can_be_read_in_the_words_of_the_other_side(bank: Receiver, connector: Making) -> None:
    effect = payment()
    looking = connector(read_status=lambda seen: ObservationResult("duplicate" if seen["times"] > 1 else "absent"))
    looking.dispatch(effect)
    assert looking.observe(effect).status == "absent"
    looking.dispatch(effect)
    assert looking.observe(effect).status == "duplicate"


@pytest.mark.parametrize("key", ["", ".."])
def test_a_blank_that_cannot_be_filled_in_sends_nothing(bank: Receiver, connector: Making, key: str) -> None:
    before = len(bank.ledger())
    asking = connector(status_url=f"{bank.url}/payments/{{business_key}}")
    effect = payment(business_key=key)
    with pytest.raises(InvalidConnector, match="needs 'business_key'"):
        asking.observe(effect)
    assert call_observe(asking, effect).status == "stuck"
    asking.url += "/{order_id}"
    assert call_dispatch(asking, effect).error["type"] == "InvalidConnector"
    assert len(bank.ledger()) == before


def test_a_private_address_that_is_not_allowed_is_sent_nothing(
    bank: Receiver, connector: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAPE_HTTP_ALLOW")
    before = len(bank.ledger())
    result = connector().dispatch(payment())
    assert (result.status, result.error["type"]) == ("failed", "AddressNotAllowed")
    assert "TAPE_HTTP_ALLOW=127.0.0.1:" in result.error["message"]
    assert len(bank.ledger()) == before


def test_a_url_that_cannot_be_requested_fails_for_good(connector: Making) -> None:
    result = connector(url="ftp://bank.example/payments").dispatch(payment())
    assert (result.status, result.retry_at_ms) == ("failed", 0)


def test_a_client_of_the_user_is_used_as_it_is(bank: Receiver, connector: Making) -> None:
    client = httpx.Client(headers={"X-Mine": "1"})
    made = connector(client=client)
    effect = payment()
    result = made.dispatch(effect)
    assert (result.status, made.observe(effect).status) == ("confirmed", "confirmed")
    made.close()
    assert client.is_closed


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (httpx.ConnectError("no route"), "failed"),
        (httpx.ReadTimeout("slow"), "unknown"),
        (OSError("broken"), "unknown"),
    ],
)
def test_an_error_of_a_client_of_the_user_says_whether_the_request_was_sent(
    connector: Making, error: Exception, meaning: str
) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    result = connector(client=httpx.Client(transport=httpx.MockTransport(fail))).dispatch(payment())
    assert (result.status, result.retry_at_ms > 0) == (meaning, meaning == "failed")
