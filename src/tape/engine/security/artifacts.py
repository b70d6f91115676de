"""Artifacts: large payload fields, stored in an object store by content hash; entries have a reference."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from tape.base.private_files import make_private_folder, open_private
from tape.errors import ArtifactStoreFailed, InvalidConfig, InvalidJson, MissingExtra, NotFound

MIMES = {"txt": "text/plain; charset=utf-8", "json": "application/json"}
_ID = re.compile(r"[0-9a-f]{64}\.(txt|json)")

Identity = tuple[str, str, str]


class Artifact(NamedTuple):
    """Content and what it is."""

    mime: str
    content: bytes


class Artifacts:
    """Artifacts by identity: each identity has a folder of its own, so a content hash gives no access to others."""

    def __init__(self, url: str, threshold_bytes: int) -> None:
        self._backend = _open(url)
        self.threshold_bytes = threshold_bytes

    async def get(self, identity: Identity, name: str) -> Artifact:
        """An artifact by its id."""
        match = _ID.fullmatch(name)
        if match is None:
            raise NotFound(f"no such artifact: {name!r}.")
        content = await self._backend.get(_path(identity, name))
        if content is None:
            raise NotFound(f"no such artifact: {name!r}.")
        return Artifact(MIMES[match[1]], content)

    def split(self, payload_json: str) -> tuple[str, dict[str, bytes]]:
        """The payload with every field over the threshold replaced by a reference, and these fields by name."""
        large: dict[str, bytes] = {}
        try:
            payload = self._replace(msgspec.json.decode(payload_json), large, is_field=False)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidJson(f"payload_json is not JSON whose large fields can be found: {error}.") from error
        return msgspec.json.encode(payload).decode() if large else payload_json, large

    async def store(self, identity: Identity, large: Mapping[str, bytes]) -> None:
        """Store large fields; entries refer to them."""
        for name, content in large.items():
            await self._backend.put(_path(identity, name), content)

    def _replace(self, value: Any, kept: dict[str, bytes], *, is_field: bool = True) -> Any:
        if isinstance(value, str):
            content = value.encode() if is_field else b""
            return self._keep(content, "txt", kept) if len(content) > self.threshold_bytes else value
        if isinstance(value, dict):
            value = {key: self._replace(item, kept) for key, item in value.items()}
        elif isinstance(value, list):
            value = [self._replace(item, kept) for item in value]
        else:
            return value
        if is_field and len(content := msgspec.json.encode(value)) > self.threshold_bytes:
            return self._keep(content, "json", kept)
        return value

    def _keep(self, content: bytes, suffix: str, kept: dict[str, bytes]) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        name = f"{digest}.{suffix}"
        kept[name] = content
        return {
            "artifact_ref": name,
            "mime": MIMES[suffix],
            "size_bytes": len(content),
            "hash": f"sha256:{digest}",
        }


def _path(identity: Identity, name: str) -> str:
    # A leading character, so that no part is empty or a dot.
    return "/".join([*(f"={quote(part, safe='')}" for part in identity), name])


# ── where they are ───────────────────────────────────────────────────────────────────────────────


class _ArtifactBackend(Protocol):
    async def put(self, path: str, content: bytes) -> None:
        """Keep content durably. The same path always has the same content."""

    async def get(self, path: str) -> bytes | None:
        """The content, or None."""


def _open(url: str) -> _ArtifactBackend:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _Folder(Path(url))
    if scheme == "file":
        return _Folder(Path(rest))
    return _Bucket(url)


class _Folder:
    """A folder of this machine; made when there is something to keep."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, path: str, content: bytes) -> None:
        try:
            await asyncio.to_thread(self._write, self._root / path, content)
        except OSError as error:
            raise ArtifactStoreFailed(f"The artifact folder {self._root} cannot be written: {error}.") from error

    async def get(self, path: str) -> bytes | None:
        try:
            return await asyncio.to_thread((self._root / path).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArtifactStoreFailed(f"The artifact folder {self._root} cannot be read: {error}.") from error

    def _write(self, target: Path, content: bytes) -> None:
        if target.exists():
            return
        make_private_folder(target.parent)
        draft = target.with_name(f".{uuid.uuid4().hex}")
        with open(draft, "xb", opener=open_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Bucket:
    """S3, GCS, Azure, through one library; credentials come from the environment as usual."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as missing:  # pragma: no cover - the extra is installed where this is tested
            raise MissingExtra(f"The artifact store {url}", "objects") from missing
        self._obstore = obstore
        self._errors = (BaseError, OSError)
        try:
            self._store: Any = from_url(url)
        except (BaseError, ValueError) as error:
            raise InvalidConfig(f"artifacts {url!r} is no folder and no object store: {error}.") from error

    async def put(self, path: str, content: bytes) -> None:
        try:
            await self._obstore.put_async(self._store, path, content)
        except self._errors as error:
            raise ArtifactStoreFailed(f"The artifact store failed: {error}.") from error

    async def get(self, path: str) -> bytes | None:
        try:
            found = await self._obstore.get_async(self._store, path)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None
        except self._errors as error:
            raise ArtifactStoreFailed(f"The artifact store failed: {error}.") from error
