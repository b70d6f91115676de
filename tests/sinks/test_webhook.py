"""Webhooks: what is retried, what is not, signatures, addresses."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tape.base.http import parse_retry_after
from tape.errors import InvalidInput, RefusedAddress, SinkClosed, SinkHeldBack, SinkRejected, SinkUnavailable
from tape.sinks import AIPlexSink, WebhookSink
from tape.sinks.signature import Signer
from tests.services import free_port, wait_for
from tests.sinks.conftest import entry
from tests.sinks.receivers import HttpReceiver


def sink(http: HttpReceiver, **options: Any) -> WebhookSink:
    settings: dict[str, Any] = {"allow_private": True, "initial_backoff_s": 0.001, **options}
    return WebhookSink(http.url, **settings)


def test_the_request_is_as_the_contract_says(http: HttpReceiver) -> None:
    sink(http, headers={"Authorization": "Bearer token"}).publish(entry(42, "r-1234"))
    (got,) = http.received
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["X-Tape-Event-Id"] == "r-1234/42"
    assert got.headers["Authorization"] == "Bearer token"
    assert got.raw.startswith(
        b'{"run_id":"r-1234","seq":42,"kind":"effect","payload_json":"{}","ts_ms":1714900800042,"global_seq":42,'
    )


def test_connections_are_kept(http: HttpReceiver) -> None:
    webhook = sink(http)
    for number in range(10):
        webhook.publish(entry(number))
    assert http.connections == 1
    webhook.close()


def test_an_answer_that_never_ends_is_cut(http: HttpReceiver) -> None:
    http.answer = lambda request: (400, {"X": "y"})
    http.body = b"x" * 1_000_000
    webhook = sink(http)
    for number in (1, 2):
        with pytest.raises(SinkRejected) as raised:
            webhook.publish(entry(number))
        assert len(str(raised.value)) < 500
    http.answer = lambda request: (200, {})
    webhook.publish(entry(3))
    webhook.close()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 0])
def test_what_may_pass_is_tried_again(http: HttpReceiver, status: int) -> None:
    http.answer = lambda request: (status, {}) if len(http.tries) < 3 else (204, {})
    webhook = sink(http)
    webhook.publish(entry(1))
    assert len(http.tries) == 3
    assert {each.event_id for each in http.tries} == {"r-1/1"}
    assert webhook.retries == 2


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 409, 410, 422])
def test_what_is_permanent_is_not(http: HttpReceiver, status: int) -> None:
    http.answer = lambda request: (status, {"Location": http.url})
    with pytest.raises(SinkRejected, match=f"answered {status}"):
        sink(http).publish(entry(1))
    assert len(http.tries) == 1


def test_it_gives_up_after_max_retries(http: HttpReceiver) -> None:
    http.answer = lambda request: (503, {})
    with pytest.raises(SinkUnavailable, match="answered 503"):
        sink(http, max_retries=2).publish(entry(1))
    assert len(http.tries) == 3


def test_a_refused_connection_is_unavailable() -> None:
    webhook = WebhookSink(f"http://127.0.0.1:{free_port()}/", max_retries=0, allow_private=True)
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        webhook.publish(entry(1))


def test_a_receiver_that_does_not_answer_in_time_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(SinkUnavailable, match="in time"):
            WebhookSink(url, max_retries=0, timeout_s=0.05, allow_private=True).publish(entry(1))


class Pauses(threading.Event):
    """Records the delays instead of waiting."""

    def __init__(self, webhook: WebhookSink) -> None:
        super().__init__()
        self.waits: list[float] = []
        webhook._target._closed = self

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return False


def test_retry_after_is_honoured(http: HttpReceiver) -> None:
    http.answer = lambda request: (429, {"Retry-After": "7"}) if len(http.tries) == 1 else (200, {})
    webhook = sink(http)
    pauses = Pauses(webhook)
    webhook.publish(entry(1))
    assert pauses.waits == [7.0]


def test_a_long_retry_after_is_left_to_the_relay(http: HttpReceiver) -> None:
    http.answer = lambda request: (503, {"Retry-After": "3600"})
    with pytest.raises(SinkUnavailable) as raised:
        sink(http).publish(entry(1))
    assert raised.value.retry_after_s == 3600
    assert len(http.tries) == 1


def test_retry_after_may_be_a_date_or_nonsense() -> None:
    soon = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert 90 < (parse_retry_after(soon) or 0) <= 100
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert parse_retry_after("soon") is None
    assert parse_retry_after(None) is None


def test_pauses_double_and_vary(http: HttpReceiver) -> None:
    http.answer = lambda request: (500, {})
    webhook = sink(http, initial_backoff_s=1.0, max_retries=4)
    pauses = Pauses(webhook)
    with pytest.raises(SinkUnavailable):
        webhook.publish(entry(1))
    for wait, interval in zip(pauses.waits, (1, 2, 4, 8), strict=True):
        assert 0.75 * interval <= wait <= 1.25 * interval


def test_closing_ends_a_pause_at_once(http: HttpReceiver) -> None:
    http.answer = lambda request: (500, {})
    webhook = sink(http, initial_backoff_s=30)
    errors: list[Exception] = []

    def publish() -> None:
        try:
            webhook.publish(entry(1))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    wait_for(lambda: http.tries, "the first try")
    webhook.close()
    thread.join(120)
    assert isinstance(errors[0], SinkClosed)


def test_after_a_failure_the_rest_of_the_run_is_held_back(http: HttpReceiver) -> None:
    http.answer = lambda request: (400, {}) if request.event_id == "a/2" else (200, {})
    entries = [entry(number, run) for number in (1, 2, 3) for run in "ab"]
    many = sink(http, concurrency=2)
    outcomes = many.publish_batch(entries)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [type(None), type(None), SinkRejected, type(None), SinkHeldBack, type(None)]
    assert "a/3 waits for a/2" in str(outcomes[4])
    many.close()
    http.received.clear()
    outcomes = sink(http).publish_batch(entries)
    assert [each.event_id for each in http.received] == ["a/1", "b/1"]
    assert sum(isinstance(outcome, SinkHeldBack) for outcome in outcomes) == 3


# ── signatures ───────────────────────────────────────────────────────────────────────────────────


def test_bodies_are_signed_as_standard_webhooks_says(http: HttpReceiver) -> None:
    old, new = (base64.b64encode(bytes([number]) * 24).decode() for number in (1, 2))
    sink(http, secret=[f"whsec_{old}", new]).publish(entry(42))
    (got,) = http.received
    assert got.headers["webhook-id"] == "r-1/42"
    moment = got.headers["webhook-timestamp"]
    assert abs(int(moment) - time.time()) < 60
    expected = [
        "v1," + base64.b64encode(hmac.digest(key * 24, f"r-1/42.{moment}.".encode() + got.raw, hashlib.sha256)).decode()
        for key in (b"\x01", b"\x02")
    ]
    assert got.headers["webhook-signature"].split(" ") == expected


def test_a_known_signature_comes_out() -> None:
    signer = Signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', now=1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", ["whsec_not base64!", "whsec_" + base64.b64encode(b"short").decode()])
def test_a_secret_that_is_none_is_refused(secret: str) -> None:
    with pytest.raises(InvalidInput, match="secret"):
        WebhookSink("https://example.com/", secret=secret)


# ── addresses ────────────────────────────────────────────────────────────────────────────────────


def test_private_receivers_are_refused_before_anything_is_sent(http: HttpReceiver) -> None:
    with pytest.raises(RefusedAddress, match="allow_private"):
        WebhookSink(http.url).publish(entry(1))
    assert http.connections == 0


def test_a_name_that_changes_its_address_is_checked_where_it_connects(
    http: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer of the name server is public, the next is not: only the one that is used counts."""
    answers = iter(["93.184.215.14", "127.0.0.1", "127.0.0.1"])
    connected: list[Any] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: connected.append(address))
    webhook = WebhookSink(f"http://partner.example.com:{http.port}/", max_retries=0, timeout_s=0.05)
    with pytest.raises(SinkUnavailable):
        webhook.publish(entry(1))
    with pytest.raises(RefusedAddress, match=r"partner\.example\.com is 127\.0\.0\.1"):
        webhook.publish(entry(1))
    assert connected == [("93.184.215.14", http.port)]


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://example.com/"},
        {"url": "example.com"},
        {"url": "https://user:secret@example.com/"},
        {"headers": {"X-Evil": "a\r\nb: c"}},
        {"headers": {"X-Price": "5 €"}},
        {"max_retries": -1},
        {"initial_backoff_s": 0},
        {"timeout_s": 0},
        {"concurrency": 0},
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        WebhookSink(**({"url": "https://example.com/"} | options))


# ── AIPlex ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def aiplex(http: HttpReceiver) -> Iterator[AIPlexSink]:
    made = AIPlexSink(
        url=http.url,
        token="t",
        tenant_id="acme",
        agent_id="a",
        batch_size=3,
        flush_interval_s=0.01,
        max_retries=0,
        allow_private=True,
    )
    yield made
    made.discard()
    made.close()


def test_entries_leave_in_batches_with_the_identity(http: HttpReceiver, aiplex: AIPlexSink) -> None:
    for number in (1, 2, 3):
        aiplex.publish(entry(number))
    (got,) = http.received
    assert got.headers["Authorization"] == "Bearer t"
    assert got.body["tenant_id"] == "acme"
    assert [each["event_id"] for each in got.body["events"]] == ["r-1/1", "r-1/2", "r-1/3"]


def test_a_batch_that_is_not_full_leaves_after_the_interval(http: HttpReceiver, aiplex: AIPlexSink) -> None:
    aiplex.publish(entry(1))
    wait_for(lambda: http.received, "the batch")


def test_a_failed_flush_is_raised_and_keeps_the_batch(http: HttpReceiver, aiplex: AIPlexSink) -> None:
    http.answer = lambda request: (500, {})
    aiplex.publish(entry(1))
    wait_for(lambda: aiplex._error, "the failure")
    with pytest.raises(SinkUnavailable):
        aiplex.publish(entry(2))
    http.answer = lambda request: (200, {})
    aiplex.flush()
    assert [each["seq"] for each in http.received[0].body["events"]] == [1]
