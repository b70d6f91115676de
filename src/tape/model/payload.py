"""Payloads on their way to JSON text."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tape.errors import InvalidJson

_encode = msgspec.json.Encoder().encode


def to_json(payload: Any) -> str:
    """A payload as JSON text; None is the empty object. Numbers that JSON lacks are an error, not null."""
    if payload is None:
        return "{}"
    try:
        encoded = _encode(payload).decode()
        if "null" in encoded:  # the fast encoder writes NaN and infinities as null: look closer
            json.dumps(msgspec.to_builtins(payload), allow_nan=False)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidJson(f"The payload cannot be written as JSON: {error}.") from error
    return encoded
