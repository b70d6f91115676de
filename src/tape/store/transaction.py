"""The transaction that an operation works on, and those who keep state beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from tape.errors import BackendStuck, StoreUnavailable
from tape.store.connection import DatabaseConnection, Dialect, Row
from tape.store.tail import Tail


class Participant(Protocol):
    """State that lives as long as one transaction: rewound with it, written out before its commit."""

    def __init__(self, tx: Transaction) -> None: ...

    def mark(self) -> object:
        """A token for the present state."""

    def rewind(self, mark: object) -> None:
        """Go back to the state of that token."""

    def flush(self) -> None:
        """Write out what is still only in memory. Runs once, before the commit."""


P = TypeVar("P", bound=Participant)


class Transaction:
    """What operations get: statements, participants, and announcements to make after the commit."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        # What participants remember from one transaction of this connection to the next. Other processes
        # write too, and commits fail: readers must check whether it still holds.
        self.memory = connection.memory
        self._participants: dict[type[Participant], Participant] = {}
        self.announcements: list[Any] = []
        self.notices: set[str] = set()
        # The last entry of the journal, if this transaction appends to it.
        self.tail: Tail | None = None
        self.dialect: Dialect = connection.dialect
        self.query = connection.query
        self.one = connection.one
        self.is_any = connection.is_any
        self.texts = connection.texts
        self.lookup = connection.lookup
        self.execute = connection.execute
        self.slow_statements = connection.slow_statements

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert many rows the fastest way this database has."""
        self._connection.insert(table, columns, rows)

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert rows, or overwrite the ones whose keys exist."""
        self._connection.upsert(table, keys, columns, rows)

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Overwrite some columns of the rows with these keys."""
        if rows:
            self._connection.update(table, keys, columns, rows)

    def enlist(self, kind: type[P]) -> P:
        """The participant of that kind, made when first asked for."""
        participant = self._participants.get(kind)
        if participant is None:
            participant = self._participants[kind] = kind(self)
        return participant  # type: ignore[return-value]  # the dictionary is keyed by the value's own type

    def find(self, kind: type[P]) -> P | None:
        """The participant of that kind, if there is one."""
        return self._participants.get(kind)  # type: ignore[return-value]  # as above

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is done within if it raises, and leave the rest of the transaction as it is."""
        marks = self.mark()
        self._connection.savepoint()
        try:
            yield
        except Exception as error:
            if not self.survives(error):
                raise
            self._connection.rollback_to_savepoint()
            self.rewind(marks)
            raise
        self._connection.release()

    def survives(self, error: Exception) -> bool:
        """Whether the transaction goes on after an error of one of its operations."""
        return self._connection.in_transaction and not isinstance(error, StoreUnavailable | BackendStuck)

    def announce(self, things: Sequence[Any]) -> None:
        """Hand these to the database's listener, in order, once the commit is durable."""
        self.announcements.extend(things)

    def notify(self, channel: str) -> None:
        """Notify the listeners of a channel, in this and other processes, after the commit."""
        self.notices.add(channel)

    def mark(self) -> dict[type[Participant], object]:
        """The state of every participant, for `rewind`."""
        return {kind: participant.mark() for kind, participant in self._participants.items()}

    def rewind(self, marks: dict[type[Participant], object]) -> None:
        """Take participants back to `marks`; those enlisted since then leave."""
        for kind in list(self._participants):
            if kind in marks:
                self._participants[kind].rewind(marks[kind])
            else:
                del self._participants[kind]

    def flush(self) -> None:
        """Let every participant write out what it holds."""
        for participant in self._participants.values():
            participant.flush()
        for channel in self.notices:
            self._connection.notify(channel)
