"""The cursor of a relay, in a file that is replaced atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from tape.base.file_lock import lock_file
from tape.client import AsyncTapeClient
from tape.errors import CursorFileInUse, EntryDamaged, InvalidCursorFile, TapeFileUnusable


class OldCursor(NamedTuple):
    """A cursor of older relays, by time: everything up to this entry was published."""

    from_ts_ms: int
    last_run_id: str
    last_seq: int

    def has_passed(self, entry: Any) -> bool:
        """Whether an entry comes before the cursor in the order of time, run and seq."""
        return (entry.ts_ms, entry.run_id, entry.seq) <= self


class CursorFile:
    """`{"last_global_seq": N}` in a file that one relay has locked. Without a path it is in memory only."""

    def __init__(self, path: str | os.PathLike[str] = "") -> None:
        self.path = Path(path) if os.fspath(path) else None
        self.position = 0
        self.old: OldCursor | None = None  # the cursor before its conversion
        self._is_old = False
        self._lock = -1
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_exclusively(self.path)
            try:
                self._load(self.path)
            except BaseException:
                self.close()
                raise

    def save(self, position: int) -> None:
        """Save a position; it is on the disk on return."""
        if self.path is not None and (position != self.position or self._is_old):
            scratch = self.path.with_name(f"{self.path.name}.tmp")
            try:
                with scratch.open("w") as file:
                    json.dump({"last_global_seq": position}, file)
                    file.flush()
                    os.fsync(file.fileno())
                scratch.replace(self.path)
            except OSError as error:
                raise TapeFileUnusable(f"The cursor cannot be written to {self.path}: {error}.") from error
        self.position = position
        self._is_old = False

    async def convert(self, client: AsyncTapeClient) -> None:
        """Convert a cursor by time to a position. The entries of its last millisecond are compared one by one."""
        if self.old is not None:
            self.position = await position_before(client, self.old.from_ts_ms)

    def close(self) -> None:
        """Unlock the file."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _lock_exclusively(self, path: Path) -> None:
        self._lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock_file(self._lock)
        except BlockingIOError:
            self.close()
            raise CursorFileInUse(f"Another relay is running with the cursor {path}.") from None

    def _load(self, path: Path) -> None:
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        except ValueError as error:
            raise InvalidCursorFile(f"{path} is not JSON ({error}). {_REMEDY}") from error
        if not isinstance(found, dict) or not {"last_global_seq", "from_ts_ms"} & found.keys():
            raise InvalidCursorFile(f"{path} has no last_global_seq. {_REMEDY}")
        numbers = {name: found.get(name, 0) for name in ("last_global_seq", "from_ts_ms", "last_seq")}
        for name, value in numbers.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InvalidCursorFile(f"{path} has {name} {value!r}, which is not an integer from 0. {_REMEDY}")
        if "last_global_seq" in found:
            self.position = numbers["last_global_seq"]
        else:
            self._is_old = True
            self.old = OldCursor(numbers["from_ts_ms"], str(found.get("last_run_id", "")), numbers["last_seq"])


_REMEDY = 'Restore it, write {"last_global_seq": N}, or remove it to start from the oldest entry.'


async def position_before(client: AsyncTapeClient, ts_ms: int) -> int:
    """The global_seq before the first entry from a time on."""
    head = await client.head()
    if ts_ms <= 0 or head.global_seq == 0:
        return 0
    # Times never decrease along the journal, so the newest entry shows whether any entry is that late.
    newest = await _newest(client, head.global_seq)
    if newest is None or newest.ts_ms < ts_ms:
        return int(head.global_seq)
    first = await _first(client.subscribe_events(from_ts_ms=ts_ms, skip_gaps=True))
    return int(first.global_seq) - 1


async def _newest(client: AsyncTapeClient, number: int) -> Any | None:
    """The newest entry up to a number that can be read; None if none can."""
    while number > 0:
        try:
            return await _first(client.subscribe_by_subject(subject_pattern="", from_global_seq=number - 1))
        except EntryDamaged as error:
            number = error.first - 1
    return None


async def _first(stream: Any) -> Any:
    try:
        return await anext(stream)
    finally:
        await stream.aclose()
