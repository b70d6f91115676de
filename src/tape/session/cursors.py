"""Cursors of readers that survive a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol, runtime_checkable

from tape.errors import TapeFileUnusable


@runtime_checkable
class CursorStore(Protocol):
    """Keeps one cursor."""

    def load(self) -> int | None:
        """The cursor, or None if there is none yet."""

    def save(self, cursor: int) -> None:
        """Keep the cursor."""


class FileCursor:
    """A cursor in a small file, written whole or not at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> int | None:
        """The cursor in the file; a file that holds none is an error, not a restart from 0."""
        try:
            cursor = json.loads(self.path.read_bytes())["cursor"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise TapeFileUnusable(
                f'{self.path} does not hold a cursor such as {{"cursor": 42}} ({error!r}). Remove it to begin at 0.'
            ) from error
        if not isinstance(cursor, int) or cursor < 0:
            raise TapeFileUnusable(f"{self.path} has the cursor {cursor!r}; it must be a whole number from 0.")
        return cursor

    def save(self, cursor: int) -> None:
        """Write the cursor to a temporary file and rename it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        scratch.write_text(json.dumps({"cursor": cursor}))
        scratch.replace(self.path)
