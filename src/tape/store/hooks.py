"""Hooks: what the layers above do when a connection is made and when a transaction is durable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tape.store.connection import Reader
from tape.store.transaction import Transaction


@dataclass(slots=True)
class Hooks:
    """Functions that a database calls on its own threads; an error of theirs fails the connection or the batch."""

    # In a transaction of its own on every new connection of the writer, before its first operation.
    writer_connected: list[Callable[[Transaction], None]] = field(default_factory=list)
    # On the writer's thread with what a transaction announced, once that is durable and before its callers know.
    committed: list[Callable[[list[Any]], None]] = field(default_factory=list)
    # On every new connection of a reader, before its first question.
    reader_connected: list[Callable[[Reader], None]] = field(default_factory=list)
