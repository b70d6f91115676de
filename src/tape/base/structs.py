"""Decoding of structs on several threads.

msgspec resolves the types of a struct when it first decodes one. While a thread does so, which runs Python code,
another thread that decodes the same struct finds half of the types and crashes the process. So the types are resolved
under a lock first, and processes that open a database decode structs with the functions of this module only.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_resolved: set[Any] = set()


def decode(data: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """Decode JSON to a struct, or to a type that has structs in it. Raises msgspec.DecodeError."""
    resolve(kind)
    return msgspec.json.decode(data, type=kind)


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Convert plain values to a struct. Raises msgspec.ValidationError."""
    resolve(kind)
    return msgspec.convert(value, kind, strict=strict)


def resolve(kind: Any) -> None:
    """Resolve the types of a struct and of those in it, unless that was done before."""
    if kind in _resolved:
        return
    with _lock:
        _resolve(kind)


def resolve_all(kind: type[msgspec.Struct]) -> None:
    """Resolve the types of every struct of a kind that is imported."""
    with _lock:
        waiting = kind.__subclasses__()
        while waiting:
            struct = waiting.pop()
            waiting += struct.__subclasses__()
            _resolve(struct)


def _resolve(kind: Any) -> None:
    if kind not in _resolved:
        try:
            msgspec.json.Decoder(kind)
        except (AttributeError, NameError, TypeError):
            pass  # it is never decoded: it has functions, or types that are imported for type checkers only
        _resolved.add(kind)
