"""Secrets are taken out of payloads before they are stored: no disk, stream, sink or job ever has them.

A payload is searched for words that could mean a secret first, which costs about two microseconds; only what has
one is parsed and looked through. What the rules do not touch comes out exactly as it went in. All patterns are RE2,
whose time is linear in the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from tape.errors import InvalidJson, RedactionFailed

HIDDEN = "***"
MAX_DEPTH = 64
MEDIA_FROM_CHARS = 256

# Names of secrets, as `_name` normalizes them; a name that ends with one is one too.
SECRETS = frozenset(
    {
        *("api_key", "apikey"),
        *("password", "passwd", "pass"),
        *("secret", "client_secret", "private_key", "signing_key"),
        *("token", "access_token", "refresh_token", "id_token"),
        *("cookie", "set_cookie"),
        *("authorization", "authorisation"),
        *("bearer", "bearer_token"),
    }
)
# How media begin when they are written in base64.
MEDIA = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGRiQ": "audio/wav",
    "UklGR": "image/webp",
    "AAABAA": "image/x-icon",
    "SUkqAA": "image/tiff",
    "TU0AKgA": "image/tiff",
    "//uQ": "audio/mpeg",
    "//tA": "audio/mpeg",
    "AAAAIGZ0eXA": "video/mp4",
    "AAAAGGZ0eXA": "video/mp4",
}

# Any of these may be a secret, or hide one: a backslash can spell every other character.
_SUSPICIOUS = re2.compile(
    r"(?i)api.?key|pass|secret|(private|signing).?key|token|cookie|authori[sz]ation|bearer|data:|\\|"
    + "|".join(f'"{re2.escape(head)}' for head in MEDIA)
)
_BEARER = re2.compile(r"(?i)\bBearer\s+[A-Za-z0-9._\-+/=~]+")
_DATA_URL = re2.compile(
    r"(?i)data:(?P<mime>[a-z0-9.+-]+/[a-z0-9.+-]+)?(?P<params>(?:;[a-z0-9._-]+=[^;,\s\"]*)*)(?P<base64>;base64)?,"
    r"(?P<data>[A-Za-z0-9+/=_\-.~%!$&'()*:@]*)"
)
_HUMP = re2.compile(r"([a-z0-9])([A-Z])")
_SEPARATOR = re2.compile(r"[\s.\-]+")


class Redactor:
    """Hides secrets, except in event types that are declared safe: `order.paid`, or `metric.*`."""

    def __init__(self, safe_types: Sequence[str] = ()) -> None:
        self._safe = frozenset(name for name in safe_types if not name.endswith("*"))
        self._safe_prefixes = tuple(name[:-1] for name in safe_types if name.endswith("*"))

    def is_safe(self, kind: str) -> bool:
        """Whether payloads of an event type are stored as they are."""
        return kind in self._safe or (bool(self._safe_prefixes) and kind.startswith(self._safe_prefixes))

    def redact(self, payload_json: str) -> str:
        """The payload without its secrets; the same text if there were none. Raises RedactionFailed."""
        if _SUSPICIOUS.search(payload_json) is None:
            return payload_json
        try:
            payload = msgspec.json.decode(payload_json)
            clean = redact_value(payload)
        except RecursionError as error:
            raise _too_deep() from error
        except msgspec.DecodeError as error:
            raise InvalidJson(f"payload_json is not JSON that can be searched for secrets: {error}.") from error
        return payload_json if clean is payload else msgspec.json.encode(clean).decode()


def redact_value(value: Any, depth: int = 0) -> Any:
    """A value without its secrets; the same object if there were none. The input is not changed."""
    if depth > MAX_DEPTH:
        raise _too_deep()
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, list):
        clean = [redact_value(item, depth + 1) for item in value]
        return clean if any(new is not old for new, old in zip(clean, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    hidden = _named_secret(value)
    fresh = {
        key: HIDDEN if key in hidden or is_secret(key) else redact_value(item, depth + 1) for key, item in value.items()
    }
    return fresh if any(fresh[key] is not item for key, item in value.items()) else value


def is_secret(key: str) -> bool:
    """Whether a key names a secret: `password`, `user_password`, `X-Api-Key`, `accessToken`."""
    name = _name(key)
    if name in SECRETS:
        return True
    return any(name.endswith(f"_{secret}") for secret in SECRETS)


def _name(key: str) -> str:
    spaced: str = _SEPARATOR.sub("_", _HUMP.sub(r"\1_\2", key.strip()))
    return spaced.lower()


def _named_secret(value: dict[str, Any]) -> set[str]:
    """The key of the value in `{"name": "token", "value": …}`."""
    names = {key.lower(): key for key in value}
    label = value.get(names.get("name", names.get("key", "")))
    if isinstance(label, str) and "value" in names and is_secret(label):
        return {names["value"]}
    return set()


def _redact_text(text: str) -> str:
    if len(text) >= MEDIA_FROM_CHARS:
        for head, mime in MEDIA.items():
            if text.startswith(head):
                return _media(mime, _decoded_size(text))
    clean = text
    if "data:" in clean.lower():
        clean = _DATA_URL.sub(_hide_data_url, clean)
    clean = _BEARER.sub(f"Bearer {HIDDEN}", clean)
    return text if clean == text else clean


def _hide_data_url(match: Any) -> str:
    data = match["data"]
    size = _decoded_size(data) if match["base64"] else len(data)
    return _media(match["mime"] or "application/octet-stream", size)


def _media(mime: str, size: int) -> str:
    return f"[redacted: {mime} of {size} bytes]"


def _decoded_size(base64_text: str) -> int:
    return len(base64_text.rstrip("=")) * 3 // 4


def _too_deep() -> RedactionFailed:
    return RedactionFailed(
        f"redaction failed: the payload is nested deeper than {MAX_DEPTH} levels, so it cannot be searched for secrets"
        " and was not stored. Flatten it, or declare its type safe (safe_types)."
    )
