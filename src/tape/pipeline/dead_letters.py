"""Dead letters of a job: in a file, or in the journal under a subject."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tape.model.entry import Draft, checked
from tape.pipeline.batches import append_batch, stage
from tape.sinks.policy import write_letters

log = logging.getLogger(__name__)


class Letters:
    """Dead letters in a file, or in the journal under a subject; each once, however often a round is repeated."""

    def __init__(self, store: str, name: str, place: str) -> None:
        self._store, self._name, self._place = store, name, place

    def write(self, letters: Sequence[tuple[int, str]], after: int) -> None:
        """Write down what was set aside of the entries after a position; it is durable when this returns."""
        for _, letter in letters:
            log.error("set aside: %s", letter)
        if not self._place or not letters:
            return
        if self._place.startswith("/tape/"):
            for number, letter in letters:
                draft = checked(Draft(subject=self._place, payload_json=letter, run_id=f"dead:{self._name}"[:120]))
                append_batch(self._store, f"dead:{self._name}", str(number), [stage(self._store, [draft])])
            return
        known = self._known(after)
        write_letters(self._place, [letter for number, letter in letters if number not in known])

    def _known(self, after: int) -> set[int]:
        """The letters behind a position that a round has written which was then killed."""
        path = Path(self._place)
        if not path.is_file():
            return set()
        found = set()
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    found.add(msgspec.json.decode(line, type=_Letter).global_seq)
                except msgspec.MsgspecError:
                    continue  # half a line of somebody who was killed
        return {number for number in found if number > after}


class _Letter(msgspec.Struct):
    global_seq: int
