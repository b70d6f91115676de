"""Verification: accepted deliveries, and the reason of each rejection."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.engine.security import jwks
from tape.errors import InvalidConfig
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.issuer_keys import IssuerKeys
from tape.subscriptions.ingress.verification.verify import VerifiedDelivery, verify_delivery
from tests.subscriptions import issuer as issuing
from tests.subscriptions.issuer import ACCOUNT, AUDIENCE, CURVE, ROGUE, Issuer, token, unsigned
from tests.subscriptions.specs import subscription

pytestmark = pytest.mark.usefixtures("loopback_allowed")

BODY = b'{"amount": 5}'
NOW = 1_700_000_000


def push(**verify: Any) -> Subscription:
    ingress = {"gateway_path": "/ingress/x", "verify": verify}
    return subscription("subscriptions/x", source="webhook", mode="push", ingress=ingress)


def delivery(body: bytes = BODY, at: float = NOW, **headers: str) -> PushDelivery:
    return PushDelivery([(k.replace("_", "-").encode(), v.encode("utf-8")) for k, v in headers.items()], body, at)


async def outcome(listening: Subscription, given: PushDelivery, *secrets: str) -> str:
    """`proven`, or the reason and status of a refusal."""
    found = await verify_delivery(listening, secrets, IssuerKeys(), given)
    return "proven" if isinstance(found, VerifiedDelivery) else f"{found.status} {found.reason}"


def signed(secret: str, body: bytes = BODY) -> bytes:
    return hmac.new(secret.encode(), body, hashlib.sha256).digest()


# ── hmac_sha256, plain ───────────────────────────────────────────────────────────────────────────

PLAIN = push(type="hmac_sha256", header="X-Hub-Signature-256", secret="alias")


async def test_the_example_that_github_documents_is_proven() -> None:
    text = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    given = delivery(b"Hello, World!", x_hub_signature_256=text)
    assert await outcome(PLAIN, given, "It's a Secret to Everybody") == "proven"


@pytest.mark.parametrize(
    "written",
    [
        lambda d: d.hex(),
        lambda d: d.hex().upper(),
        lambda d: f"sha256={d.hex()}",
        lambda d: f"SHA256={d.hex()}",
        lambda d: f"  {d.hex()} ",
        lambda d: base64.b64encode(d).decode(),
        lambda d: f"sha256={base64.b64encode(d).decode()}",
        lambda d: base64.urlsafe_b64encode(d).decode().rstrip("="),
    ],
)
async def test_a_signature_may_be_hex_or_base64_with_or_without_a_prefix(written: Callable[[bytes], str]) -> None:
    assert await outcome(PLAIN, delivery(x_hub_signature_256=written(signed("s"))), "s") == "proven"


async def test_a_signature_that_is_missing_forged_or_for_another_body_is_refused() -> None:
    good = signed("s").hex()
    assert await outcome(PLAIN, delivery(), "s") == "401 missing_signature"
    assert await outcome(PLAIN, delivery(x_hub_signature_256=good), "other") == "401 bad_signature"
    assert await outcome(PLAIN, delivery(b"{}", x_hub_signature_256=good), "s") == "401 bad_signature"
    for bad in ("", "sha256=", good[:-1], good + "0", "zz" * 32, "x" * 9999, "sha256=sha256=" + good, "é", "="):
        assert await outcome(PLAIN, delivery(x_hub_signature_256=bad), "s") == "401 bad_signature", bad


async def test_without_a_secret_every_delivery_is_rejected() -> None:
    for secret in ("", "alias"):
        assert await outcome(PLAIN, delivery(x_hub_signature_256=signed(secret).hex())) == "403 misconfigured"


async def test_old_and_new_secret_are_both_good_while_a_sender_changes_over() -> None:
    for secret in ("new", "old"):
        assert await outcome(PLAIN, delivery(x_hub_signature_256=signed(secret).hex()), "new", "old") == "proven"
    assert await outcome(PLAIN, delivery(x_hub_signature_256=signed("x").hex()), "new", "old") == "401 bad_signature"


async def test_the_first_of_several_headers_counts() -> None:
    good, bad = (b"x-hub-signature-256", signed("s").hex().encode()), (b"X-Hub-Signature-256", b"00")
    assert await outcome(PLAIN, PushDelivery([good, bad], BODY), "s") == "proven"
    assert await outcome(PLAIN, PushDelivery([bad, good], BODY), "s") == "401 bad_signature"


# ── hmac_sha256 with a time ──────────────────────────────────────────────────────────────────────

STRIPE = push(type="hmac_sha256", header="Stripe-Signature", secret="alias")


def stripe(secret: str, at: int = NOW, body: bytes = BODY) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


async def test_stripe_signs_time_and_body_and_may_sign_twice() -> None:
    text = f"t={NOW},v1={stripe('old')},v1={stripe('new')},v0={'0' * 64}"
    assert await outcome(STRIPE, delivery(stripe_signature=text), "new") == "proven"
    assert await outcome(STRIPE, delivery(stripe_signature=text), "other") == "401 bad_signature"


async def test_a_replayed_stripe_signature_is_stale_after_the_tolerance_and_a_changed_time_is_forged() -> None:
    text = f"t={NOW},v1={stripe('s')}"
    for moment, expected in (
        (300, "proven"),
        (301, "401 stale_signature"),
        (-300, "proven"),
        (-301, "401 stale_signature"),
    ):
        assert await outcome(STRIPE, delivery(at=NOW + moment, stripe_signature=text), "s") == expected
    assert (
        await outcome(STRIPE, delivery(at=NOW + 900, stripe_signature=text.replace(f"{NOW}", f"{NOW + 900}")), "s")
        == "401 bad_signature"
    )
    tolerant = push(type="hmac_sha256", header="X-Sig", secret="alias", scheme="stripe", tolerance_secs=1000)
    assert await outcome(tolerant, delivery(at=NOW + 999, x_sig=text), "s") == "proven"


@pytest.mark.parametrize(
    "text", ["", "t=1", "v1=00", f"t={NOW},t={NOW},v1=00", "garbage", f"t={NOW},v1=", "t=,v1=", "=,="]
)
async def test_a_malformed_stripe_header_is_a_bad_signature(text: str) -> None:
    assert await outcome(STRIPE, delivery(stripe_signature=text), "s") == "401 bad_signature"


async def test_a_time_that_is_no_number_is_refused_even_if_it_was_signed() -> None:
    for moment in ("soon", "-1", "1e9", "١٢٣"):
        signature = hmac.new(b"s", moment.encode() + b"." + BODY, hashlib.sha256).hexdigest()
        given = delivery(stripe_signature=f"t={moment},v1={signature}")
        assert await outcome(STRIPE, given, "s") == "401 bad_signature", moment


STANDARD = push(type="hmac_sha256", header="webhook-signature", secret="alias")
WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def standard(signature: str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", **other: Any) -> PushDelivery:
    headers = {
        "webhook_id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook_timestamp": "1614265330",
        "webhook_signature": signature,
    }
    return delivery(b'{"test": 2432232314}', other.pop("at", 1614265330), **(headers | other))


async def test_the_example_of_standard_webhooks_is_proven() -> None:
    assert await outcome(STANDARD, standard(), WHSEC) == "proven"
    both = standard("v1,AAAA v2,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
    assert await outcome(STANDARD, both, WHSEC) == "proven"


async def test_standard_webhooks_bind_id_time_and_body() -> None:
    assert await outcome(STANDARD, standard(webhook_id="msg_other"), WHSEC) == "401 bad_signature"
    assert await outcome(STANDARD, standard(webhook_timestamp="1614265331"), WHSEC) == "401 bad_signature"
    assert await outcome(STANDARD, standard(webhook_id=""), WHSEC) == "401 missing_signature"
    assert await outcome(STANDARD, standard(webhook_timestamp=""), WHSEC) == "401 missing_signature"
    assert await outcome(STANDARD, standard(at=1614265330 + 301), WHSEC) == "401 stale_signature"
    assert (
        await outcome(STANDARD, standard("v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), WHSEC)
        == "401 bad_signature"
    )
    assert await outcome(STANDARD, standard(), "whsec_not base64") == "403 misconfigured"


async def test_headers_of_another_family_are_found_by_the_name_of_its_signature() -> None:
    family = push(type="hmac_sha256", header="svix-signature", secret="a", scheme="standard_webhooks")
    given = standard()
    renamed = PushDelivery(
        [(k.replace(b"webhook", b"svix"), v) for k, v in given.headers], given.body, given.received_at
    )
    assert await outcome(family, renamed, WHSEC) == "proven"


# ── bearer ───────────────────────────────────────────────────────────────────────────────────────

BEARER = push(type="bearer", secret="alias")


async def test_a_bearer_token_is_compared_with_the_secret() -> None:
    for text in ("Bearer s3", "bearer s3", "s3", "  Bearer  s3 "):
        assert await outcome(BEARER, delivery(authorization=text), "s3") == "proven"
    for text in ("Bearer s4", "Bearer", "", "Bearer s3 s3", "Basic s3", "BEARER s3", "é"):
        assert await outcome(BEARER, delivery(authorization=text), "s3") == "401 bad_token", text
    assert await outcome(BEARER, delivery(), "s3") == "401 missing_token"
    assert await outcome(BEARER, delivery(authorization="Bearer ")) == "403 misconfigured"
    assert await outcome(BEARER, delivery(authorization="Bearer old"), "new", "old") == "proven"
    assert await outcome(BEARER, delivery(authorization="Bearer ключ"), "ключ") == "proven"
    named = push(type="bearer", secret="alias", header="X-Token")
    assert await outcome(named, delivery(x_token="s3"), "s3") == "proven"
    assert await outcome(named, delivery(authorization="Bearer s3"), "s3") == "401 missing_token"


# ── pubsub_oidc ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def google() -> Iterator[Issuer]:
    with issuing.serving() as issuer:
        yield issuer


@pytest.fixture
async def issuers(google: Issuer) -> AsyncIterator[IssuerKeys]:
    google.published, google.is_up, google.asked = ["k1"], True, 0
    issuers = IssuerKeys()
    yield issuers
    await issuers.close()


def oidc(url: str, **other: Any) -> Subscription:
    return push(type="pubsub_oidc", audience=AUDIENCE, service_account=ACCOUNT, jwks_url=url, **other)


async def shown(issuers: IssuerKeys, listening: Subscription, text: str | None) -> str:
    headers = {} if text is None else {"authorization": f"Bearer {text}"}
    found = await verify_delivery(listening, (), issuers, delivery(at=time.time(), **headers))
    return "proven" if isinstance(found, VerifiedDelivery) else f"{found.status} {found.reason}"


BAD_TOKENS: list[tuple[Callable[[], str | None], str]] = [
    (lambda: None, "401 missing_token"),
    (lambda: "nonsense", "401 oidc_malformed"),
    (lambda: "", "401 oidc_malformed"),
    (lambda: token(None), "401 oidc_malformed"),
    (lambda: token("gone", ROGUE), "401 oidc_unknown_kid"),
    (lambda: token("k1", ROGUE), "401 oidc_bad_signature"),
    (lambda: token()[:-8] + "AAAAAAAA", "401 oidc_bad_signature"),
    (lambda: unsigned({"alg": "none", "kid": "k1"}), "401 oidc_invalid"),
    (lambda: jwt.encode(issuing.CLAIMS, "s" * 64, algorithm="HS256", headers={"kid": "k1"}), "401 oidc_invalid"),
    (lambda: jwt.encode(issuing.CLAIMS, CURVE, algorithm="ES256", headers={"kid": "curve"}), "403 oidc_bad_key"),
    (lambda: token(exp=None), "401 oidc_invalid"),
    (lambda: token(exp="soon"), "401 oidc_invalid"),
    (lambda: token(nbf="soon"), "401 oidc_invalid"),
    (lambda: token(exp=time.time() - 61), "401 oidc_expired"),
    (lambda: token(nbf=time.time() + 120), "401 oidc_not_yet_valid"),
    (lambda: token(iss="https://evil.example"), "403 oidc_wrong_issuer"),
    (lambda: token(iss=None), "403 oidc_wrong_issuer"),
    (lambda: token(aud="https://other"), "403 oidc_wrong_audience"),
    (lambda: token(aud=["a", "b"]), "403 oidc_wrong_audience"),
    (lambda: token(aud=None), "403 oidc_wrong_audience"),
    (lambda: token(email="other@acme"), "403 oidc_wrong_sa"),
    (lambda: token(email=None), "403 oidc_unverified_email"),
    (lambda: token(email_verified=False), "403 oidc_unverified_email"),
    (lambda: token(email_verified=None), "403 oidc_unverified_email"),
    (lambda: token(email_verified="true"), "403 oidc_unverified_email"),
]


async def test_a_token_of_google_for_us_is_proven_and_every_other_gets_its_word(
    issuers: IssuerKeys, google: Issuer
) -> None:
    listening = oidc(google.url)
    for good in (token(), token(aud=["x", AUDIENCE]), token(exp=time.time() - 30), token(iss="accounts.google.com")):
        assert await shown(issuers, listening, good) == "proven"
    for make, expected in BAD_TOKENS:
        assert await shown(issuers, listening, make()) == expected
    assert google.asked <= 2


async def test_the_issuer_can_be_another_than_google(issuers: IssuerKeys, google: Issuer) -> None:
    listening = oidc(google.url, issuer="https://idp.example")
    assert await shown(issuers, listening, token(iss="https://idp.example")) == "proven"
    assert await shown(issuers, listening, token()) == "403 oidc_wrong_issuer"


async def test_a_key_that_is_new_is_fetched_once_and_strangers_do_not_make_us_ask_again(
    issuers: IssuerKeys, google: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = oidc(google.url)
    assert await shown(issuers, listening, token()) == "proven"
    monkeypatch.setattr(jwks, "MIN_RELOAD_S", 0.0)
    google.published = ["k1", "k2"]
    assert await shown(issuers, listening, token("k2")) == "proven"
    assert google.asked == 2
    monkeypatch.setattr(jwks, "MIN_RELOAD_S", 3600.0)
    for n in range(20):
        assert await shown(issuers, listening, token(f"stranger{n}", ROGUE)) == "401 oidc_unknown_kid"
    assert google.asked == 2


async def test_keys_that_cannot_be_had_are_our_fault_not_the_senders(issuers: IssuerKeys, google: Issuer) -> None:
    google.is_up = False
    assert await shown(issuers, oidc(google.url), token()) == "502 jwks_error"
    with pytest.raises(InvalidConfig):
        await shown(issuers, oidc("http://keys.example.com/"), token())


# ── whatever is sent ─────────────────────────────────────────────────────────────────────────────

TEXT = st.text(st.characters(max_codepoint=255), max_size=80)
WRITTEN = st.one_of(
    TEXT,
    st.builds("sha256={}".format, TEXT),
    st.builds("t={},v1={}".format, TEXT, TEXT),
    st.builds("v1,{} v1,{}".format, TEXT, TEXT),
    st.builds("Bearer {}.{}.{}".format, TEXT, TEXT, TEXT),
)


@given(WRITTEN, TEXT, TEXT, st.binary(max_size=200))
def test_no_header_and_no_body_gets_in_or_breaks_anything_without_the_secret(
    written: str, message_id: str, moment: str, body: bytes
) -> None:
    names = ("x-hub-signature-256", "stripe-signature", "webhook-signature", "authorization")
    headers = [(name.encode(), written.encode("latin-1")) for name in names]
    headers += [(b"webhook-id", message_id.encode("latin-1")), (b"webhook-timestamp", moment.encode("latin-1"))]

    async def tried() -> list[VerifiedDelivery | DeliveryRejection]:
        given = PushDelivery(headers, body, NOW)
        return [
            await verify_delivery(each, (WHSEC,), IssuerKeys(), given) for each in (PLAIN, STRIPE, STANDARD, BEARER)
        ]

    for found in asyncio.run(tried()):
        assert isinstance(found, DeliveryRejection)
        assert found.status in (401, 403)


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────


async def test_only_verification_creates_a_verified_delivery() -> None:
    with pytest.raises(TypeError, match="Call verify_delivery"):
        VerifiedDelivery(object(), delivery(), PLAIN)
    pulled = subscription()
    assert await verify_delivery(pulled, ("s",), IssuerKeys(), delivery()) == DeliveryRejection(403, "unsupported")


def test_what_is_not_proven_shows_neither_headers_nor_body() -> None:
    assert repr(delivery(authorization="Bearer s3")) == "Delivery(1 headers, 13 bytes)"
