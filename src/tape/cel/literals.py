"""What literals stand for: numbers and the escapes of strings and bytes."""

from __future__ import annotations

import re

from tape.cel.values import INT_MAX, UINT_MAX, Uint
from tape.errors import InvalidPredicate

_ESCAPE = re.compile(
    r"\\(?:[xX](?P<hex>[0-9a-fA-F]{2})|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    r"|(?P<octal>[0-3][0-7]{2})|(?P<plain>[abfnrtv\\?\"'`])|(?P<wrong>.))",
    re.DOTALL,
)
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def integer(token: str, text: str, offset: int, *, is_negative: bool = False) -> int:
    """An int or uint literal; a sign before it belongs to it, so that the smallest int can be written."""
    is_unsigned = token[-1] in "uU"
    digits = token[:-1] if is_unsigned else token
    if digits[:2] == "0x":
        value = int(digits, 16)
    else:
        # Python refuses to convert thousands of digits, and twenty say enough.
        significant = digits.lstrip("0") or "0"
        value = int(significant) if len(significant) <= 20 else UINT_MAX + 1
    if is_unsigned:
        if value > UINT_MAX:
            raise InvalidPredicate(f"{token} does not fit into a uint, which ends at {UINT_MAX}u", text, offset)
        return Uint(value)
    if value > INT_MAX + is_negative:
        raise InvalidPredicate(
            f"{'-' * is_negative}{token} does not fit into an int, which has 64 bits; "
            "write a double (with a point) or a uint (with a u)",
            text,
            offset,
        )
    return -value if is_negative else value


def string_or_bytes(token: str, text: str, offset: int) -> str | bytes:
    """A quoted literal with its prefix, quotes and escapes."""
    quote_at = min(at for at in (token.find('"'), token.find("'")) if at >= 0)
    prefix, quoted = token[:quote_at].lower(), token[quote_at:]
    width = 3 if len(quoted) >= 6 and quoted[:3] == quoted[0] * 3 else 1
    body = quoted[width:-width]
    if "b" not in prefix:
        return body if "r" in prefix or "\\" not in body else _unescape(body, text, offset + quote_at + width)
    if "r" in prefix or "\\" not in body:
        return body.encode()
    return _unescape_bytes(body, text, offset + quote_at + width)


def _unescape(body: str, text: str, offset: int) -> str:
    def replace(found: re.Match[str]) -> str:
        kind, digits = found.lastgroup, found[found.lastgroup or 0]
        if kind == "plain":
            return _PLAIN.get(digits, digits)
        if kind == "wrong":
            raise InvalidPredicate(
                f"\\{digits} is no escape; write \\\\ for a backslash, or a raw string r'…'",
                text,
                offset + found.start(),
            )
        code = int(digits, 8 if kind == "octal" else 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise InvalidPredicate(f"{found[0]} is no Unicode character", text, offset + found.start())
        return chr(code)

    return _ESCAPE.sub(replace, body)


def _unescape_bytes(body: str, text: str, offset: int) -> bytes:
    parts: list[bytes] = []
    position = 0
    for found in _ESCAPE.finditer(body):
        parts.append(body[position : found.start()].encode())
        position = found.end()
        kind, digits = found.lastgroup, found[found.lastgroup or 0]
        if kind == "plain":
            parts.append(_PLAIN.get(digits, digits).encode())
        elif kind in ("hex", "octal"):
            parts.append(bytes([int(digits, 16 if kind == "hex" else 8)]))
        else:
            raise InvalidPredicate(
                f"{found[0]} cannot stand in bytes; write \\xHH for one byte", text, offset + found.start()
            )
    parts.append(body[position:].encode())
    return b"".join(parts)
