"""Policies for entries that a sink rejects for good."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from tape.base.private_files import make_private_folder, open_private
from tape.client import TapeClient
from tape.errors import InvalidInput
from tape.model.entry import Draft
from tape.model.message import event_id_of, fields_of
from tape.model.pattern import Pattern
from tape.model.subject import normalize

log = logging.getLogger(__name__)

Policy = Literal["block", "skip", "dead_letter"]


class DeadLetterPolicy:
    """`block` retries a rejected entry and later ones wait, `skip` skips it, `dead_letter` stores it.

    A dead letter goes to a file, one JSON object per line, or to a subject of the journal if the location begins with
    `/tape/`. It is durable before the cursor moves.
    """

    def __init__(self, policy: Policy, dead_letter: str, url: str, subject_pattern: str) -> None:
        self.policy = policy
        self._location = check_location(policy, dead_letter, subject_pattern)
        self._url = url
        self._client: TapeClient | None = None

    @property
    def is_blocking(self) -> bool:
        """Whether a rejected entry is retried, and later entries wait for it."""
        return self.policy == "block"

    def dead_letter(self, entry: Any, error: Exception) -> None:
        """Skip an entry, or store it as a dead letter, which is durable on return."""
        log.error("entry %s was rejected (policy %s): %s", event_id_of(entry), self.policy, error)
        if self.policy != "dead_letter":
            return
        text = dead_letter_of(entry, error)
        if self._location.startswith("/tape/"):
            self._client = self._client or TapeClient(self._url)
            draft = Draft(subject=self._location, payload_json=text, run_id=f"dead:{entry.run_id}"[:120])
            self._client.append_many(
                [draft], request_id=f"dead:{self._location}:{entry.global_seq}", first_write_wins=True
            )
            return
        write_dead_letters(self._location, [text])

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
            self._client = None


def check_location(policy: str, dead_letter: str, subject_pattern: str) -> str:
    """The location of dead letters in normal form. Raises InvalidInput unless policy, location and pattern agree."""
    if policy not in get_args(Policy):
        raise InvalidInput(f"policy {policy!r} must be one of {', '.join(get_args(Policy))}.")
    if (policy == "dead_letter") != bool(dead_letter):
        raise InvalidInput("policy='dead_letter' needs dead_letter (a file or a subject), and no other policy has it.")
    if not dead_letter.startswith("/tape/"):
        return dead_letter
    if Pattern(subject_pattern).matches(location := normalize(dead_letter)):
        raise InvalidInput(
            f"dead_letter {dead_letter!r} is itself matched by {subject_pattern or '/**'!r}, so dead letters"
            " would be relayed, too. Choose a file, or narrow the subject."
        )
    return location


def dead_letter_of(entry: Any, error: Exception) -> str:
    """A dead letter as JSON: the fields of the standard body and the error."""
    fields = {"global_seq": entry.global_seq, "subject": entry.subject, **fields_of(entry)}
    return msgspec.json.encode({**fields, "error": f"{type(error).__name__}: {error}"}).decode()


def write_dead_letters(location: str, dead_letters: Sequence[str]) -> None:
    """Append dead letters to a file, one per line; they are on the disk on return."""
    path = Path(location)
    make_private_folder(path.parent)
    with open(path, "a+b", opener=open_private) as file:
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.write(b"\n")  # a process was killed in the middle of a line
        file.writelines(f"{each}\n".encode() for each in dead_letters)
        file.flush()
        os.fsync(file.fileno())
