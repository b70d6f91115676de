"""The nesting of JSON texts, measured without recursion before they are decoded."""

from __future__ import annotations

import re

from tape.errors import InvalidJson

MAX_DEPTH = 100

# A string without a closing quote matches too, so that a scan is linear.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def check_depth(text: bytes) -> None:
    """Raise InvalidJson if lists and objects are nested more than 100 levels deep."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRING.sub(b"", text).translate(_BRACKETS, _OTHERS)
    for _ in range(MAX_DEPTH):
        inner = brackets
        brackets = inner.replace(b"[]", b"")
        if len(brackets) == len(inner):
            break  # all is flat, or the brackets do not match, which the decoder reports
    if b"[]" in brackets or b"[" * (MAX_DEPTH + 1) in brackets:
        raise InvalidJson(f"the JSON is nested more than {MAX_DEPTH} levels deep; flatten it.")
