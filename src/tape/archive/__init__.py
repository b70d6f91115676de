"""The archive: journal entries that retention removed, in a Delta table of Parquet files.

Needs the extra `lake`, and neither Spark nor Java. Jobs on Spark write it; servers, the command line and Spark read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tape.errors import MissingExtra

if TYPE_CHECKING:
    from tape.archive.reader import ArchiveReader

__all__ = ["open_archive"]


def open_archive(url: str, options: Mapping[str, str] | None = None) -> ArchiveReader:
    """Open the archive at a URL for reading; it need not exist yet. Raises MissingExtra, PipelineInput."""
    try:
        from tape.archive.reader import ArchiveReader
    except ImportError as missing:
        if (missing.name or "").split(".")[0] == "tape":
            raise
        raise MissingExtra("An archive", "lake") from missing
    return ArchiveReader(url, options)
