"""An exclusive lock on a file, so that it has one writer."""

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

else:

    def lock_file(fd: int) -> None:
        """Lock the file; BlockingIOError if another process has locked it."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
