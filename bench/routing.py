"""What rules and proofs cost a message: its plan with and without rules, and each kind of verification.

Everything runs in one process, one message after the other, by turns; the best round of each counts.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa

from bench.options import Options
from bench.table import Table
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.ingress.verification.delivery import PushDelivery
from tape.subscriptions.ingress.verification.oidc import GOOGLE_ISSUERS, IssuerKeys
from tape.subscriptions.ingress.verification.verify import VerifiedDelivery, verify_delivery
from tape.subscriptions.message import receive
from tape.subscriptions.routing import resolve

TITLE = "Subscriptions: what rules and proofs add to a message"

ROUNDS = 7
SECRET = "a secret that both sides know"
AUDIENCE, ACCOUNT = "https://tape.example.com/ingress/x", "push@example.iam.gserviceaccount.com"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

PULL = """\
kind: Subscription
metadata: {path: bench/pull}
spec:
  source: nats
  mode: pull
  url: nats://127.0.0.1:4222
  stream: S
  consumer: c
  dispatch: {playbook: domain/default}
"""
RULES = """\
  headers:
    directives:
      - {header: x-route, controls: dispatch.playbook, allowed: [domain/a, domain/b, domain/c]}
      - {header: x-pool, controls: dispatch.execution_pool, allowed: [iot, priority, shared]}
      - {header: x-priority, controls: priority, map: {high: priority, normal: shared}}
      - {header: x-idempotency-key, controls: idempotency_key}
      - {header: content-type, controls: content_type}
    trace: {propagate: w3c, baggage_allowlist: [tenant, request_id]}
"""
PUSH = """\
kind: Subscription
metadata: {path: bench/push}
spec:
  source: webhook
  mode: push
  ingress: {gateway_path: /ingress/x, verify: VERIFY}
  dispatch: {playbook: domain/default}
"""
HEADERS = (
    ("X-Route", "domain/b"),
    ("X-Pool", "iot"),
    ("X-Priority", "high"),
    ("X-Idempotency-Key", "order-42"),
    ("Content-Type", "application/json"),
    ("Traceparent", TRACE),
    ("Baggage", "tenant=acme,secret=x"),
)

Work = Callable[[], Awaitable[object]]


def run(options: Options) -> list[Table]:
    """Measure; the answer as one table."""
    return [asyncio.run(_measure(options.scaled(3_000, 20)))]


async def _measure(messages: int) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        issuers = IssuerKeys()
        try:
            works = _plans() | _proofs(issuers, Path(folder) / "keys.json")
            best = await _by_turns(works, messages)
        finally:
            await issuers.close()
    rows = [(name, f"{best[name] * 1e6:.1f}", f"{1 / best[name]:,.0f}") for name in works]
    return Table(
        title=TITLE,
        columns=("", "µs a message", "messages/s on one core"),
        rows=rows,
        notes=(f"a JSON body of {len(_body(1_000))} bytes and {len(HEADERS)} headers; best of {ROUNDS} rounds",),
    )


def _plans() -> dict[str, Work]:
    return {
        "envelope and plan, no rules": _planning(parse_subscription(PULL)),
        "envelope and plan, 5 rules that match, and a trace": _planning(parse_subscription(PULL + RULES)),
    }


def _planning(subscription: Subscription) -> Work:
    body = _body(1_000)

    async def work() -> object:
        return resolve(subscription, receive("nats", "42", body, HEADERS))

    return work


def _proofs(issuers: IssuerKeys, keys: Path) -> dict[str, Work]:
    token = _identity(keys)
    hmac_verify = "{type: hmac_sha256, header: x-signature, secret: s}"
    oidc = f"{{type: pubsub_oidc, audience: '{AUDIENCE}', service_account: {ACCOUNT}, jwks_url: 'file:///'}}"
    small, large = _body(1_000), _body(64_000)
    found: dict[str, Work] = {}
    for name, body in (("1 kB", small), ("64 kB", large)):
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        found[f"proof of HMAC-SHA256, {name}"] = _proving(issuers, hmac_verify, body, ("x-signature", signature))
    bearer = ("authorization", f"Bearer {SECRET}")
    found["proof of a bearer token"] = _proving(issuers, "{type: bearer, secret: s}", small, bearer)
    identity = ("authorization", f"Bearer {token}")
    found["proof of a Pub/Sub identity (RS256)"] = _proving(issuers, oidc, small, identity, str(keys))
    return found


def _proving(issuers: IssuerKeys, verify: str, body: bytes, header: tuple[str, str], keys: str = "") -> Work:
    text = PUSH.replace("VERIFY", verify.replace("'file:///'", "http://keys.invalid/"))
    subscription = parse_subscription(text)
    if keys:  # the keys are in a file here, which a document cannot say
        ingress = subscription.spec.ingress
        assert ingress is not None
        verified = msgspec.structs.replace(ingress.verify, jwks_url=keys)
        spec = msgspec.structs.replace(subscription.spec, ingress=msgspec.structs.replace(ingress, verify=verified))
        subscription = msgspec.structs.replace(subscription, spec=spec)
    headers = [(name.lower().encode(), value.encode()) for name, value in (*HEADERS, header)]

    async def work() -> object:
        proven = await verify_delivery(subscription, (SECRET,), issuers, PushDelivery(headers, body))
        assert isinstance(proven, VerifiedDelivery), proven
        return proven

    return work


async def _by_turns(works: dict[str, Work], messages: int) -> dict[str, float]:
    best = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            begun = time.perf_counter()
            for _ in range(messages):
                await work()
            best[name] = min(best[name], (time.perf_counter() - begun) / messages)
    return best


def _identity(keys: Path) -> str:
    """A token as Google signs it, and the key it was signed with, in a file."""
    private = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = private.public_key().public_numbers()

    def number(value: int) -> str:
        return base64.urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8)).rstrip(b"=").decode()

    jwk = {"kty": "RSA", "kid": "k1", "alg": "RS256", "use": "sig", "n": number(public.n), "e": number(public.e)}
    keys.write_text(json.dumps({"keys": [jwk]}))
    claims = {
        "iss": GOOGLE_ISSUERS[0],
        "aud": AUDIENCE,
        "email": ACCOUNT,
        "email_verified": True,
        "exp": int(time.time()) + 3_600,
    }
    return jwt.encode(claims, private, algorithm="RS256", headers={"kid": "k1"})


def _body(size: int) -> bytes:
    items = [{"sku": f"item-{number}", "quantity": number % 7} for number in range(size // 34)]
    return json.dumps({"order": 42, "items": items}).encode()
