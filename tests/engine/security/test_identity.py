"""Tokens: what is proven, what is refused and why, and keys that change."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tape.engine.security import jwks
from tape.engine.security.identity import Authenticator
from tape.engine.security.jwks import KeySet
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import IdentityRequired, InvalidConfig, InvalidInput, SessionOutOfReach, TokenRejected

RSA = rsa.generate_private_key(65537, 2048)
KEYS: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512"), (RSA, jwt.algorithms.RSAAlgorithm)),
    "ES256": (ec.generate_private_key(ec.SECP256R1()), jwt.algorithms.ECAlgorithm),
    "ES384": (ec.generate_private_key(ec.SECP384R1()), jwt.algorithms.ECAlgorithm),
    "ES512": (ec.generate_private_key(ec.SECP521R1()), jwt.algorithms.ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate(), jwt.algorithms.OKPAlgorithm),
}
CLAIMS = {"tenant": "shop", "user": "ada", "session": "s1"}


def document(*names: str) -> bytes:
    entries = []
    for name in names:
        private, algorithm = KEYS[name]
        entries.append({**algorithm.to_jwk(private.public_key(), as_dict=True), "kid": name})
    return json.dumps({"keys": entries}).encode()


def token(alg: str = "ES256", kid: str | None = "", /, **claims: Any) -> str:
    body = CLAIMS | {"exp": time.time() + 60} | claims
    headers = {} if kid is None else {"kid": kid or alg}
    return jwt.encode({k: v for k, v in body.items() if v is not None}, KEYS[alg][0], algorithm=alg, headers=headers)


@pytest.fixture
async def verify(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    file = tmp_path / "keys.json"
    file.write_bytes(document(*KEYS))
    keys = KeySet(str(file))
    await keys.start()
    yield Authenticator(keys, issuer="us", audience="tape").verify
    await keys.close()


OURS = {"iss": "us", "aud": "tape"}


@pytest.mark.parametrize("alg", KEYS)
async def test_every_algorithm_we_name_is_taken(verify: Any, alg: str) -> None:
    caller = await verify(token(alg, **OURS, scopes="admin other"))
    assert caller.triple == ("shop", "ada", "s1")
    assert caller.scopes == {"admin"}
    assert caller.expires_at > time.time()


async def test_the_audience_may_be_a_list_and_scopes_too(verify: Any) -> None:
    caller = await verify(token(iss="us", aud=["x", "tape"], scopes=["console:fleet", "nothing", 7]))
    assert caller.scopes == {"console:fleet"}
    assert caller.can_widen


def unsigned(header: dict[str, Any]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, CLAIMS)]
    return b".".join([*parts, b"eA"]).decode()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda: "nonsense", "token_malformed"),
        (lambda: "a.b.c", "token_malformed"),
        (lambda: "", "token_malformed"),
        (lambda: "\N{SNOWMAN}.x.y", "token_malformed"),
        (lambda: unsigned({"alg": "none", "kid": "ES256"}), "alg_not_allowed"),
        (lambda: jwt.encode(CLAIMS, "s" * 64, algorithm="HS256", headers={"kid": "ES256"}), "alg_not_allowed"),
        (lambda: unsigned({"alg": "ES256", "kid": 7}), "token_malformed"),
        (lambda: token("ES256", None, **OURS), "unknown_key"),
        (lambda: token("ES256", "gone", **OURS), "unknown_key"),
        (lambda: token("ES256", "ES384", **OURS), "unknown_key"),
        (lambda: token(**OURS)[:-6] + "AAAAAA", "signature_invalid"),
        (lambda: token(iss="them", aud="tape"), "issuer_mismatch"),
        (lambda: token(iss="us", aud="other"), "audience_mismatch"),
        (lambda: token(iss="us"), "audience_mismatch"),
        (lambda: token(**OURS, exp=time.time() - 1), "token_expired"),
        (lambda: token(**OURS, exp=None), "token_expired"),
        (lambda: token(**OURS, exp="soon"), "token_expired"),
        (lambda: token(**OURS, nbf=time.time() + 60), "token_not_yet_valid"),
    ],
)
async def test_a_bad_token_is_refused_with_one_word(verify: Any, bad: Callable[[], str], reason: str) -> None:
    with pytest.raises(TokenRejected) as caught:
        await verify(bad())
    assert caught.value.reason == reason


async def test_a_token_that_was_good_once_still_expires(verify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = token(**OURS)
    await verify(text)
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(TokenRejected, match="token_expired"):
        await verify(text)


async def test_identity_must_be_complete_and_a_given_session_overrides_the_claim(verify: Any) -> None:
    for name in ("tenant", "user", "session"):
        with pytest.raises(IdentityRequired, match=name):
            await verify(token(**OURS, **{name: ""}))
    assert (await verify(token(**OURS, session=None), "other")).session == "other"
    assert (await verify(token(**OURS), "other")).session == "other"
    reaching = token(**OURS, session_reach=["s1", "s2"])
    assert (await verify(reaching, "s2")).session == "s2"
    with pytest.raises(SessionOutOfReach):
        await verify(reaching, "s3")


class Issuer:
    """A JWKS address that can be changed and taken away."""

    def __init__(self) -> None:
        self.body = document("ES256")
        self.asked = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                self.send_response(200 if issuer.body else 503)
                self.end_headers()
                self.wfile.write(issuer.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.server.shutdown()
    issuer.server.server_close()


async def test_a_rolled_key_is_found_when_it_is_first_used(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "MIN_RELOAD_S", 0.0)
    keys = KeySet(issuer.url)
    await keys.start()
    authenticator = Authenticator(keys)
    old = token("ES256")
    await authenticator.verify(old)
    issuer.body = document("EdDSA")
    await authenticator.verify(token("EdDSA"))
    with pytest.raises(TokenRejected, match="unknown_key"):
        await authenticator.verify(old)  # the old key was withdrawn, and what it once proved with it
    await keys.close()


async def test_unknown_keys_do_not_make_us_ask_again_and_again(issuer: Issuer) -> None:
    keys = KeySet(issuer.url)
    await keys.start()
    for _ in range(20):
        with pytest.raises(TokenRejected, match="unknown_key"):
            await Authenticator(keys).verify(token("ES384"))
    assert issuer.asked == 1
    await keys.close()


async def test_keys_that_could_not_be_fetched_for_too_long_are_not_trusted(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeySet(issuer.url, max_stale_s=100)
    await keys.start()
    authenticator = Authenticator(keys)
    await authenticator.verify(token())
    issuer.body = b""
    later = time.monotonic() + 101
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(TokenRejected, match="jwks_stale"):
        await authenticator.verify(token())
    await keys.close()


async def test_keys_come_from_files_and_safe_addresses_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="https"):
        KeySet("http://example.com/jwks")
    for text in ("", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "kid": "a", "k": "AA"}]}', '{"keys": 7}'):
        file = tmp_path / "bad.json"
        file.write_text(text)
        with pytest.raises(InvalidConfig, match=r"bad\.json"):
            await KeySet(str(file)).start()
    with pytest.raises(InvalidConfig, match="No such file"):
        await KeySet(str(tmp_path / "none.json")).start()


async def test_development_tokens_are_signed_with_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "dev.key"
    key, is_new = load_key(path)
    assert is_new
    assert path.stat().st_mode & 0o777 == 0o600
    keys = KeySet(str(jwks_path(path)))
    await keys.start()
    again, is_new = load_key(path)
    assert not is_new
    text = again.mint(tenant="t", user="u", session="s", scopes=["service"])
    caller = await Authenticator(keys, "tape-dev", "tape").verify(text)
    assert (caller.triple, caller.scopes) == (("t", "u", "s"), {"service", "agent", "worker", "operator"})
    await keys.close()
    with pytest.raises(InvalidInput, match="'root'"):
        key.mint(tenant="t", user="u", scopes=["root"])
    with pytest.raises(InvalidInput, match="tenant"):
        key.mint(tenant="", user="u")
    path.chmod(0o644)
    with pytest.raises(InvalidConfig, match="chmod 600"):
        load_key(path)
