"""Dead letters in files of this machine: those of a relay, and rejected rows of an ingest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tape.errors import InvalidInput, NotFound
from tape.proto import tape_pb2 as pb

MAX_FILE_ITEMS = 10_000
PREVIEW_BYTES = 500

_RELAY = (
    "Not by this command: only the relay has the sink. `tape relay --sink … --redrive FILE` delivers the file again."
)
_INGEST = "Run the ingest again with this row, once its reason is mended; a repeated row is written once."


def read_relay_file(file: Path) -> Iterator[pb.DeadLetter]:
    """The dead letters that a relay or fan-out job appended to a file; incomplete lines are skipped."""
    try:
        lines = file.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"--file {file} cannot be read: {error.strerror}.") from error
    at_ms = int(file.stat().st_mtime * 1_000)
    with lines:
        for number, line in enumerate(lines, 1):
            fields = _decode(line)
            if "error" in fields:
                yield pb.DeadLetter(
                    id=f"relay/{file.name}:{number}",
                    origin="relay",
                    subject=str(fields.get("subject", "")),
                    message_id=str(fields.get("global_seq", "")),
                    dead_at_ms=at_ms,
                    reason=str(fields["error"])[:2_000],
                    attempts=1,
                    size_bytes=len(line.encode()),
                    redrive=_RELAY,
                    preview=line.strip(),
                )


def read_rejects(url: str) -> Iterator[pb.DeadLetter]:
    """The rejected rows of an ingest, in the folder or bucket of its `--rejects`."""
    import pyarrow.fs

    from tape.archive.location import open_filesystem

    filesystem = open_filesystem(url)
    try:
        infos = filesystem.get_file_info(pyarrow.fs.FileSelector("", recursive=True))
    except OSError as error:
        raise InvalidInput(f"--rejects {url} cannot be read: {error}.") from error
    for info in sorted(infos, key=lambda info: str(info.path)):
        if not info.is_file or not str(info.path).endswith(".jsonl"):
            continue
        with filesystem.open_input_stream(info.path) as stream:
            content = stream.read()
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
            fields = _decode(line)
            if "reason" in fields:
                row = str(fields.get("row", ""))
                yield pb.DeadLetter(
                    id=f"ingest/{str(info.path).lstrip('/')}:{number}",
                    origin="ingest",
                    dead_at_ms=int((info.mtime_ns or 0) // 1_000_000),
                    reason=str(fields["reason"])[:2_000],
                    attempts=1,
                    size_bytes=len(row.encode()),
                    redrive=_INGEST,
                    preview=row,
                )


def find_in_files(found: Iterator[pb.DeadLetter], dead_letter_id: str) -> pb.DeadLetter:
    """The dead letter of an id. Raises NotFound."""
    for each in found:
        if each.id == dead_letter_id:
            return each
    raise NotFound(f"There is no dead letter {dead_letter_id!r} in these files.")


def _decode(line: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
