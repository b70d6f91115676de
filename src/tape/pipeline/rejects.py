"""Rows that cannot be entries: kept as JSON lines, one file per task that had some, with the reason for each."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import IO, Any

import msgspec
import pyarrow.fs

from tape.archive.location import open_filesystem

_encode = msgspec.json.Encoder().encode


class Rejects:
    """The rejects of one batch, in a folder of its own. Repeating a batch replaces them."""

    def __init__(self, url: str, batch: str) -> None:
        self._url = url
        # A batch may be named by a path.
        self._folder = f"batch-{sha256(batch.encode()).hexdigest()[:16]}"

    @contextlib.contextmanager
    def open(self) -> Iterator[RejectFile]:
        """A file for one task; it is not made if there are none."""
        file = RejectFile(open_filesystem(self._url), f"{self._folder}/{uuid.uuid4().hex}.jsonl")
        try:
            yield file
        finally:
            file.close()

    def keep(self, files: Sequence[str]) -> None:
        """Remove files of tasks that were repeated or killed, keep these."""
        filesystem = open_filesystem(self._url)
        selector = pyarrow.fs.FileSelector(self._folder, allow_not_found=True)
        with contextlib.suppress(FileNotFoundError):
            for info in filesystem.get_file_info(selector):
                if info.is_file and info.path not in files:
                    filesystem.delete_file(info.path)


class RejectFile:
    """Rejects of one task, on their way to a file."""

    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str) -> None:
        self.path = path
        self.count = 0
        self.reason = ""
        self._filesystem = filesystem
        self._out: IO[Any] | None = None

    def add(self, row: str, reason: str) -> None:
        """Keep a row."""
        if self._out is None:
            self._filesystem.create_dir(self.path.rpartition("/")[0], recursive=True)
            self._out = self._filesystem.open_output_stream(self.path)
        self.count += 1
        self.reason = reason
        self._out.write(_encode({"reason": reason, "row": row}) + b"\n")

    def close(self) -> None:
        """Let the file be complete."""
        if self._out is not None:
            self._out.close()
