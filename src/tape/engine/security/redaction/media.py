"""Media: pictures, sound and video inside payloads become a note of their type and size."""

from __future__ import annotations

from typing import Any

MEDIA_FROM_CHARS = 256

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
# Groups: media type, parameters, base64 or nothing, data.
DATA_URL = (
    r"(?i)data:([a-z0-9.+-]+/[a-z0-9.+-]+)?((?:;[a-z0-9._-]+=[^;,\s\"]*)*)(;base64)?,"
    r"([A-Za-z0-9+/=_\-.~%!$&'()*:@]*)"
)
_HEADS = tuple(MEDIA)


def describe_media(text: str) -> str:
    """Return a note that replaces a text of base64 media, or nothing if it is none."""
    if len(text) < MEDIA_FROM_CHARS or not text.startswith(_HEADS):
        return ""
    return next(_note(mime, _decoded_size(text)) for head, mime in MEDIA.items() if text.startswith(head))


def describe_data_url(match: Any) -> bytes:
    """Return a note that replaces a data URL."""
    mime, _, is_base64, data = match.groups()
    size = _decoded_size(data.decode()) if is_base64 else len(data)
    return _note((mime or b"application/octet-stream").decode(), size).encode()


def _note(mime: str, size: int) -> str:
    return f"[redacted: {mime} of {size} bytes]"


def _decoded_size(base64_text: str) -> int:
    return len(base64_text.rstrip("=")) * 3 // 4
