"""Made-up values in the formats of vendors, the same in every run."""

from __future__ import annotations

import base64
import json
import random
import string

_CHANCE = random.Random(15)
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
ALNUM = string.ascii_letters + string.digits
URLSAFE = ALNUM + "-_"


def pick(count: int, alphabet: str = ALNUM) -> str:
    """Random characters, with a digit and a letter among them."""
    while True:
        text = "".join(_CHANCE.choice(alphabet) for _ in range(count))
        if text[0].isalnum() and text[-1].isalnum() and any(c.isdigit() for c in text):
            return text


def hexa(count: int) -> str:
    """Random hexadecimal digits."""
    return pick(count, "0123456789abcdef")


def b64(count: int) -> str:
    """Random bytes in base64."""
    return base64.b64encode(_CHANCE.randbytes(count)).decode()


def segment(value: object) -> str:
    """One segment of a JWT."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def jwt(algorithm: str = "HS256") -> str:
    """A JWT with a random signature."""
    return ".".join((segment({"alg": algorithm, "typ": "JWT"}), segment({"sub": pick(8), "iat": 1}), pick(43, URLSAFE)))


def basic(user: str = "ada") -> str:
    """The credentials of HTTP Basic authentication."""
    return base64.b64encode(f"{user}:{pick(12)}".encode()).decode()


def pem(label: str, lines: int = 3) -> str:
    """A PEM block."""
    body = "\n".join(b64(48) for _ in range(lines))
    dashes = "-" * 5
    return f"{dashes}BEGIN {label}{dashes}\n{body}\n{dashes}END {label}{dashes}\n"
