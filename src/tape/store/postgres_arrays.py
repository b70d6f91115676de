"""Columns of rows as arrays in PostgreSQL's binary format: psycopg's own arrays take twice the time of a COPY."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from psycopg import pq
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper

# One dimension without NULLs: the type of its elements, their number, and the index of the first.
_HEADER = struct.Struct(">iiIii")


class BinaryArray:
    """An array as it goes to the database; a subclass for each type of elements."""

    __slots__ = ("data",)

    name = ""
    oid = 0
    element_oid = 0

    def __init__(self, values: Sequence[Any]) -> None:
        self.data = _HEADER.pack(1, 0, self.element_oid, len(values), 1) + self.encode(values)

    @staticmethod
    def encode(values: Sequence[Any]) -> bytes:
        """Every element after its size."""
        raise NotImplementedError


class _Integers(BinaryArray):
    name, oid, element_oid = "int8[]", 1016, 20

    @staticmethod
    def encode(values: Sequence[Any]) -> bytes:
        return _with_sizes("q", values)


class _Floats(BinaryArray):
    name, oid, element_oid = "float8[]", 1022, 701

    @staticmethod
    def encode(values: Sequence[Any]) -> bytes:
        return _with_sizes("d", values)


class _Texts(BinaryArray):
    name, oid, element_oid = "text[]", 1009, 25

    @staticmethod
    def encode(values: Sequence[Any]) -> bytes:
        return _Bytes.encode([value.encode() for value in values])


class _Bytes(BinaryArray):
    name, oid, element_oid = "bytea[]", 1001, 17

    @staticmethod
    def encode(values: Sequence[Any]) -> bytes:
        parts: list[bytes] = []
        for value in values:
            parts += (len(value).to_bytes(4, "big"), value)
        return b"".join(parts)


def _with_sizes(code: str, values: Sequence[Any]) -> bytes:
    sized = [8] * (2 * len(values))
    sized[1::2] = values
    return struct.pack(">" + f"i{code}" * len(values), *sized)


class _Dumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: BinaryArray) -> bytes:
        return obj.data


_KINDS: dict[type, type[BinaryArray]] = {int: _Integers, float: _Floats, str: _Texts, bytes: _Bytes}


def register(context: AdaptContext) -> None:
    """Let a connection send these arrays."""
    assert context.adapters is not None
    for kind in _KINDS.values():
        context.adapters.register_dumper(kind, type(f"{kind.__name__}Dumper", (_Dumper,), {"oid": kind.oid}))


def unnest(rows: Sequence[tuple[Any, ...]]) -> tuple[str, list[BinaryArray]]:
    """Rows as a table of SQL, and its parameters: an array for each column. The first row has the types."""
    arrays = [_kind_of(column[0])(column) for column in zip(*rows, strict=True)]
    return f"unnest({','.join(f'?::{array.name}' for array in arrays)})", arrays


def _kind_of(value: Any) -> Callable[[Sequence[Any]], BinaryArray]:
    for base in type(value).__mro__:
        if base in _KINDS:
            return _KINDS[base]
    raise TypeError(f"no array for {type(value).__name__}")
