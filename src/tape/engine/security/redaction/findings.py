"""Findings: spans of a text that are replaced, and by which rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HIDDEN = "***"


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
