"""Dead letters of the fan-out job: appended to a file, or to the journal under a subject."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tape.base import structs
from tape.model.entry import Draft, checked
from tape.pipeline.batch_writer import append_batch, stage
from tape.sinks.dead_letters import write_dead_letters

log = logging.getLogger(__name__)


class DeadLetterWriter:
    """Writes dead letters to a file or a subject, each once, however often a round is retried."""

    def __init__(self, store: str, name: str, target: str) -> None:
        self._store, self._name, self._target = store, name, target

    def write(self, dead_letters: Sequence[tuple[int, str]], after: int) -> None:
        """Write the dead letters of entries after a global_seq; they are durable when this returns."""
        for _, text in dead_letters:
            log.error("dead letter: %s", text)
        if not self._target or not dead_letters:
            return
        if self._target.startswith("/tape/"):
            for number, text in dead_letters:
                draft = checked(Draft(subject=self._target, payload_json=text, run_id=f"dead:{self._name}"[:120]))
                append_batch(self._store, f"dead:{self._name}", str(number), [stage(self._store, [draft])])
            return
        known = self._find_written(after)
        write_dead_letters(self._target, [text for number, text in dead_letters if number not in known])

    def _find_written(self, after: int) -> set[int]:
        """Find the dead letters after a global_seq that an interrupted round has written to the file."""
        path = Path(self._target)
        if not path.is_file():
            return set()
        found = set()
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    found.add(structs.decode(line, _WrittenDeadLetter).global_seq)
                except msgspec.MsgspecError:
                    continue  # an incomplete line of a process that was killed
        return {number for number in found if number > after}


class _WrittenDeadLetter(msgspec.Struct):
    global_seq: int
