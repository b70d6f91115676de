"""Signatures as providers write them: published examples, signatures made by openssl, and what is rejected."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tape.errors import InvalidDocument
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.ingress.push_message import message_from_push
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery, RequestTarget
from tape.subscriptions.ingress.verification.issuer_keys import IssuerKeys
from tape.subscriptions.ingress.verification.verify import VerifiedDelivery, verify_delivery

NOW = 1_700_000_000
BODY = b'{"id": "evt_1", "event_id": "Ev1", "amount": 5}'
PUBLIC = "https://hooks.example.com"


def listening(verify: str, public_url: str = "", path: str = "/ingress/x") -> Subscription:
    """A subscription as its document says; what the validator refuses fails the test."""
    public = f"public_url: {public_url}\n    " if public_url else ""
    return parse_subscription(f"""\
kind: Subscription
metadata: {{path: subscriptions/x}}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: {path}
    {public}verify: {verify}
  dispatch: {{playbook: domain/x}}
""")


def preset(name: str, more: str = "") -> Subscription:
    public = PUBLIC if name in ("twilio", "square") else ""
    return listening(f"{{type: signature, preset: {name}, secret: alias{more}}}", public)


def delivery(body: bytes = BODY, at: float = NOW, query: str = "", **headers: str) -> PushDelivery:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return PushDelivery(raw, body, at, RequestTarget(path="/ingress/x", query=query))


async def outcome(subscription: Subscription, given: PushDelivery, *secrets: str) -> str:
    """`verified`, or the reason of the rejection."""
    found = await verify_delivery(subscription, secrets, IssuerKeys(), given)
    return "verified" if isinstance(found, VerifiedDelivery) else found.reason


def openssl(text: bytes, digest: str, key: str) -> bytes:
    """An HMAC by openssl: not the code that verifies."""
    made = ["openssl", "dgst", f"-{digest}", "-mac", "HMAC", "-macopt", f"hexkey:{key.encode().hex()}", "-binary"]
    return subprocess.run(made, input=text, capture_output=True, check=True).stdout


def in_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


# ── published examples ───────────────────────────────────────────────────────────────────────────


async def test_the_example_of_github() -> None:
    given = delivery(
        b"Hello, World!",
        x_hub_signature_256="sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
    )
    assert await outcome(preset("github"), given, "It's a Secret to Everybody") == "verified"


async def test_the_example_of_slack() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x_slack_request_timestamp": "1531420618",
        "x_slack_signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    assert await outcome(preset("slack"), delivery(body, 1531420618, **headers), secret) == "verified"
    assert await outcome(preset("slack"), delivery(body, 1531420618 + 301, **headers), secret) == "stale_signature"


async def test_the_examples_of_twilio_for_a_form_and_for_json() -> None:
    document = listening("{type: signature, preset: twilio, secret: alias}", "https://mycompany.com", "/myapp.php")
    form = b"To=%2B18005551212&CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309"
    headers = {
        "x_twilio_signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8=",
        "content_type": "application/x-www-form-urlencoded",
    }
    assert await outcome(document, delivery(form, query="foo=1&bar=2", **headers), "12345") == "verified"
    assert await outcome(document, delivery(form, query="foo=1&bar=3", **headers), "12345") == "bad_signature"
    digest = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
    body, query = b'{"property": "value", "boolean": true}', f"foo=1&bar=2&bodySHA256={digest}"
    json = {"x_twilio_signature": "a9nBmqA0ju/hNViExpshrM61xv4=", "content_type": "application/json"}
    assert await outcome(document, delivery(body, query=query, **json), "12345") == "verified"
    assert await outcome(document, delivery(body + b" ", query=query, **json), "12345") == "unsigned_body"


async def test_a_twilio_signature_of_the_address_alone_admits_no_other_body() -> None:
    """The signature of a JSON delivery covers its URL alone: with another type of body it proves nothing."""
    document = preset("twilio")
    signature = in_base64(openssl(f"{PUBLIC}/ingress/x".encode(), "sha1", "s"))
    for headers in ({"content_type": "application/json"}, {}, {"content_type": "text/plain"}):
        assert await outcome(document, delivery(b"{}", x_twilio_signature=signature, **headers), "s") == "unsigned_body"
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert await outcome(document, delivery(b"a=1", x_twilio_signature=signature, **form), "s") == "bad_signature"
    empty = delivery(b"", query="bodySHA256=" + "0" * 64, x_twilio_signature=signature, **form)
    assert await outcome(document, empty, "s") == "unsigned_body"


@pytest.mark.parametrize("public", ["https://hooks.example.com", "https://hooks.example.com:443"])
async def test_a_twilio_address_is_good_with_and_without_its_default_port(public: str) -> None:
    document = listening("{type: signature, preset: twilio, secret: alias}", public)
    for host in ("hooks.example.com", "hooks.example.com:443"):
        signature = in_base64(openssl(f"https://{host}/ingress/xa1".encode(), "sha1", "s"))
        given = delivery(b"a=1", x_twilio_signature=signature, content_type="application/x-www-form-urlencoded")
        assert await outcome(document, given, "s") == "verified"


@pytest.mark.parametrize(
    ("name", "family"), [("standard_webhooks", "webhook"), ("svix", "svix"), ("gitlab", "webhook")]
)
async def test_the_example_of_standard_webhooks(name: str, family: str) -> None:
    headers = {
        f"{family}_id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        f"{family}_timestamp": "1614265330",
        f"{family}_signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    given = delivery(b'{"test": 2432232314}', 1614265330, **headers)
    assert await outcome(preset(name), given, secret) == "verified"
    found = await verify_delivery(preset(name), [secret], IssuerKeys(), given)
    assert isinstance(found, VerifiedDelivery)
    assert message_from_push(found).message_id == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert await outcome(preset(name), delivery(b"{}", 1614265330, **headers), secret) == "bad_signature"


# ── every preset with signatures by another program ──────────────────────────────────────────────


class Signed(NamedTuple):
    """How a provider signs, written a second time: the signed text and the headers of a signature."""

    name: str
    text: bytes
    digest: str
    headers: Any
    is_timed: bool


def hexed(prefix: str, name: str, **more: str) -> Any:
    return lambda digest: {name: prefix + digest.hex(), **more}


CASES = [
    Signed("stripe", b"%d.%b" % (NOW, BODY), "sha256", hexed(f"t={NOW},v1=", "stripe_signature"), True),
    Signed("github", BODY, "sha256", hexed("sha256=", "x_hub_signature_256"), False),
    Signed("meta", BODY, "sha256", hexed("sha256=", "x_hub_signature_256"), False),
    Signed("shopify", BODY, "sha256", lambda d: {"x_shopify_hmac_sha256": in_base64(d)}, False),
    Signed(
        "slack",
        b"v0:%d:%b" % (NOW, BODY),
        "sha256",
        hexed("v0=", "x_slack_signature", x_slack_request_timestamp=f"{NOW}"),
        True,
    ),
    Signed(
        "zoom",
        b"v0:%d:%b" % (NOW, BODY),
        "sha256",
        hexed("v0=", "x_zm_signature", x_zm_request_timestamp=f"{NOW}"),
        True,
    ),
    Signed(
        "square",
        f"{PUBLIC}/ingress/x".encode() + BODY,
        "sha256",
        lambda d: {"x_square_hmacsha256_signature": in_base64(d)},
        False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_preset_accepts_what_openssl_signed_and_rejects_everything_else(case: Signed) -> None:
    document = preset(case.name)
    headers = case.headers(openssl(case.text, case.digest, "s3cret"))
    assert await outcome(document, delivery(**headers), "s3cret") == "verified"
    assert await outcome(document, delivery(**headers), "new", "s3cret") == "verified"
    assert await outcome(document, delivery(BODY + b" ", **headers), "s3cret") == "bad_signature"
    assert await outcome(document, delivery(**headers), "wrong") == "bad_signature"
    assert await outcome(document, delivery(**headers)) == "misconfigured"
    assert await outcome(document, delivery(), "s3cret") == "missing_signature"
    expected = "stale_signature" if case.is_timed else "verified"
    assert await outcome(document, delivery(at=NOW + 301, **headers), "s3cret") == expected
    assert await outcome(document, delivery(at=NOW - 301, **headers), "s3cret") == expected
    found = await verify_delivery(document, ["s3cret"], IssuerKeys(), delivery(**headers))
    assert isinstance(found, VerifiedDelivery)
    proof = next(name for name in headers if "timestamp" not in name).replace("_", "-")
    assert proof not in (message_from_push(found).headers or {})


async def test_stripe_may_send_several_signatures_of_which_one_is_good() -> None:
    good = openssl(b"%d.%b" % (NOW, BODY), "sha256", "s").hex()
    for text in (f"t={NOW},v1={'0' * 64},v1={good}", f"v1={good},t={NOW},v0=00", f" t={NOW} , v1={good} "):
        assert await outcome(preset("stripe"), delivery(stripe_signature=text), "s") == "verified"
    for text, reason in (
        (f"t={NOW},v0={good}", "malformed_signature"),
        (f"v1={good}", "bad_timestamp"),
        (f"t={NOW},t={NOW},v1={good}", "bad_timestamp"),
        (f"t={NOW}" + f",v1={good}" * 21, "too_many_signatures"),
        (f"t={NOW}," + "x" * 9_000, "signature_too_long"),
    ):
        assert await outcome(preset("stripe"), delivery(stripe_signature=text), "s") == reason, text[:80]


async def test_gitlab_compares_a_token_until_a_signing_key_is_given() -> None:
    document = preset("gitlab")
    assert await outcome(document, delivery(x_gitlab_token="t0ken"), "t0ken") == "verified"
    assert await outcome(document, delivery(x_gitlab_token="t0ken"), "new", "t0ken") == "verified"
    assert await outcome(document, delivery(x_gitlab_token="t0ke"), "t0ken") == "bad_token"
    assert await outcome(document, delivery(), "t0ken") == "missing_signature"
    key = "whsec_" + in_base64(b"0" * 24)
    assert await outcome(document, delivery(x_gitlab_token=key), key) == "missing_signature"
    found = await verify_delivery(document, ["t0ken"], IssuerKeys(), delivery(x_gitlab_token="t0ken"))
    assert isinstance(found, VerifiedDelivery)
    assert "t0ken" not in str(message_from_push(found).headers)


# ── Ed25519 ──────────────────────────────────────────────────────────────────────────────────────

# RFC 8032, section 7.1, test 3.
RFC_PUBLIC = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
RFC_SIGNATURE = (
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
)


async def test_the_example_of_rfc_8032() -> None:
    document = listening("{type: signature, algorithm: ed25519, header: X-Sig, secret: alias}")
    assert await outcome(document, delivery(bytes.fromhex("af82"), x_sig=RFC_SIGNATURE), RFC_PUBLIC) == "verified"
    assert await outcome(document, delivery(b"\xaf\x83", x_sig=RFC_SIGNATURE), RFC_PUBLIC) == "bad_signature"
    for key in ("", "zz" * 32, "00", RFC_PUBLIC[:-2], in_base64(b"0" * 31)):
        assert await outcome(document, delivery(x_sig=RFC_SIGNATURE), key) == "misconfigured", key


def ed25519_pair() -> tuple[Path, bytes]:
    folder = Path(tempfile.mkdtemp())
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / "key.pem"], check=True)
    private = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    assert isinstance(private, Ed25519PrivateKey)
    return folder / "key.pem", private.public_key().public_bytes_raw()


def openssl_ed25519(key: Path, text: bytes) -> bytes:
    (file := key.with_name("text")).write_bytes(text)
    made = ["openssl", "pkeyutl", "-sign", "-inkey", str(key), "-rawin", "-in", str(file)]
    return subprocess.run(made, capture_output=True, check=True).stdout


async def test_discord_signs_time_and_body_with_ed25519() -> None:
    key, public = ed25519_pair()
    headers = {
        "x_signature_ed25519": openssl_ed25519(key, b"%d%b" % (NOW, BODY)).hex(),
        "x_signature_timestamp": f"{NOW}",
    }
    document, good = preset("discord"), public.hex()
    assert await outcome(document, delivery(**headers), good) == "verified"
    assert await outcome(document, delivery(**headers), RFC_PUBLIC, good) == "verified"
    assert await outcome(document, delivery(**headers), RFC_PUBLIC) == "bad_signature"
    assert await outcome(document, delivery(BODY + b" ", **headers), good) == "bad_signature"
    assert await outcome(document, delivery(at=NOW + 301, **headers), good) == "stale_signature"
    assert (
        await outcome(document, delivery(**headers | {"x_signature_timestamp": f"{NOW + 1}"}), good) == "bad_signature"
    )


async def test_standard_webhooks_v1a_is_ed25519_with_a_public_key() -> None:
    key, public = ed25519_pair()
    made = in_base64(openssl_ed25519(key, b"m1.%d.%b" % (NOW, BODY)))
    headers = {"webhook_id": "m1", "webhook_timestamp": f"{NOW}", "webhook_signature": f"v1,{'A' * 44} v1a,{made}"}
    document, good = preset("standard_webhooks"), "whpk_" + in_base64(public)
    assert await outcome(document, delivery(**headers), good) == "verified"
    assert await outcome(document, delivery(**headers), "whsec_" + in_base64(b"0" * 24), good) == "verified"
    assert await outcome(document, delivery(**headers), "whsec_" + in_base64(b"0" * 24)) == "bad_signature"
    assert await outcome(document, delivery(b"{}", **headers), good) == "bad_signature"
    # A public key is known to all: as the key of an HMAC it must prove nothing.
    forged = in_base64(openssl(b"m1.%d.%b" % (NOW, BODY), "sha256", good))
    assert await outcome(document, delivery(**headers | {"webhook_signature": f"v1,{forged}"}), good) == "bad_signature"


# ── the general scheme ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("algorithm", "digest"), [("hmac_sha1", "sha1"), ("hmac_sha256", "sha256"), ("hmac_sha512", "sha512")]
)
@pytest.mark.parametrize("encoding", ["hex", "base64", "base64url"])
async def test_a_scheme_of_a_document_is_checked_as_it_is_written(algorithm: str, digest: str, encoding: str) -> None:
    document = listening(
        f"{{type: signature, algorithm: {algorithm}, encoding: {encoding}, header: X-Sig, secrets: [new, old],"
        " prefix: 'sig:', separator: ';', join: \"\\n\", signed: [method, path, 'text:|', id, timestamp,"
        " 'header:x-kind', body_sha256], timestamp_header: X-Time, id_header: X-Id, tolerance_secs: 60}"
    )
    body_digest = subprocess.run(["sha256sum"], input=BODY, capture_output=True, check=True).stdout.split()[0]
    text = b"\n".join((b"POST", b"/ingress/x", b"|", b"id-1", b"%d" % NOW, b"order", body_digest))
    made = openssl(text, digest, "s")
    written = {"hex": made.hex(), "base64": in_base64(made), "base64url": base64.urlsafe_b64encode(made).decode()}
    headers = {"x_id": "id-1", "x_time": f"{NOW}", "x_kind": "order", "x_sig": f"sig:{written[encoding]}"}
    assert await outcome(document, delivery(**headers), "s") == "verified"
    assert (
        await outcome(document, delivery(**headers | {"x_sig": f"old:1; sig:{written[encoding]}"}), "s") == "verified"
    )
    for changed, reason in (
        ({"x_sig": written[encoding]}, "malformed_signature"),
        ({"x_kind": "other"}, "bad_signature"),
        ({"x_id": "id-2"}, "bad_signature"),
        ({"x_time": f"{NOW - 1}"}, "bad_signature"),
        ({"x_time": "1" * 16}, "bad_signature"),
    ):
        assert await outcome(document, delivery(**headers | changed), "s") == reason, changed
    for lost, reason in (
        ("x_kind", "missing_signed_header"),
        ("x_time", "missing_timestamp"),
        ("x_id", "missing_message_id"),
    ):
        assert await outcome(document, delivery(**{k: v for k, v in headers.items() if k != lost}), "s") == reason
    assert await outcome(document, delivery(at=NOW + 61, **headers), "s") == "stale_signature"
    assert await outcome(document, delivery(BODY + b" ", **headers), "s") == "bad_signature"


@pytest.mark.parametrize("moment", ["soon", "-1", "1e9", "9" * 16, "", " "])
async def test_a_signed_time_that_is_no_number_is_rejected(moment: str) -> None:
    made = openssl(b"v0:%b:%b" % (moment.encode(), BODY), "sha256", "s").hex()
    given = delivery(x_slack_signature=f"v0={made}", x_slack_request_timestamp=moment)
    assert await outcome(preset("slack"), given, "s") in ("bad_timestamp", "missing_timestamp")


async def test_a_time_in_milliseconds_is_understood() -> None:
    made = openssl(b"v0:%d123:%b" % (NOW, BODY), "sha256", "s").hex()
    headers = {"x_zm_signature": f"v0={made}", "x_zm_request_timestamp": f"{NOW}123"}
    assert await outcome(preset("zoom"), delivery(**headers), "s") == "verified"
    assert await outcome(preset("zoom"), delivery(at=NOW + 302, **headers), "s") == "stale_signature"


async def test_hostile_requests_are_bounded() -> None:
    many = PushDelivery([(b"x-%d" % n, b"1") for n in range(201)], b"")
    found = await verify_delivery(preset("github"), ["s"], IssuerKeys(), many)
    assert found == DeliveryRejection(431, "too_many_headers")
    form = b"&".join(b"a%d=1" % n for n in range(1_001))
    headers = {"x_twilio_signature": "A" * 28, "content_type": "application/x-www-form-urlencoded"}
    assert await outcome(preset("twilio"), delivery(form, **headers), "s") == "too_many_form_fields"
    assert await outcome(preset("twilio"), delivery(b"", query=form.decode(), **headers), "s") == "too_many_form_fields"


async def test_basic_authentication_needs_the_user_and_the_password() -> None:
    document = listening("{type: basic, user: shop, secret: alias}")
    for login, expected in (
        (b"shop:s:1", "verified"),
        (b"shop:old", "verified"),
        (b"shop:wrong", "bad_token"),
        (b"other:s:1", "bad_token"),
        (b"", "bad_token"),
    ):
        assert await outcome(document, delivery(authorization=f"Basic {in_base64(login)}"), "s:1", "old") == expected
    assert await outcome(document, delivery(authorization=f"Bearer {in_base64(b'shop:s')}"), "s") == "bad_token"
    assert await outcome(document, delivery(authorization="Basic ä"), "s") == "bad_token"
    assert await outcome(document, delivery(), "s") == "missing_token"
    assert await outcome(document, delivery(authorization="Basic x")) == "misconfigured"


# ── documents ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("verify", "problem"),
    [
        ("{type: signature}", "'ingress.verify.secret' is required"),
        ("{type: signature, secret: a}", "'ingress.verify.header' is required for verify.type 'signature' without"),
        ("{type: signature, secret: a, secrets: [b], header: x}", "keep one of them"),
        ("{type: signature, secret: a, header: x, signed: [timestamp, body]}", "timestamp_header' is required because"),
        ("{type: signature, secret: a, header: x, timestamp_header: t}", "is not signed and proves nothing"),
        ("{type: signature, secret: a, header: x, signed: [method]}", "the body must be signed"),
        ("{type: signature, secret: a, header: x, signed: [weather]}", "must be one of timestamp, id, method"),
        (
            "{type: signature, secret: a, header: x, signed: [url, body]}",
            "public_url' is required because 'url' is signed",
        ),
        ("{type: signature, secret: a, header: x, tolerance_secs: 5}", "has no effect without timestamp_header"),
        ("{type: signature, secret: a, preset: github, prefix: x}", "is set by preset 'github'"),
        ("{type: signature, secret: a, preset: github, header: x}", "is set by preset 'github'"),
        ("{type: signature, secret: a, preset: github, tolerance_secs: 5}", "which signs no time"),
        ("{type: signature, secret: a, preset: twilio}", "public_url' is required because preset 'twilio'"),
        ("{type: signature, secret: a, preset: svix, header: x}", "must end with -signature"),
        ("{type: signature, preset: aws_sns}", "'ingress.verify.topics' is required for preset 'aws_sns'"),
        ("{type: signature, preset: aws_sns, topics: [arn], secret: a}", "which signs with a certificate"),
        ("{type: signature, preset: paypal-cert}", "'ingress.verify.webhook_id' is required"),
        ("{type: signature, preset: github, secret: a, topics: [arn]}", "is for preset 'aws_sns' alone"),
        ("{type: signature, preset: github, secret: a, verify_token: b}", "is for preset 'meta' alone"),
        ("{type: signature, preset: githb, secret: a}", "did you mean 'github'?"),
        ("{type: basic, secret: a}", "'ingress.verify.user' is required for verify.type 'basic'"),
        ("{type: basic, secret: a, user: 'a:b'}", "has a colon"),
        ("{type: mtls}", "'ingress.verify.certificates' is required for verify.type 'mtls'"),
        ("{type: mtls, certificates: []}", "'ingress.verify.certificates' is required for verify.type 'mtls'"),
        ("{type: mtls, certificates: ['*']}", "would match every name"),
        ("{type: hmac_sha256, header: x, secret: a, preset: github}", "has no effect with verify.type 'hmac_sha256'"),
    ],
)
def test_a_verify_block_that_proves_nothing_is_refused(verify: str, problem: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        listening(verify)
    assert any(problem in str(each) for each in caught.value.problems), caught.value.problems
