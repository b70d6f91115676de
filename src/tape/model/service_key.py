"""Service keys as texts: `tape_<id>_<secret>`.

The id is public and names the key. The secret has 43 random characters (256 bits) and 6 of a checksum, so that secret
scanners recognize a key, and a damaged one is rejected without a look at the database.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib
from typing import NamedTuple

PREFIX = "tape_"
ID_CHARS = 12
SECRET_CHARS = 43
CHECKSUM_CHARS = 6
# Every key matches this; it is also RE2 syntax.
PATTERN = rf"{PREFIX}[0-9A-Za-z]{{{ID_CHARS}}}_[0-9A-Za-z]{{{SECRET_CHARS + CHECKSUM_CHARS}}}"

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_KEY = re.compile(PATTERN, re.ASCII)


class NewKey(NamedTuple):
    """A key that was just made. `text` is the secret; `digest` is what is stored."""

    key_id: str
    text: str
    digest: str


def make_key() -> NewKey:
    """A new random key."""
    key_id = _random(ID_CHARS)
    body = f"{PREFIX}{key_id}_{_random(SECRET_CHARS)}"
    text = body + _checksum(body)
    return NewKey(key_id, text, digest_of(text))


def has_key_prefix(token: str) -> bool:
    """Whether a token is meant to be a service key, whether or not it is a valid one."""
    return token.startswith(PREFIX)


def key_id_of(text: str) -> str:
    """The id in a key; empty if the text is not a whole key."""
    if not _KEY.fullmatch(text) or _checksum(text[:-CHECKSUM_CHARS]) != text[-CHECKSUM_CHARS:]:
        return ""
    return text[len(PREFIX) : len(PREFIX) + ID_CHARS]


def digest_of(text: str) -> str:
    """SHA-256 of a key, in hex. A key is random, so a slow hash would protect it no better."""
    return hashlib.sha256(text.encode()).hexdigest()


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_CHARS):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
