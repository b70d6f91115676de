"""Entries as lines of a file or a stream."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from tape.errors import InvalidInput, SinkUnavailable
from tape.model.message import BodyFormat, check_body_format, fields_of

_STREAMS = {":stderr": lambda: sys.stderr, ":stdout": lambda: sys.stdout}


class LogSink:
    """Writes one JSON object per line to `:stderr`, `:stdout` or a file, to which it appends.

    A line has the fields of `body` (`standard`, `expanded` or `cloudevents`); except in a CloudEvent, `global_seq` and
    `subject` come first.
    """

    def __init__(self, path: str = ":stderr", *, body: BodyFormat = "standard") -> None:
        if path.startswith(":") and path not in _STREAMS:
            raise InvalidInput(f"path {path!r} must be :stderr, :stdout or the path of a file.")
        self.path = path
        self._body = check_body_format(body)
        self._file: TextIO | None = None

    def publish(self, entry: Any) -> None:
        """Write an entry."""
        self._write(self._line_of(entry))

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """Write entries at once."""
        self._write("".join(map(self._line_of, entries)))
        return [None] * len(entries)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, text: str) -> None:
        try:
            if self.path in _STREAMS:
                stream = _STREAMS[self.path]()
            else:
                if self._file is None:
                    Path(self.path).parent.mkdir(parents=True, exist_ok=True)
                    self._file = Path(self.path).open("a", encoding="utf-8")  # noqa: SIM115
                stream = self._file
            stream.write(text)
            stream.flush()
        except OSError as error:
            self._file = None
            raise SinkUnavailable(f"{self.path} cannot be written: {error}.") from error

    def _line_of(self, entry: Any) -> str:
        fields = fields_of(entry, self._body)
        if self._body != "cloudevents":
            fields = {"global_seq": entry.global_seq, "subject": entry.subject, **fields}
        return f"{msgspec.json.encode(fields).decode()}\n"
