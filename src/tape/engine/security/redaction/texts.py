"""Secrets inside one text: media, then every detector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tape.engine.security.redaction.detectors import CONTEXTS, GATE, VENDOR_GATE, VENDORS, Detector
from tape.engine.security.redaction.findings import HIDDEN, Hide
from tape.engine.security.redaction.media import describe_media
from tape.engine.security.redaction.patterns import compiled

# A text shorter than this is hidden by its key only.
MIN_CHARS = 8
# Suspicious texts and matches of one payload. Beyond them, further suspicious texts are hidden as a whole, which limits
# the time that one payload takes.
MAX_MATCHES = 10_000


class RedactedText(NamedTuple):
    """A text without its secrets, and the rules that found them."""

    text: str
    rules: tuple[str, ...]


class TextSearch:
    """Searches the texts of one payload."""

    def __init__(self, hide: Hide) -> None:
        self._hide = hide
        self._matches_left = MAX_MATCHES

    def redact(self, text: str) -> RedactedText | None:
        """Return a text without its secrets, or None if it has none."""
        if len(text) < MIN_CHARS:
            return None
        if note := describe_media(text):
            return RedactedText(note, ("media",))
        data = text.encode(errors="surrogatepass")
        if compiled(GATE).search(data) is None:
            return None
        spans: list[tuple[int, int, bytes, str]] = []
        self._matches_left -= 1
        if self._matches_left < 0:
            return RedactedText(HIDDEN, ("too_many_matches",))
        for detector in _detectors_for(data):
            for found in detector.find(data, self._hide):
                self._matches_left -= 1
                if self._matches_left < 0:
                    return RedactedText(HIDDEN, ("too_many_matches",))
                if found is not None:
                    spans.append((*found, detector.rule))
        return _replaced(data, spans) if spans else None


def _detectors_for(data: bytes) -> Iterator[Detector]:
    lowered = data.lower()
    for detector in CONTEXTS:
        if detector.can_match(lowered):
            yield detector
    if compiled(VENDOR_GATE).search(data) is not None:
        for detector in VENDORS:
            if detector.can_match(data):
                yield detector


def _replaced(data: bytes, spans: list[tuple[int, int, bytes, str]]) -> RedactedText:
    parts: list[bytes] = []
    rules: list[str] = []
    position = 0
    for start, end, replacement, rule in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start < position:
            position = max(position, end)  # the replacement before covers both
            continue
        parts += (data[position:start], replacement)
        rules.append(rule)
        position = end
    parts.append(data[position:])
    return RedactedText(b"".join(parts).decode(errors="surrogatepass"), tuple(dict.fromkeys(rules)))
