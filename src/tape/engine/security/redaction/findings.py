"""Findings: spans of a text that are replaced, and by which rule."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import NamedTuple

HIDDEN = "***"
_MASK = HIDDEN.encode()
# What a secret is replaced by.
Hide = Callable[[bytes], bytes]


def mask(secret: bytes) -> bytes:
    """Return what replaces every secret."""
    return _MASK


def keyed_hash(key: bytes) -> Hide:
    """Return what replaces a secret so that the same secret can be recognized: 48 bits of its HMAC."""

    def replacement(secret: bytes) -> bytes:
        return _MASK + b":" + hmac.digest(key, secret, "sha256").hex()[:12].encode()

    return replacement


class SecretSpan(NamedTuple):
    """A span of a text, what replaces it, the rule that found it, and the path of keys to it."""

    start: int
    end: int
    replacement: str
    rule: str
    path: str = ""


def outermost(findings: Sequence[SecretSpan]) -> list[SecretSpan]:
    """Return findings in the order of the text, without those that begin inside another one."""
    kept: list[SecretSpan] = []
    for finding in sorted(findings, key=lambda found: (found.start, -found.end)):
        if not kept or finding.start >= kept[-1].end:
            kept.append(finding)
    return kept


def replace_spans(text: str, findings: Sequence[SecretSpan]) -> str:
    """Return the text with every span replaced; all other characters stay the same."""
    parts: list[str] = []
    position = 0
    for finding in findings:
        parts += (text[position : finding.start], finding.replacement)
        position = finding.end
    parts.append(text[position:])
    return "".join(parts)
