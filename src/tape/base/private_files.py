"""Files and folders that only their owner can read."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def open_private(path: str, flags: int) -> int:
    """An opener for `open()`: a new file has the mode 0600."""
    return os.open(path, flags, FILE_MODE)


def create_private(path: Path) -> None:
    """Create an empty file with the mode 0600 unless there is one. Who opens the file reports what prevents this."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))


def make_private_folder(path: Path) -> None:
    """Make a folder and the missing ones above it, each with the mode 0700."""
    if path.is_dir():
        return
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(FOLDER_MODE, exist_ok=True)


def state_folder() -> Path:
    """Where a process keeps what must survive it and belongs to no database file: `$STATE_DIRECTORY` of a systemd unit,
    `$XDG_STATE_HOME/tape`, or `~/.local/state/tape`."""
    if unit := os.environ.get("STATE_DIRECTORY"):
        return Path(unit.partition(":")[0])
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - never raises
    return Path(home) / "tape"


def is_private(path: Path) -> bool:
    """Whether only the owner can use the file or folder; also if it does not exist."""
    try:
        return os.name == "nt" or not stat.S_IMODE(path.stat().st_mode) & 0o077
    except OSError:
        return True
