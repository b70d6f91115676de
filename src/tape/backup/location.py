"""Where a backup is: a folder of this machine, or a bucket of an object store."""

from __future__ import annotations

import contextlib
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tape.base.file_lock import lock_file
from tape.base.private_files import make_private_folder, open_private
from tape.base.url_mask import mask_urls
from tape.errors import BackupBusy, BackupLocationFailed, InvalidConfig, MissingExtra

LOCK = ".lock"
# A bucket has no lock: what another backup may still be writing is not taken for the rest of an interrupted one.
UNFINISHED_FOR = timedelta(days=1)


class StoredFile(NamedTuple):
    """A file of a location; its path is relative to the location, with slashes."""

    path: str
    size: int


class Location(ABC):
    """Files by path. What was put is durable on return, and is there whole or not at all."""

    name: str
    is_local = False

    @abstractmethod
    def put(self, path: str, content: bytes) -> None:
        """Write a file, over the one that is there."""

    @abstractmethod
    def get(self, path: str, max_bytes: int) -> bytes | None:
        """The content of a file, or None. One that is larger is refused without reading it."""

    @abstractmethod
    def list(self, folder: str = "", *, only_abandoned: bool = False) -> Iterator[StoredFile]:
        """The files below a folder; on request without those that another process may still be writing."""

    @abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Remove files."""

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude another backup to this location, where that is possible."""
        yield

    def _too_large(self, path: str, size: int, max_bytes: int) -> BackupLocationFailed:
        return BackupLocationFailed(f"{path} of {self.name} has {size:,} bytes; at most {max_bytes:,} are accepted.")


def open_location(url: str) -> Location:
    """A folder, or file://, s3://, gs:// or az://. Credentials of a bucket come from the environment."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FolderLocation(Path(url).expanduser())
    if scheme == "file":
        return FolderLocation(Path(rest))
    return BucketLocation(url)


class FolderLocation(Location):
    """A folder; made, with the mode 0700, when there is something to write. Its files have the mode 0600."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)

    def put(self, path: str, content: bytes) -> None:
        target = self.root / path
        draft = target.with_name(f".{uuid.uuid4().hex}")
        try:
            make_private_folder(target.parent)
            with open(draft, "xb", opener=open_private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise BackupLocationFailed(f"{target} cannot be written: {error}.") from error

    def get(self, path: str, max_bytes: int) -> bytes | None:
        try:
            with (self.root / path).open("rb") as file:
                content = file.read(max_bytes + 1)
                if len(content) > max_bytes:
                    raise self._too_large(path, os.fstat(file.fileno()).st_size, max_bytes)
                return content
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise BackupLocationFailed(f"{self.root / path} cannot be read: {error}.") from error

    def list(self, folder: str = "", *, only_abandoned: bool = False) -> Iterator[StoredFile]:
        for parent, _, names in os.walk(self.root / folder):
            for name in names:
                file = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # a draft that was just renamed
                    yield StoredFile(file.relative_to(self.root).as_posix(), file.stat().st_size)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            (self.root / path).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other files are in it
                (self.root / path).parent.rmdir()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        if self.root.is_file():
            raise BackupLocationFailed(
                f"{self.root} is a file. Name a folder: a new one, or that of the backups before."
            )
        try:
            make_private_folder(self.root)
            descriptor = os.open(self.root / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise BackupLocationFailed(f"{self.root} cannot be written: {error}.") from error
        try:
            lock_file(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BackupBusy(f"Another backup to {self.root} is running. Wait for its end.") from error
        try:
            yield
        finally:
            os.close(descriptor)


class BucketLocation(Location):
    """A bucket, or a prefix in it, through obstore."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as missing:  # pragma: no cover - the extra is installed where this is tested
            raise MissingExtra(f"The location {mask_urls(url)}", "objects") from missing
        self.name = mask_urls(url)
        self._obstore = obstore
        self._errors = (BaseError, OSError)
        try:
            self._store: Any = from_url(url)
        except (BaseError, ValueError) as error:
            raise InvalidConfig(f"{self.name!r} is neither a folder nor an object store: {error}.") from error

    def put(self, path: str, content: bytes) -> None:
        with self._translated():
            self._obstore.put(self._store, path, content)

    def get(self, path: str, max_bytes: int) -> bytes | None:
        with self._translated():
            try:
                found = self._obstore.get(self._store, path)
            except FileNotFoundError:
                return None
            if found.meta["size"] > max_bytes:
                raise self._too_large(path, found.meta["size"], max_bytes)
            return bytes(found.bytes())

    def list(self, folder: str = "", *, only_abandoned: bool = False) -> Iterator[StoredFile]:
        newest = datetime.now(UTC) - UNFINISHED_FOR
        with self._translated():
            for chunk in self._obstore.list(self._store, folder or None, chunk_size=1000):
                for each in chunk:
                    if not only_abandoned or each["last_modified"] < newest:
                        yield StoredFile(each["path"], each["size"])

    def delete(self, paths: Sequence[str]) -> None:
        if paths:
            with self._translated(), contextlib.suppress(FileNotFoundError):
                self._obstore.delete(self._store, list(paths))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            # The library's messages can have many lines with the request; the first line has the cause.
            raise BackupLocationFailed(f"{self.name} cannot be used: {str(error).splitlines()[0]}.") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
