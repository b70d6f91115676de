"""Rejected rows of an ingest: JSON lines with the reason for each, one file per task that rejected any."""

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
    """The folder of one batch's rejected rows. A retried batch replaces them."""

    def __init__(self, url: str, batch: str) -> None:
        self._url = url
        # The name of a batch may be a path.
        self._folder = f"batch-{sha256(batch.encode()).hexdigest()[:16]}"

    @contextlib.contextmanager
    def open(self) -> Iterator[RejectFile]:
        """Open the file of one task; it is created with the first rejected row."""
        file = RejectFile(open_filesystem(self._url), f"{self._folder}/{uuid.uuid4().hex}.jsonl")
        try:
            yield file
        finally:
            file.close()

    def keep(self, files: Sequence[str]) -> None:
        """Keep these files and delete those of retried or killed tasks."""
        filesystem = open_filesystem(self._url)
        selector = pyarrow.fs.FileSelector(self._folder, allow_not_found=True)
        with contextlib.suppress(FileNotFoundError):
            for info in filesystem.get_file_info(selector):
                if info.is_file and info.path not in files:
                    filesystem.delete_file(info.path)


class RejectFile:
    """The file of one task's rejected rows."""

    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str) -> None:
        self.path = path
        self.count = 0
        self.reason = ""
        self._filesystem = filesystem
        self._out: IO[Any] | None = None

    def add(self, row: str, reason: str) -> None:
        """Write a rejected row."""
        if self._out is None:
            self._filesystem.create_dir(self.path.rpartition("/")[0], recursive=True)
            self._out = self._filesystem.open_output_stream(self.path)
        self.count += 1
        self.reason = reason
        self._out.write(_encode({"reason": reason, "row": row}) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._out is not None:
            self._out.close()
