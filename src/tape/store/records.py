"""Records: a row of a table as an object, its fields the columns, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from tape.base import structs
from tape.store.transaction import Transaction


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A row of a table."""


R = TypeVar("R", bound=Record)


def columns(kind: type[Record]) -> str:
    """The columns of a record, for a SELECT."""
    return ", ".join(kind.__struct_fields__)


def load(kind: type[R], row: Sequence[Any] | None) -> R | None:
    """The record of a row, if there is one."""
    return None if row is None else structs.convert(row, kind, strict=False)


def load_all(kind: type[R], rows: Sequence[Sequence[Any]]) -> list[R]:
    """The records of rows."""
    structs.resolve(kind)
    return [msgspec.convert(row, kind, strict=False) for row in rows]


def insert(tx: Transaction, table: str, record: Record) -> None:
    """Add a record to its table."""
    tx.insert(table, record.__struct_fields__, [row_of(record)])


def store(tx: Transaction, table: str, keys: Sequence[str], record: Record) -> None:
    """Put a record in its table, over the one with the same keys."""
    tx.upsert(table, keys, record.__struct_fields__, [row_of(record)])


def row_of(record: Record) -> tuple[Any, ...]:
    """The values as drivers take them: states and booleans are numbers."""
    values: list[Any] = msgspec.to_builtins(record)
    return tuple(int(value) if isinstance(value, bool) else value for value in values)
