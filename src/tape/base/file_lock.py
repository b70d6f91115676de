"""Locks on files. A lock ends with its process, however the process ends."""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows

    def lock_file(fd: int) -> None:
        """Lock the file; BlockingIOError if another process has locked it."""
        import msvcrt
        import os

        os.lseek(fd, 1 << 62, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except PermissionError as error:
            raise BlockingIOError(str(error)) from error
        finally:
            os.lseek(fd, 0, os.SEEK_END)

    def share_file(fd: int) -> None:
        """Nothing: Windows has no shared locks here."""

else:

    def lock_file(fd: int) -> None:
        """Lock the file; BlockingIOError if another process has locked it."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def share_file(fd: int) -> None:
        """Lock the file together with other processes that share it; BlockingIOError if one has it for itself.

        A file that this process has locked for itself becomes a shared one.
        """
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
