"""Paths of values in a document."""

from __future__ import annotations

Path = tuple[str | int, ...]


def render(path: Path) -> str:
    """A path as text: `spec.headers.directives[0].controls`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
