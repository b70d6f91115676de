"""Contents of checkpoints: bytes that come back as they were written.

Small ones stand in the event that refers to them. Larger ones are values of the thread, named by their SHA-256 and cut
into parts, so that a part fits into a request and what did not change is stored once.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from tape.client.sync import TapeClient
from tape.durable.server_retry import call_with_retry
from tape.errors import CheckpointDamaged, VersionConflict

# Bytes that stand in the event itself.
INLINE_BYTES = 512
# Bytes of one part: in base64 it fits into the 1 MiB that a server takes.
PART_BYTES = 640 * 1024

# What an event has: a type and data, or a type, a hash and a number of bytes.
Ref = dict[str, Any]


class Contents:
    """Contents of the checkpoints of one thread."""

    def __init__(self, client: TapeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._stored: set[str] = set()

    def put(self, typed: tuple[str, bytes]) -> Ref:
        """Store content, and return what refers to it."""
        kind, data = typed
        if len(data) <= INLINE_BYTES:
            return {"type": kind, "data": base64.b64encode(data).decode()}
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._stored:
            for number, start in enumerate(range(0, len(data), PART_BYTES)):
                self._write(f"{digest}.{number}", data[start : start + PART_BYTES])
            self._stored.add(digest)
        return {"type": kind, "sha256": digest, "size": len(data)}

    def get(self, ref: Ref) -> tuple[str, bytes]:
        """Content as it was written."""
        if "data" in ref:
            return ref["type"], base64.b64decode(ref["data"])
        data = b"".join(self._read(key) for key in _keys(ref))
        if hashlib.sha256(data).hexdigest() != ref["sha256"]:
            raise CheckpointDamaged(
                f"The content {ref['sha256']} of a checkpoint in {self._namespace!r} is not what was written."
            )
        return ref["type"], data

    def delete(self, refs: Iterable[Ref]) -> None:
        """Delete contents that no checkpoint refers to any more."""
        for key in sorted({key for ref in refs if "sha256" in ref for key in _keys(ref)}):
            call_with_retry(self._client.delete_value, namespace=self._namespace, key=key)
        self._stored.clear()

    def _write(self, key: str, part: bytes) -> None:
        value_json = msgspec.json.encode(base64.b64encode(part).decode()).decode()
        wanted = {"namespace": self._namespace, "key": key, "value_json": value_json, "writer": "langgraph"}
        try:
            call_with_retry(self._client.write_value, **wanted, if_version=0)
        except VersionConflict:  # it is there already, or was deleted
            if not call_with_retry(self._client.get_value, namespace=self._namespace, key=key).found:
                call_with_retry(self._client.write_value, **wanted, if_version=-1)

    def _read(self, key: str) -> bytes:
        found = call_with_retry(self._client.get_value, namespace=self._namespace, key=key)
        if not found.found:
            raise CheckpointDamaged(f"The content {key} of a checkpoint in {self._namespace!r} was deleted.")
        return base64.b64decode(msgspec.json.decode(found.value.value_json, type=str))


def _keys(ref: Ref) -> list[str]:
    return [f"{ref['sha256']}.{number}" for number in range((ref["size"] + PART_BYTES - 1) // PART_BYTES)]
