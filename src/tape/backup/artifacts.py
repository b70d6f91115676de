"""Artifacts of a backup: copied with it, or referred to in the location where they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

import msgspec

from tape.backup.location import Location, StoredFile
from tape.backup.manifest import ArtifactList, BackupPart, Snapshot
from tape.backup.parts import PartWriter, read_part
from tape.errors import BackupDamaged

FOLDER = "artifacts"
# Three parts of an identity, and the SHA-256 of the content.
_PATH = re.compile(r"(=[^/\\\0]*/){3}(?P<digest>[0-9a-f]{64})\.(txt|json)")
# A field of an entry is no larger than a payload may be.
MAX_ARTIFACT_BYTES = 256 << 20


def copy_artifacts(
    source: Location, target: Location, folder: str, references: int, progress: Callable[[int], None]
) -> ArtifactList:
    """Copy the artifacts that the backup lacks; they never change. The list of all of them goes into the snapshot."""
    present = {file.path.removeprefix(f"{FOLDER}/"): file.size for file in target.list(FOLDER)}
    writer, count, size = PartWriter(), 0, 0
    parts: list[BackupPart] = []

    def close() -> None:
        content, part = writer.finish()
        path = f"{folder}/artifacts-{len(parts) + 1:04d}.gz"
        target.put(path, content)
        parts.append(msgspec.structs.replace(part, path=path))

    for file in _artifacts(source):
        if present.get(file.path) != file.size:
            target.put(f"{FOLDER}/{file.path}", _read(source, file))
        writer.add([file])
        count, size = count + 1, size + file.size
        progress(1)
        if writer.is_full:
            close()
            writer = PartWriter()
    if writer.rows:
        close()
    return ArtifactList(mode="copy", location=source.name, count=count, size=size, references=references, parts=parts)


def restore_artifacts(source: Location, snapshot: Snapshot, target: Location, progress: Callable[[int], None]) -> int:
    """Copy the artifacts of a snapshot to where a server expects them; their number."""
    present = {file.path: file.size for file in target.list()}
    count = 0
    for file in list_artifacts(source, snapshot):
        if present.get(file.path) != file.size:
            target.put(file.path, _read(source, file, FOLDER))
        count += 1
        progress(1)
    return count


def list_artifacts(source: Location, snapshot: Snapshot) -> Iterator[StoredFile]:
    """The artifacts that a snapshot lists."""
    for part in snapshot.artifacts.parts:
        content = source.get(part.path, part.size)
        if content is None:
            raise BackupDamaged(f"{part.path} is missing in {source.name}.")
        for rows in read_part(content, part, columns=2):
            for path, size in rows:
                if not (isinstance(path, str) and isinstance(size, int) and _is_path(path)):
                    raise BackupDamaged(f"{part.path} lists {path!r}, which is no artifact.")
                yield StoredFile(path, size)


def _artifacts(source: Location) -> Iterator[StoredFile]:
    return (file for file in source.list() if _is_path(file.path))


def _is_path(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


def _read(source: Location, file: StoredFile, folder: str = "") -> bytes:
    path = f"{folder}/{file.path}" if folder else file.path
    content = source.get(path, min(max(file.size, 0), MAX_ARTIFACT_BYTES))
    match = _PATH.fullmatch(file.path)
    assert match is not None, "the caller has checked the path"
    if content is None or hashlib.sha256(content).hexdigest() != match["digest"]:
        raise BackupDamaged(f"The artifact {path} of {source.name} is missing, or is not what was written.")
    return content
