"""PayPal and Amazon SNS: signatures by openssl, certificates from hosts of the provider and from no others."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tape.subscriptions.ingress.handshakes import Handshake, answer_handshake
from tape.subscriptions.ingress.push_message import message_from_push
from tape.subscriptions.ingress.verification import certificates
from tape.subscriptions.ingress.verification.certificates import PAYPAL, SNS, is_address_of
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.issuer_keys import IssuerKeys
from tape.subscriptions.ingress.verification.rsa_signatures import read_signing_key
from tape.subscriptions.ingress.verification.verify import VerifiedDelivery, verify_delivery
from tests.subscriptions.ingress.provider_host import ProviderHost, Signer, provider_host
from tests.subscriptions.ingress.test_presets import NOW, listening

TOPIC = "arn:aws:sns:eu-west-1:123456789012:orders"
SNS_URL = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc123.pem"
PAYPAL_URL = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594"
SNS_DOCUMENT = listening(f"{{type: signature, preset: aws_sns, topics: ['{TOPIC}']}}")
PAYPAL_DOCUMENT = listening("{type: signature, preset: paypal-cert, webhook_id: 9XL90610J3647323C}")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderHost]:
    with provider_host(tmp_path, monkeypatch) as host:
        yield host


@pytest.fixture(scope="module")
def sns(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("sns"), "sns.amazonaws.com")


@pytest.fixture(scope="module")
def paypal(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("paypal"), "messageverificationcerts.paypal.com")


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sns_message(signer: Signer, version: str = "2", **more: Any) -> bytes:
    """A message as Amazon documents it, signed by openssl."""
    fields: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": TOPIC,
        "Message": 'Grüße\n{"order": 7}',
        "Timestamp": moment(NOW),
        **more,
    }
    signed = ("Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    text = "".join(f"{name}\n{fields[name]}\n" for name in signed if name in fields)
    made = signer.sign(text.encode(), "sha256" if version == "2" else "sha1")
    proof = {"SignatureVersion": version, "SigningCertURL": SNS_URL, "Signature": base64.b64encode(made).decode()}
    return json.dumps(fields | proof).encode()


@asynccontextmanager
async def keys() -> AsyncIterator[IssuerKeys]:
    issuers = IssuerKeys()
    yield issuers
    await issuers.close()


async def verified(document: Any, given: PushDelivery, issuers: IssuerKeys | None = None) -> str:
    async with keys() as own:
        found = await verify_delivery(document, (), issuers or own, given)
    return "verified" if isinstance(found, VerifiedDelivery) else found.reason


@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_notification_of_a_listed_topic_is_verified(host: ProviderHost, sns: Signer, version: str) -> None:
    host.pages["/SimpleNotificationService-abc123.pem"] = sns.pem
    for more in ({}, {"Subject": "An order"}):
        given = PushDelivery([], sns_message(sns, version, **more), NOW)
        assert await verified(SNS_DOCUMENT, given) == "verified"
    async with keys() as issuers:
        found = await verify_delivery(SNS_DOCUMENT, (), issuers, given)
    assert isinstance(found, VerifiedDelivery)
    assert message_from_push(found).message_id == "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"


async def test_an_altered_stale_or_foreign_notification_is_rejected(
    host: ProviderHost, sns: Signer, paypal: Signer
) -> None:
    host.pages["/SimpleNotificationService-abc123.pem"] = sns.pem
    good = sns_message(sns)
    for body, at, reason in (
        (good.replace(b" 7}", b" 8}"), NOW, "bad_signature"),
        (good, NOW + 3_601, "stale_signature"),
        (good, NOW - 3_601, "stale_signature"),
        (sns_message(sns, TopicArn=TOPIC + "2"), NOW, "topic_not_allowed"),
        (sns_message(paypal), NOW, "bad_signature"),
        (good.replace(b'"SignatureVersion": "2"', b'"SignatureVersion": "1"'), NOW, "bad_signature"),
        (good.replace(b'"SignatureVersion": "2"', b'"SignatureVersion": "3"'), NOW, "malformed_signature"),
        (good.replace(b'"Notification"', b'"Other"'), NOW, "malformed_signature"),
        (sns_message(sns, Timestamp="soon"), NOW, "bad_timestamp"),
        (sns_message(sns, Timestamp="2023-11-14T22:13:20"), NOW, "bad_timestamp"),
        (b"[]", NOW, "malformed_signature"),
        (b"\xff", NOW, "malformed_signature"),
        (b'{"Type": ["Notification"]}', NOW, "malformed_signature"),
    ):
        assert await verified(SNS_DOCUMENT, PushDelivery([], body, at)) == reason, body[:100]


@pytest.mark.parametrize(
    "url",
    [
        "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc123.pem",
        "https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-abc123.pem",
        "https://evil.example/SimpleNotificationService-abc123.pem",
        "https://sns.eu-west-1.amazonaws.com:8443/SimpleNotificationService-abc123.pem",
        "https://user@sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc123.pem",
        "https://sns.eu-west-1.amazonaws.com/bucket/evil.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc123.pem?x=1",
        "https://s3.eu-west-1.amazonaws.com/SimpleNotificationService-abc123.pem",
        "https://sns.eu-west-1.amazonaws.com/../SimpleNotificationService-abc123.pem",
        "https://[::1/SimpleNotificationService-abc123.pem",
        "file:///etc/passwd",
        "",
    ],
)
async def test_a_certificate_comes_from_hosts_of_amazon_alone(host: ProviderHost, sns: Signer, url: str) -> None:
    body = sns_message(sns).replace(SNS_URL.encode(), url.encode())
    assert not is_address_of(SNS, url)
    assert await verified(SNS_DOCUMENT, PushDelivery([], body, NOW)) == "certificate_host_not_allowed"
    assert host.requests == []


def test_only_hosts_of_paypal_have_its_certificates() -> None:
    assert is_address_of(PAYPAL, PAYPAL_URL)
    assert is_address_of(PAYPAL, PAYPAL_URL.replace("api.", "api.sandbox."))
    for url in (
        "https://paypal.com.evil.example/v1/notifications/certs/C",
        "https://evilpaypal.com/v1/notifications/certs/C",
    ):
        assert not is_address_of(PAYPAL, url)


async def test_a_certificate_is_fetched_once_and_fetches_are_bounded(host: ProviderHost, sns: Signer) -> None:
    host.pages["/SimpleNotificationService-abc123.pem"] = sns.pem
    async with keys() as issuers:
        for _ in range(3):
            assert await verified(SNS_DOCUMENT, PushDelivery([], sns_message(sns), NOW), issuers) == "verified"
        assert host.requests == [("sns.eu-west-1.amazonaws.com", "/SimpleNotificationService-abc123.pem")]
        for n in range(12):
            body = sns_message(sns).replace(b"abc123", b"%d" % n)
            assert await verified(SNS_DOCUMENT, PushDelivery([], body, NOW), issuers) == "certificate_unavailable"
        assert len(host.requests) == certificates.MAX_FETCHES_PER_MINUTE
        assert await verified(SNS_DOCUMENT, PushDelivery([], sns_message(sns), NOW), issuers) == "verified"


def expired(name: str) -> bytes:
    key = rsa.generate_private_key(65_537, 2_048)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2021, 1, 1, tzinfo=UTC)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_certificate_must_be_valid_now_named_for_its_provider_and_strong(tmp_path: Path, sns: Signer) -> None:
    assert read_signing_key(sns.pem, SNS.name)[0].key_size == 2_048
    for provider, pem, why in (
        (SNS, expired("sns.amazonaws.com"), "it is valid from"),
        (PAYPAL, sns.pem, "it is for sns.amazonaws.com"),
        (SNS, Signer(tmp_path, "sns.amazonaws.com", bits=1_024).pem, "not RSA of 2048 bits"),
        (SNS, b"no certificate", "PEM"),
    ):
        with pytest.raises(ValueError, match=why):
            read_signing_key(pem, provider.name)


# ── confirmations ────────────────────────────────────────────────────────────────────────────────

CONFIRM = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=x&Token=t"


async def answered(body: bytes) -> Handshake | DeliveryRejection | None:
    async with keys() as issuers:
        found = await verify_delivery(SNS_DOCUMENT, (), issuers, PushDelivery([], body, NOW))
        if isinstance(found, DeliveryRejection):
            return found
        return await answer_handshake(found, issuers.certificates)


async def test_the_subscription_of_a_listed_topic_is_confirmed_and_no_other_is(host: ProviderHost, sns: Signer) -> None:
    host.pages |= {"/SimpleNotificationService-abc123.pem": sns.pem, "/": b"<ConfirmSubscriptionResponse/>"}
    asked = {"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": CONFIRM}
    assert await answered(sns_message(sns, **asked)) == Handshake("subscription_confirmation", {"status": "confirmed"})
    assert host.requests[-1] == ("sns.eu-west-1.amazonaws.com", "/?Action=ConfirmSubscription&TopicArn=x&Token=t")
    host.requests.clear()
    other = sns_message(sns, **asked, TopicArn="arn:aws:sns:eu-west-1:666:evil")
    assert await answered(other) == DeliveryRejection(403, "topic_not_allowed")
    for url in (
        "https://evil.example/?Action=ConfirmSubscription",
        "https://169.254.169.254/latest",
        "http://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription",
        "https://s3.amazonaws.com/?Action=ConfirmSubscription",
        "https://sns.eu-west-1.amazonaws.com/other",
    ):
        found = await answered(sns_message(sns, **asked | {"SubscribeURL": url}))
        assert found == DeliveryRejection(403, "confirmation_host_not_allowed"), url
    assert {path for _, path in host.requests} == {"/SimpleNotificationService-abc123.pem"}


async def test_a_confirmation_that_amazon_refuses_is_an_error_that_it_repeats(host: ProviderHost, sns: Signer) -> None:
    host.pages["/SimpleNotificationService-abc123.pem"] = sns.pem
    asked = {"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": CONFIRM}
    assert await answered(sns_message(sns, **asked)) == DeliveryRejection(502, "confirmation_failed")
    gone = sns_message(sns, **asked | {"Type": "UnsubscribeConfirmation"})
    assert await answered(gone) == Handshake("unsubscribe_confirmation", {"status": "noted"})
    assert await answered(sns_message(sns)) is None


# ── PayPal ───────────────────────────────────────────────────────────────────────────────────────


def paypal_delivery(signer: Signer, body: bytes, at: float = NOW, **changed: str) -> PushDelivery:
    text = f"d938e770-8046-11e6|{moment(NOW)}|9XL90610J3647323C|{zlib.crc32(body)}"
    headers = {
        "paypal-transmission-id": "d938e770-8046-11e6",
        "paypal-transmission-time": moment(NOW),
        "paypal-transmission-sig": base64.b64encode(signer.sign(text.encode())).decode(),
        "paypal-cert-url": PAYPAL_URL,
        "paypal-auth-algo": "SHA256withRSA",
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    return PushDelivery([(name.upper().encode(), value.encode()) for name, value in headers.items() if value], body, at)


async def test_a_delivery_of_paypal_is_verified_with_its_certificate(
    host: ProviderHost, paypal: Signer, sns: Signer
) -> None:
    host.pages["/v1/notifications/certs/CERT-360caa42-fca2a594"] = paypal.pem
    body = b'{"id": "WH-1", "event_type": "PAYMENT.SALE.COMPLETED"}'
    good = paypal_delivery(paypal, body)
    async with keys() as issuers:
        found = await verify_delivery(PAYPAL_DOCUMENT, (), issuers, good)
    assert isinstance(found, VerifiedDelivery)
    message = message_from_push(found)
    assert message.message_id == "WH-1"
    assert "paypal-transmission-sig" not in str(message.headers)
    for given, reason in (
        (PushDelivery(good.headers, body + b" ", NOW), "bad_signature"),
        (paypal_delivery(sns, body), "bad_signature"),
        (paypal_delivery(paypal, body, paypal_transmission_id="other"), "bad_signature"),
        (paypal_delivery(paypal, body, at=NOW + 301), "stale_signature"),
        (paypal_delivery(paypal, body, paypal_transmission_time="soon"), "bad_timestamp"),
        (paypal_delivery(paypal, body, paypal_auth_algo="SHA1withRSA"), "malformed_signature"),
        (paypal_delivery(paypal, body, paypal_transmission_sig="!"), "malformed_signature"),
        (paypal_delivery(paypal, body, paypal_transmission_sig="A" * 3_000), "malformed_signature"),
        (paypal_delivery(paypal, body, paypal_transmission_sig=""), "missing_signature"),
        (paypal_delivery(paypal, body, paypal_cert_url="https://evil.example/c"), "certificate_host_not_allowed"),
    ):
        assert await verified(PAYPAL_DOCUMENT, given) == reason


async def test_a_host_whose_own_certificate_is_not_trusted_gives_no_signing_certificate(
    host: ProviderHost, paypal: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.pages["/v1/notifications/certs/CERT-360caa42-fca2a594"] = paypal.pem
    monkeypatch.delenv("SSL_CERT_FILE")
    assert await verified(PAYPAL_DOCUMENT, paypal_delivery(paypal, b"{}")) == "certificate_unavailable"
    assert host.requests == []
