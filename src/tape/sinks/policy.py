"""What becomes of an entry that its target will never take."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from tape.client import TapeClient
from tape.errors import InvalidInput
from tape.journal.entry import Draft
from tape.journal.pattern import Pattern
from tape.journal.subject import normalize
from tape.sinks.sink import Body, event_id_of

log = logging.getLogger(__name__)

Policy = Literal["block", "skip", "dead_letter"]


class SettingAside:
    """`block` keeps the entry in its place until it is taken, `skip` leaves it out, `dead_letter` writes it elsewhere.

    A dead letter goes to a file, one JSON object a line, or to a subject of the journal if the place begins with
    `/tape/`. It is on the disk before the cursor moves.
    """

    def __init__(self, policy: Policy, dead_letter: str, url: str, subject_pattern: str) -> None:
        if policy not in get_args(Policy):
            raise InvalidInput(f"policy {policy!r} must be one of {', '.join(get_args(Policy))}.")
        if (policy == "dead_letter") != bool(dead_letter):
            raise InvalidInput("policy='dead_letter' and a place for dead_letter (a file or a subject) go together.")
        self.policy = policy
        self._place = dead_letter
        self._url = url
        self._client: TapeClient | None = None
        if dead_letter.startswith("/tape/"):
            self._place = normalize(dead_letter)
            if Pattern(subject_pattern).matches(self._place):
                raise InvalidInput(
                    f"dead_letter {dead_letter!r} is itself matched by {subject_pattern or '/**'!r}, so dead letters"
                    " would be relayed, too. Choose a file, or narrow the subject."
                )

    @property
    def is_blocking(self) -> bool:
        """Whether entries stay in their place."""
        return self.policy == "block"

    def take(self, entry: Any, error: Exception) -> None:
        """Set an entry aside; it is durable there when this returns."""
        log.error("%s is set aside (%s): %s", event_id_of(entry), self.policy, error)
        if self.policy != "dead_letter":
            return
        letter = {name: getattr(entry, name) for name in ("global_seq", "subject", *Body.__struct_fields__)}
        text = msgspec.json.encode({**letter, "error": f"{type(error).__name__}: {error}"}).decode()
        if self._place.startswith("/tape/"):
            self._client = self._client or TapeClient(self._url)
            draft = Draft(subject=self._place, payload_json=text, run_id=f"dead:{entry.run_id}"[:120])
            self._client.append_many([draft], request_id=f"dead:{self._place}:{entry.global_seq}")
            return
        path = Path(self._place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
            self._client = None
