"""The witness: what knows the last acknowledged entry besides the database, and is asked before anything is written.

A database that lost its tail, to a damaged write-ahead log, a failover or a restore, looks whole. So each process that
writes records the last entry in a file, and on request in an object store. Before its first write it compares.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tape.base.telemetry.metrics import Metrics
from tape.errors import InvalidConfig
from tape.store.connection import DatabaseConnection, Reader
from tape.store.tail import Tail, TailLoss, find_loss, read_tail
from tape.store.witness_file import WitnessFile
from tape.store.witness_object import WitnessObject

log = logging.getLogger(__name__)

OFF = "off"


class WitnessBackend(Protocol):
    """Where the last acknowledged entry is kept."""

    name: str
    problem: str

    def last_known(self, journal_id: str) -> list[Tail]:
        """The tails of a journal that processes have recorded here."""

    def begin(self, tail: Tail) -> None:
        """Record the tail durably, and from now on what comes after it."""

    def record(self, tail: Tail) -> None:
        """Record the tail after a commit."""

    def close(self) -> None:
        """Make the last tail durable, and end."""


class Witness:
    """The witnesses of one database. Reading commands only ask them; the writer begins with them and records."""

    def __init__(
        self, backends: Sequence[WitnessBackend], store: str, metrics: Metrics, *, accepts_loss: bool = False
    ) -> None:
        self._backends = backends
        self._store = store
        self._accepts_loss = accepts_loss
        self._has_begun = False
        # What the database had lost when this process began to write, if that was accepted.
        self.accepted: TailLoss | None = None
        self.metrics = metrics
        for backend in backends:
            up = metrics.witness_up.labels(backend.name)
            up.set_function(_is_up(backend))

    @property
    def name(self) -> str:
        """Where the witnesses are; empty if there are none."""
        return ", ".join(backend.name for backend in self._backends)

    @property
    def problems(self) -> list[str]:
        """Why witnesses cannot be written."""
        return [backend.problem for backend in self._backends if backend.problem]

    def last_known(self, journal_id: str) -> Tail | None:
        """The newest tail of a journal that any witness has."""
        tails = [tail for backend in self._backends for tail in backend.last_known(journal_id)]
        return max(tails, key=lambda tail: tail.order, default=None)

    def find_other_journals(self, journal_id: str) -> list[Tail]:
        """Tails of other journals in the files of this database: it was replaced, or its id was changed."""
        files = [backend for backend in self._backends if isinstance(backend, WitnessFile)]
        return [tail for file in files for tail in file.tails() if tail.journal_id != journal_id]

    def find_loss(self, reader: Reader) -> TailLoss | None:
        """What the database lost of the entries that a witness knows."""
        # The witness first: what another process commits meanwhile is in the database before it is in the witness.
        known = self.last_known(read_tail(reader).journal_id)
        return find_loss(reader, known) if known is not None else None

    def begin(self, connection: DatabaseConnection) -> None:
        """Compare the database with the witnesses before the first write, and record from now on. Raises TailLost."""
        if self._has_begun or not self._backends or not connection.has_table("tape_epochs"):
            return  # before that table, a journal has no id
        loss = self.find_loss(connection)
        if loss is not None:
            if not self._accepts_loss:
                raise loss.error(self._store, self.name)
            self.accepted = loss
            log.warning("%s: %s; the loss is accepted, and the numbers continue above", self._store, loss)
        tail = read_tail(connection)
        if tail.global_seq and not any(backend.last_known(tail.journal_id) for backend in self._backends):
            log.warning(
                "there was no witness of %s; one begins with entry %d: what was lost before is not known",
                self._store,
                tail.global_seq,
            )
        # Until the cut is closed, the witness stays where it was.
        for backend in self._backends:
            backend.begin(tail if loss is None else loss.known)
        self._has_begun = True

    def record(self, tail: Tail) -> None:
        """Record the tail after a commit and before its callers know of it."""
        for backend in self._backends:
            backend.record(tail)

    def close(self) -> None:
        """Make the last tail durable, and end."""
        if self._has_begun:
            for backend in self._backends:
                backend.close()


def open_backends(setting: str, default: Path | None) -> list[WitnessBackend]:
    """The witnesses of the setting `witness`: off, a path and URLs of object stores, separated by commas.

    Without a path there is a file at the default location. A store in memory has no such location and no witness.
    """
    locations = [location for location in map(str.strip, setting.split(",")) if location]
    if OFF in locations:
        if len(locations) > 1:
            raise InvalidConfig(f"witness is {setting!r}; off excludes everything else.")
        return []
    if default is None:
        return []
    urls = [location for location in locations if "://" in location]
    paths = [Path(location).expanduser() for location in locations if "://" not in location]
    if len(paths) > 1:
        raise InvalidConfig(f"witness is {setting!r}; it can have one path, and URLs of object stores.")
    file = paths[0] if paths else default
    if file.is_dir():
        raise InvalidConfig(f"witness is {str(file)!r}, which is a folder; name a file in it.")
    return [WitnessFile(Path(os.path.realpath(file))), *map(WitnessObject, urls)]


def _is_up(backend: WitnessBackend) -> Callable[[], float]:
    return lambda: 0.0 if backend.problem else 1.0
