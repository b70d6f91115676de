"""Checks that many requests share."""

from __future__ import annotations

from tape.errors import InvalidInput, PayloadTooLarge

# The end of a lease that begins then still has 64 bits.
MAX_TIME_MS = 1 << 62


def check_texts(max_bytes: int, **texts: str) -> None:
    """Raise if a text exceeds max_payload_bytes or has a NUL character."""
    for name, text in texts.items():
        if len(text) * 4 > max_bytes and (size := len(text.encode())) > max_bytes:
            raise PayloadTooLarge(
                f"{name} has {size} bytes; this server accepts at most {max_bytes} (max_payload_bytes)."
                " Store the content outside of the journal and record a reference to it."
            )
        if "\0" in text:
            raise InvalidInput(f"{name} has a NUL character, which a database cannot store; write it as \\u0000.")


def check_time(name: str, value: int) -> int:
    """The time in milliseconds; raises if a lease that begins then cannot be stored."""
    if value > MAX_TIME_MS:
        raise InvalidInput(f"{name} {value} must be at most {MAX_TIME_MS}; leave it out for the server's clock.")
    return value
