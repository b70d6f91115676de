"""Checkpoints: the position of a named job, kept in the store beside the job's output.

A checkpoint belongs to the options of the job that created it. A job with other options is rejected, because it
would resume after entries that it has never processed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tape.archive.location import open_filesystem
from tape.base import structs
from tape.base.clock import now_ms
from tape.errors import CheckpointRefused
from tape.model.entry import check_id
from tape.store import Reader, Transaction

NOTE = "tape.json"
_COLUMNS = ("job", "name", "version", "options", "position", "state", "ts_ms")


class Checkpoint(msgspec.Struct, frozen=True):
    """The version, the options, the last processed global_seq and the state of a named job."""

    job: str
    name: str
    version: int
    options: dict[str, Any]
    position: int
    state: dict[str, Any] = {}

    def at(self, position: int, state: Mapping[str, Any] | None = None) -> Checkpoint:
        """Return the checkpoint at another position, with another state unless omitted."""
        return msgspec.structs.replace(self, position=position, state=dict(self.state if state is None else state))


def find_checkpoint(reader: Reader | Transaction, wanted: Checkpoint) -> Checkpoint | None:
    """Find the checkpoint of a job and name. Raises CheckpointRefused if it belongs to other options."""
    check_id("name", wanted.name)
    row = reader.one(
        f"SELECT {', '.join(_COLUMNS)} FROM tape_checkpoints WHERE job = ? AND name = ?", wanted.job, wanted.name
    )
    if row is None:
        return None
    options, state = (msgspec.json.decode(row[index], type=dict[str, Any]) for index in (3, 5))
    found = Checkpoint(row[0], row[1], row[2], options, row[4], state)
    check_same(found, wanted, f"The checkpoint {found.name!r} of the job {found.job}", "--name")
    return found


def check_same(found: Checkpoint, wanted: Checkpoint, what: str, remedy: str) -> None:
    """Raise CheckpointRefused unless both have the same version and options."""
    if found.version != wanted.version:
        raise CheckpointRefused(
            f"{what} has version {found.version}; this job has version {wanted.version}. Finish it with the"
            f" release of Tape that created it, or give another {remedy}."
        )
    if found.options != wanted.options:
        names = sorted(found.options.keys() | wanted.options.keys())
        differences = [
            f"{name} was {found.options.get(name)!r}, now it is {wanted.options.get(name)!r}"
            for name in names
            if found.options.get(name) != wanted.options.get(name)
        ]
        raise CheckpointRefused(f"{what} has other options: {'; '.join(differences)}. Give another {remedy}.")


def bind_checkpoint(folder: str, wanted: Checkpoint) -> Checkpoint:
    """Bind the checkpoint folder of a stream to a job's options, in the file tape.json; return the stored checkpoint.

    Raises CheckpointRefused if the folder is bound to other options.
    """
    filesystem = open_filesystem(folder)
    try:
        with filesystem.open_input_stream(NOTE) as note:
            found = structs.decode(note.read(), Checkpoint)
    except FileNotFoundError:
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
        with filesystem.open_output_stream(NOTE) as note:
            note.write(msgspec.json.encode(wanted))
        found = wanted
    check_same(found, wanted, f"The checkpoint {folder}", "--checkpoint")
    return found


def save_checkpoint(tx: Transaction, checkpoint: Checkpoint) -> None:
    """Save a checkpoint in the transaction that writes the job's output."""
    row = (
        checkpoint.job,
        checkpoint.name,
        checkpoint.version,
        msgspec.json.encode(checkpoint.options).decode(),
        checkpoint.position,
        msgspec.json.encode(checkpoint.state).decode(),
        now_ms(),
    )
    tx.upsert("tape_checkpoints", ("job", "name"), _COLUMNS, [row])
