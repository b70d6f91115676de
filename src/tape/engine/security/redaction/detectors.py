"""Detectors: secrets inside a text, found by their format or by the words before them. All patterns are RE2."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tape.engine.security.redaction.findings import Hide
from tape.engine.security.redaction.formats import FORMATS
from tape.engine.security.redaction.keys import Secrecy, secrecy
from tape.engine.security.redaction.media import DATA_URL, describe_data_url
from tape.engine.security.redaction.patterns import compiled, escape

# Fewer different characters than this are a placeholder such as `ghp_xxxxxxxx`.
MIN_VARIETY = 7
# A shorter word in mixed case is a name such as `SecretStr`.
MIN_MIXED_CHARS = 12

# `${TOKEN}`, `$TOKEN`, `%TOKEN%`, `<token>`, `{token}`, `{{ token }}`, `***`, `***:1f3870be274f` and `[REDACTED]`.
_PLACEHOLDER = (
    r"^(?:\$|\$\{[^{}]*\}|\$[A-Z_][A-Z0-9_]*|%[A-Za-z_]+%|<[^<>]*>|\{[a-z_]+\}|\{\{[^{}]*\}\}"
    r"|\*+(?::[0-9a-f]{12})?|\[[A-Za-z_ ]+\])$"
)
_PLACEHOLDER_BEGINS = frozenset(b"$%<{*[")
_PLACEHOLDER_WORDS = frozenset(
    {
        *(b"", b"true", b"false", b"null", b"none", b"nil", b"undefined", b"string", b"str", b"required", b"optional"),
        *(b"redacted", b"hidden", b"bearer", b"basic"),
    }
)
_TYPE_WORDS = frozenset({b"string", b"str", b"text", b"required", b"optional", b"number", b"password", b"token"})


@dataclass(frozen=True, slots=True)
class Detector:
    """One rule. `is_secret` rejects matches that only look like a secret."""

    rule: str
    hints: tuple[bytes, ...]
    pattern: str
    is_secret: Callable[[Any], bool]
    replace: Callable[[Any, Hide], bytes] | None = None

    def can_match(self, text: bytes) -> bool:
        """Return whether the text has one of the hints, or there are none."""
        for hint in self.hints:  # a loop: any() with a generator takes twice as long
            if hint in text:
                return True
        return not self.hints

    def find(self, text: bytes, hide: Hide) -> Iterator[tuple[int, int, bytes] | None]:
        """Yield the span and the replacement of every secret, and None for every match that is none."""
        for match in compiled(self.pattern).finditer(text):
            if not self.is_secret(match):
                yield None
            elif self.replace is not None:
                yield (*match.span(), self.replace(match, hide))
            else:
                yield (*_secret_span(match), hide(_secret(match)))


def is_placeholder(value: bytes) -> bool:
    """Return whether a value stands for a secret without being one: `${TOKEN}`, `{{ secret }}`, `xxx`, `none`."""
    value = value.strip()
    if not value:
        return True
    if value[0] in _PLACEHOLDER_BEGINS:
        return compiled(_PLACEHOLDER).search(value) is not None
    if value[0] in b"xX.":
        return 2 < len(value) <= 40 and len(set(value)) == 1
    return len(value) < 10 and value.lower() in _PLACEHOLDER_WORDS


def _secret_span(match: Any) -> tuple[int, int]:
    for group in range(1, match.re.groups + 1):
        start, end = match.span(group)
        if start >= 0:
            return start, end
    start, end = match.span()
    return start, end


def _secret(match: Any) -> bytes:
    start, end = _secret_span(match)
    return bytes(match.string[start:end])


def _is_varied(match: Any) -> bool:
    secret = _secret(match)
    return len(set(secret)) >= MIN_VARIETY and (len(secret) >= 60 or any(48 <= char <= 57 for char in secret))


def _is_anything(match: Any) -> bool:
    return not is_placeholder(_secret(match))


def _is_jwt(match: Any) -> bool:
    head = match[0].split(b".", 1)[0]
    try:
        header = msgspec.json.decode(base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4)))
    except (binascii.Error, ValueError):
        return False
    return isinstance(header, dict) and "alg" in header


def _is_basic(match: Any) -> bool:
    coded = match[1].rstrip(b"=")
    try:
        plain = base64.b64decode(coded + b"=" * (-len(coded) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return False
    return ":" in plain and plain.isprintable()


def _looks_chosen(value: bytes) -> bool:
    """Return whether a word is unlike prose: it has digits, capitals inside, or symbols."""
    text = value.decode(errors="replace").rstrip(".,;:!?")
    if len(text) < 4 or text.isdigit():
        return False
    is_word = any(char.isalpha() for char in text)
    has_digits = any(char.isdigit() for char in text)
    has_capitals = len(text) >= MIN_MIXED_CHARS and any(map(str.isupper, text[1:])) and any(map(str.islower, text))
    has_symbols = any(char in "!@#$%^&*+=/~" for char in text)
    return is_word and (has_digits or has_capitals or has_symbols)


def _is_bearer(match: Any) -> bool:
    token = match[1]
    return len(token) >= 8 and not is_placeholder(token) and (_looks_chosen(token) or len(token) >= 24)


def _is_said(match: Any) -> bool:
    return len(match[1]) >= 6 and _looks_chosen(match[1]) and not is_placeholder(match[1])


def _is_authorization(match: Any) -> bool:
    scheme, value = match.groups()
    return not is_placeholder(value) and (scheme is not None or _looks_chosen(value))


def _is_named(match: Any) -> bool:
    return secrecy(match[_NAMED].decode(errors="replace")) is not Secrecy.NONE and not is_placeholder(_value(match))


def _value(match: Any) -> bytes:
    return next((bytes(match[group]) for group in _VALUES if match[group] is not None), b"")


def _is_assigned(match: Any) -> bool:
    name, value = match[_NAMED].decode(errors="replace"), _value(match)
    kind = secrecy(name)
    if kind is Secrecy.NONE or is_placeholder(value):
        return False
    if value.isdigit():
        return kind is Secrecy.NUMBERS and len(value) >= 3
    if name.lower().endswith("pin"):
        return False
    if match[_BARE] is None:
        return value not in _TYPE_WORDS and (b" " not in value or _looks_chosen(value))
    if match[_SIGN] == b"=":
        # `api_key=api_key` and `token=self.token` are code.
        word = value.rsplit(b".", 1)[-1].decode(errors="replace")
        is_code = secrecy(word) is not Secrecy.NONE and word.replace("_", "").isalpha()
        return not is_code
    return _looks_chosen(value)


def _replace_bearer(match: Any, hide: Hide) -> bytes:
    return b"Bearer " + hide(match[1])


def _replace_assigned(match: Any, hide: Hide) -> bytes:
    start, _ = match.span()
    for group in _VALUES:
        low, high = match.span(group)
        if low >= 0:
            secret = hide(bytes(match.string[low:high]))
            return bytes(match.string[start:low]) + secret + bytes(match.string[high : match.end()])
    return hide(bytes(match[0]))


# Groups of patterns with a name and a value: name, sign, and the value in double quotes, in single quotes or bare.
_NAMED, _SIGN, _DOUBLE, _SINGLE, _BARE = 1, 2, 3, 4, 5
_VALUES = (_DOUBLE, _SINGLE, _BARE)
_NAME = r"([A-Za-z0-9_.\-]*(?:pass|pwd|secret|token|key|credential|jwt|bearer|otp|cvv|pin)[A-Za-z0-9_\-]*)"
_VALUE = (
    r"(?:\\*\"([^\"\n\\]{1,400})\\*\"|\\*'([^'\n\\]{1,400})\\*'"
    r"|([^\s\"'&;,<>(){}\[\]|\\=`][^\s\"'&;,<>(){}\[\]|\\`]*))"
)
# Words before a secret: rule, hints in lower case, gate, pattern, check and replacement. The gate matches wherever the
# pattern does, and is cheaper.
_CONTEXTS: tuple[
    tuple[str, tuple[str, ...], str, str, Callable[[Any], bool], Callable[[Any, Hide], bytes] | None], ...
] = (
    ("data_url", ("data:",), r"(?i)data:", DATA_URL, lambda match: True, lambda match, _: describe_data_url(match)),
    ("jwt", ("eyj",), r"eyJ", r"\beyJ[A-Za-z0-9_\-]{10,}(?:\.[A-Za-z0-9_\-]*){2,4}", _is_jwt, None),
    (
        "private_key",
        ("private key",),
        r"PRIVATE KEY|PuTTY-User-Key",
        r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(.*?)(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY|\z)",
        lambda match: bool(match[1].strip()),
        None,
    ),
    ("basic", ("basic",), r"(?i)basic ", r"(?i)\bbasic\s+([A-Za-z0-9+/]{6,}={0,2})", _is_basic, None),
    ("bearer", ("bearer",), r"(?i)bearer\s", r"(?i)\bBearer\s+([A-Za-z0-9._\-+/=~]+)", _is_bearer, _replace_bearer),
    (
        "authorization",
        ("authorization",),
        r"(?i)authorization\\*[\"']?\s*[:=]",
        r"(?i)authorization\\*[\"']?\s{0,3}[:=]\s{0,3}\\*[\"']?"
        r"((?:basic|token|digest|apikey|negotiate|key|ntlm)\s+)?([^\s\"',;\\]+)",
        _is_authorization,
        lambda match, hide: bytes(match[0][: len(match[0]) - len(match[2])]) + hide(match[2]),
    ),
    (
        "cookie",
        ("cookie:",),
        r"(?i)cookie: ",
        r"(?i)\b(?:set-)?cookie:\s{0,3}([^\s\"'=;,]{1,100}=[^\r\n\"'\\]+)",
        _is_anything,
        None,
    ),
    (
        "url_password",
        ("://",),
        r"://[^\s/?#\"'<>@]*@",
        r"[A-Za-z][A-Za-z0-9+.\-]{1,30}://[^\s/?#:@\"'<>]*:([^\s/?#\"'<>@]+)@",
        _is_anything,
        None,
    ),
    (
        "url_signature",
        ("sig",),
        r"(?i)sig(?:nature)?=",
        r"(?i)[?&;](?:sig|signature|x-amz-signature|x-goog-signature)=([A-Za-z0-9%+/_\-=]{16,})",
        _is_varied,
        None,
    ),
    (
        "assignment",
        ("=", ":"),
        r"(?i)(?:pass|pwd|secret|token|key|credential|jwt|bearer|otp|cvv|pin)[A-Za-z0-9_\-]*(?:\\*[\"'])?\s{0,3}[=:]",
        "(?i)" + _NAME + r"(?:\\*[\"'])?(\s{0,3}(?:=>|:=|=|:)\s{0,3})" + _VALUE,
        _is_assigned,
        _replace_assigned,
    ),
    (
        "flag",
        ("--",),
        r"--[A-Za-z0-9\-]*(?:pass|pwd|secret|token|key)",
        r"--([A-Za-z0-9\-]*(?:pass|pwd|secret|token|key)[A-Za-z0-9\-]*)(\s)\s*" + _VALUE,
        lambda match: _is_named(match) and not _value(match).startswith(b"-"),
        _replace_assigned,
    ),
    ("flag", ("-u ",), r"-u ", r"\s-u\s+[A-Za-z0-9_.@\-]+:([^\s\"'\\]+)", _is_anything, None),
    (
        "said",
        (" is", " was", "login"),
        r"(?i)(?:password|passwort|passphrase|token|secret|api key|pin) (?:is|was)|login\s",
        r"(?i)(?:\b(?:password|passwort|passphrase|token|secret|api key) (?:is|was):?|\blogin\s+\S+\s+password)"
        r"\s+[\"'`]?([^\s\"'`,;]+)",
        _is_said,
        None,
    ),
    (
        "element",
        ("</",),
        r"(?i)(?:pass|pwd|secret|token|key)[A-Za-z0-9_\-]*>",
        r"(?i)<([A-Za-z0-9_:.\-]*(?:pass|pwd|secret|token|key)[A-Za-z0-9_\-]*)(>)(\x00)?(\x00)?([^<]+)</",
        _is_named,
        _replace_assigned,
    ),
)
# Searched in the lower-case text for hints.
CONTEXTS = tuple(
    Detector(rule, tuple(hint.encode() for hint in hints), pattern, check, replace)
    for rule, hints, _, pattern, check, replace in _CONTEXTS
)
VENDORS = tuple(
    Detector(rule, tuple(hint.encode() for hint in hints), pattern, _is_varied) for rule, hints, pattern in FORMATS
)
# What a text must have for a format, and for any detector, to find something in it.
VENDOR_GATE = "|".join(
    [
        *(escape(hint) for _, hints, _ in FORMATS for hint in hints),
        *(f"(?:{pattern})" for _, hints, pattern in FORMATS if not hints),
    ]
)
GATE = "|".join([*(f"(?:{gate})" for _, _, gate, *_ in _CONTEXTS), VENDOR_GATE])
