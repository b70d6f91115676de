"""Types of structs that are resolved before threads use them.

msgspec resolves the types of a struct when it first decodes one. While a thread does so, which runs Python code,
another thread that decodes the same struct finds half of the types and crashes the process.
"""

from __future__ import annotations

import threading

import msgspec

_lock = threading.Lock()
_resolved: set[type[msgspec.Struct]] = set()


def resolve(struct: type[msgspec.Struct]) -> None:
    """Resolve the types of a struct, unless that was done before."""
    if struct in _resolved:
        return
    with _lock:
        _resolve(struct)


def resolve_all() -> None:
    """Resolve the types of every struct that is imported."""
    with _lock:
        waiting = msgspec.Struct.__subclasses__()
        while waiting:
            struct = waiting.pop()
            waiting += struct.__subclasses__()
            _resolve(struct)


def _resolve(struct: type[msgspec.Struct]) -> None:
    if struct not in _resolved:
        try:
            msgspec.json.Decoder(struct)
        except (AttributeError, NameError, TypeError):
            pass  # it is never decoded: it has functions, or types that are imported for type checkers only
        _resolved.add(struct)
