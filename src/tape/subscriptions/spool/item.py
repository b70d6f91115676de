"""Items of a spool: a message with its plan and a SHA-256 over both, so that damage is detected."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec

from tape.base import structs
from tape.errors import DamagedSpoolItem

_UNSAFE = re.compile(r"[^A-Za-z0-9\-_.]")
_KEY = re.compile(r"(\d{20})-[A-Za-z0-9\-_.]{0,128}")


class SpoolItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A spooled message. `plan` is the routing that was resolved when it was received."""

    subscription: str
    source: str
    message_id: str
    idempotency_key: str | None = None
    dedup_key: str
    recv_seq: int
    first_seq: int = 0  # the lowest recv_seq of the same append
    ordering_key: str | None = None
    downstream: str
    sha256: str
    attempts: int
    spooled_at_ms: int
    reason: str
    message: dict[str, Any]
    plan: dict[str, Any]
    seal: str = ""

    @property
    def key(self) -> str:
        """The key of its object; keys sort in order of receipt."""
        return key_of(self.recv_seq, self.message_id)

    @property
    def ref(self) -> str:
        """Its reference in events."""
        return f"noetl://spool/{self.subscription}/{self.recv_seq}/{self.message_id}"

    def encode(self) -> bytes:
        """The bytes of its object."""
        self.seal = _seal(self)
        return msgspec.json.encode(self)


def decode(key: str, data: bytes) -> SpoolItem:
    """The item of an object. Raises DamagedSpoolItem if any bit of it changed."""
    try:
        item = structs.decode(data, SpoolItem)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedSpoolItem(f"{key} is torn or is no spooled message: {error}.") from error
    if item.seal != _seal(item) or item.sha256 != digest(item.message.get("data")):
        raise DamagedSpoolItem(f"{key} was altered after it was spooled: its sha256 does not match.")
    if item.key != key:
        raise DamagedSpoolItem(f"{key} holds the message of {item.key}: it was renamed after it was spooled.")
    return item


def key_of(recv_seq: int, message_id: str) -> str:
    """The key of an object: 20 digits, a dash, and up to 128 safe characters of the message id."""
    return f"{recv_seq:020}-{_UNSAFE.sub('_', message_id)[:128]}"


def sequence_of(key: str) -> int | None:
    """The sequence in an object's key; None if it is no key of a spool."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None


def digest(data: Any) -> str:
    """The sha256 of a message's data as compact JSON with sorted keys."""
    return hashlib.sha256(_canonical(data)).hexdigest()


def _seal(item: SpoolItem) -> str:
    fields = msgspec.to_builtins(item)
    fields.pop("seal", None)
    return hashlib.sha256(_canonical(fields)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
