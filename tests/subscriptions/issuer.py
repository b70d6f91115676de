"""An issuer of tokens: a local JWKS endpoint whose keys can be rotated."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

KEYS = {name: rsa.generate_private_key(65537, 2048) for name in ("k1", "k2")}
ROGUE = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())

AUDIENCE = "https://gw.example.com/ingress/billing"
ACCOUNT = "push@acme.iam.gserviceaccount.com"
CLAIMS = {"iss": "https://accounts.google.com", "aud": AUDIENCE, "email": ACCOUNT, "email_verified": True}


class Issuer:
    """What it publishes, and how often it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked = 0
        self.is_up = True
        self.published = ["k1"]

    def document(self) -> bytes:
        entries: list[dict[str, Any]] = [
            {**jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True), "kid": name, "alg": "RS256"}
            for name in self.published
        ]
        entries.append({**jwt.algorithms.ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True), "kid": "curve"})
        return json.dumps({"keys": entries}).encode()


@contextmanager
def serving() -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked += 1
            body = issuer.document() if issuer.is_up else b""
            self.send_response(200 if issuer.is_up else 503)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    issuer = Issuer(f"http://127.0.0.1:{server.server_port}/certs")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def token(kid: str | None = "k1", key: Any = None, **claims: Any) -> str:
    """A token as Google's, changed as a test needs; a claim that is None is left out."""
    body = CLAIMS | {"exp": time.time() + 300} | claims
    headers = {"kid": kid} if kid is not None else {}
    signing = key or KEYS[kid or "k1"]
    return jwt.encode({k: v for k, v in body.items() if v is not None}, signing, algorithm="RS256", headers=headers)


def unsigned(header: dict[str, Any]) -> str:
    body = CLAIMS | {"exp": time.time() + 300}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, body)]
    return b".".join([*parts, b"eA"]).decode()
