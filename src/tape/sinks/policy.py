"""What becomes of an entry that its target will never take."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from tape.client import TapeClient
from tape.errors import InvalidInput
from tape.model.entry import Draft
from tape.model.message import event_id_of, fields_of
from tape.model.pattern import Pattern
from tape.model.subject import normalize

log = logging.getLogger(__name__)

Policy = Literal["block", "skip", "dead_letter"]


class SettingAside:
    """`block` keeps the entry in its place until it is taken, `skip` leaves it out, `dead_letter` writes it elsewhere.

    A dead letter goes to a file, one JSON object a line, or to a subject of the journal if the place begins with
    `/tape/`. It is on the disk before the cursor moves.
    """

    def __init__(self, policy: Policy, dead_letter: str, url: str, subject_pattern: str) -> None:
        self.policy = policy
        self._place = checked_place(policy, dead_letter, subject_pattern)
        self._url = url
        self._client: TapeClient | None = None

    @property
    def is_blocking(self) -> bool:
        """Whether entries stay in their place."""
        return self.policy == "block"

    def take(self, entry: Any, error: Exception) -> None:
        """Set an entry aside; it is durable there when this returns."""
        log.error("%s is set aside (%s): %s", event_id_of(entry), self.policy, error)
        if self.policy != "dead_letter":
            return
        text = letter_of(entry, error)
        if self._place.startswith("/tape/"):
            self._client = self._client or TapeClient(self._url)
            draft = Draft(subject=self._place, payload_json=text, run_id=f"dead:{entry.run_id}"[:120])
            self._client.append_many(
                [draft], request_id=f"dead:{self._place}:{entry.global_seq}", first_write_wins=True
            )
            return
        write_letters(self._place, [text])

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
            self._client = None


def checked_place(policy: str, dead_letter: str, subject_pattern: str) -> str:
    """Where dead letters go, in normal form. Raises InvalidInput unless policy, place and pattern go together."""
    if policy not in get_args(Policy):
        raise InvalidInput(f"policy {policy!r} must be one of {', '.join(get_args(Policy))}.")
    if (policy == "dead_letter") != bool(dead_letter):
        raise InvalidInput("policy='dead_letter' and a place for dead_letter (a file or a subject) go together.")
    if not dead_letter.startswith("/tape/"):
        return dead_letter
    if Pattern(subject_pattern).matches(place := normalize(dead_letter)):
        raise InvalidInput(
            f"dead_letter {dead_letter!r} is itself matched by {subject_pattern or '/**'!r}, so dead letters"
            " would be relayed, too. Choose a file, or narrow the subject."
        )
    return place


def letter_of(entry: Any, error: Exception) -> str:
    """A dead letter: the entry as a receiver would have got it, its place, and why it was not taken."""
    fields = {"global_seq": entry.global_seq, "subject": entry.subject, **fields_of(entry)}
    return msgspec.json.encode({**fields, "error": f"{type(error).__name__}: {error}"}).decode()


def write_letters(place: str, letters: Sequence[str]) -> None:
    """Add dead letters to a file, one a line; they are on the disk when this returns."""
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            file.write(b"\n")  # somebody was killed in the middle of a line
        file.writelines(f"{letter}\n".encode() for letter in letters)
        file.flush()
        os.fsync(file.fileno())
