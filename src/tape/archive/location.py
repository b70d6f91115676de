"""The location of an archive: a local folder, or the URL of an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.fs
from deltalake.fs import DeltaStorageHandler

from tape.errors import PipelineInput


def resolve_url(url: str) -> str:
    """Resolve an archive's URL so that it means the same in every process of a cluster."""
    if not url:
        raise PipelineInput("The archive's location is missing: give a folder or a URL such as s3://bucket/tape.")
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    return url.rstrip("/") if "://" in url else str(Path(url).expanduser().resolve())


def open_filesystem(url: str, options: Mapping[str, str] | None = None) -> pyarrow.fs.FileSystem:
    """How to reach the files of a resolved URL; paths are relative to it.

    An object store is reached as the table's own log is: with the same options and the same environment variables.
    """
    if "://" in url:
        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(url, dict(options or {})))
    return pyarrow.fs.SubTreeFileSystem(url, pyarrow.fs.LocalFileSystem())
