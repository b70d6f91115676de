"""Records as protobuf messages: fields of the same name are copied."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message

from tape.model.ledger_states import parse

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=IntEnum)


def to_message(kind: type[M], record: msgspec.Struct, **others: Any) -> M:
    """A message with the fields that the record shares with it, plus `others`."""
    names = _shared_names(kind, type(record))  # type: ignore[arg-type]  # classes are hashable
    # Empty and zero are protobuf defaults, so they are not set: most fields of most records cost nothing.
    return kind(**{name: value for name in names if (value := getattr(record, name))}, **others)


def state(kind: type[S], field: str, number: int, default: S) -> S:
    """The state that a request names; 0 on the wire is "not given"."""
    return parse(kind, field, number) if number else default


@cache
def _shared_names(message: type[Message], record: type[msgspec.Struct]) -> tuple[str, ...]:
    known = {field.name for field in message.DESCRIPTOR.fields}
    return tuple(name for name in record.__struct_fields__ if name in known)
