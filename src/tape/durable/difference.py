"""What differs between two JSON values, in a few readable lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LINES = 12
VALUE_CHARACTERS = 160
_MISSING = object()
# How the server writes what it has redacted.
_REDACTED = ("***", "[REDACTED]", "[redacted")


def difference(recorded_json: str, ours_json: str) -> str:
    """The fields that differ, one line each, at most 12; "" if none does.

    A value that the server has redacted is not shown on either side.
    """
    found = _differences(_parsed(recorded_json), _parsed(ours_json), "")
    lines: list[str] = []
    for path, recorded, ours in found:
        if len(lines) == LINES:
            lines.append("…")
            break
        if isinstance(recorded, str) and recorded.startswith(_REDACTED):
            continue
        lines.append(f"{path or 'value'}: recorded {_shown(recorded)}, now {_shown(ours)}")
    return "\n".join(lines)


def shown(text: str, longest: int = 400) -> str:
    """The beginning of a JSON text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}… ({len(text)} characters)"


def _differences(recorded: Any, ours: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(recorded, dict) and isinstance(ours, dict):
        for name in [*recorded, *(name for name in ours if name not in recorded)]:
            inner = f"{path}.{name}" if path else str(name)
            yield from _differences(recorded.get(name, _MISSING), ours.get(name, _MISSING), inner)
    elif isinstance(recorded, list) and isinstance(ours, list) and len(recorded) == len(ours):
        for number, (before, after) in enumerate(zip(recorded, ours, strict=True)):
            yield from _differences(before, after, f"{path}[{number}]")
    elif recorded != ours or isinstance(recorded, bool) != isinstance(ours, bool):
        yield path, recorded, ours


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else _MISSING
    except ValueError:
        return text


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}…"
