"""The manifest of a backup: which journal it is of, its parts, and its snapshots.

`manifest.json` is replaced as a whole, after everything that it names was written. Each snapshot has a description of
its own, which the manifest names with its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tape.backup.location import Location
from tape.base import structs
from tape.errors import BackupDamaged, BackupMismatch, BackupTooNew
from tape.store.connection import ColumnKind

FORMAT = 1
FILE = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
# What a part may have at most, compressed or not.
MAX_PART_BYTES = 256 << 20
MAX_SEQ = (1 << 63) - 1
# Paths are made by us; a manifest that names others is refused, so that nothing outside of the backup is read.
_PATH = re.compile(r"(journal|snapshots/[0-9]{1,19}-[0-9a-f]{8})/[a-z0-9_-]+\.(gz|json)")
_NAME = re.compile(r"[0-9]{1,19}-[0-9a-f]{8}")
_HASH = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


class BackupPart(msgspec.Struct, frozen=True, kw_only=True):
    """A compressed file of rows: its sizes in bytes, compressed and not, and its SHA-256."""

    path: str
    size: int
    raw_size: int
    rows: int
    sha256: str


class Damage(msgspec.Struct, frozen=True):
    """A range of entries that were damaged in the journal when they were copied, because that was accepted."""

    first: int
    last: int
    problem: str


class JournalPart(BackupPart, frozen=True, kw_only=True):
    """A range of entries. `before` and `chain` are the chain values before the first and of the last."""

    first: int
    last: int
    before: str
    chain: str
    columns: list[str]
    # Entries that refer to artifacts.
    artifact_refs: int = 0


class SnapshotRef(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot: the head of the journal that it belongs to, and where its description is."""

    name: str
    global_seq: int
    chain: str
    epoch: int
    created_ms: int
    size: int
    sha256: str

    @property
    def path(self) -> str:
        """The path of its description."""
        return f"snapshots/{self.name}/snapshot.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a backup. Without a snapshot nothing can be restored from it yet."""

    format: int
    journal_id: str
    created_ms: int
    updated_ms: int
    journal: list[JournalPart] = []
    snapshots: list[SnapshotRef] = []
    damage: list[Damage] = []

    @property
    def last_seq(self) -> int:
        """The highest number that an entry of the backup has."""
        return max([part.last for part in self.journal] + [each.global_seq for each in self.snapshots], default=0)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a snapshot."""

    name: str
    columns: list[tuple[str, ColumnKind]]
    rows: int
    parts: list[BackupPart]


class ArtifactList(msgspec.Struct, frozen=True, kw_only=True):
    """Large fields of entries: copied into the backup, or where they stayed."""

    mode: str
    location: str
    count: int = 0
    size: int = 0
    # Entries of the backup's journal that refer to artifacts.
    references: int = 0
    # The list of the copied files: rows of path and size.
    parts: list[BackupPart] = []


class WalletKey(msgspec.Struct, frozen=True):
    """A master key outside of the database, and the secrets that cannot be decrypted without it."""

    key_id: str
    secrets: list[str]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All tables but the journal, as they were when the journal's head was `global_seq`."""

    format: int
    name: str
    journal_id: str
    epoch: int
    oldest: int
    anchor: str
    global_seq: int
    chain: str
    created_ms: int
    tape_version: str
    dialect: str
    migrations: list[tuple[int, str]]
    # The ranges of numbers that entries have: first and last of each epoch.
    ranges: list[tuple[int, int]]
    tables: list[Table]
    artifacts: ArtifactList
    wallet_keys: list[WalletKey]


def read_manifest(location: Location) -> Manifest | None:
    """The manifest of a location, checked; None if there is none."""
    content = location.get(FILE, MAX_MANIFEST_BYTES)
    if content is None:
        return None
    manifest = _decode(content, Manifest, FILE)
    _check_parts(manifest.journal, "journal")
    for part in manifest.journal:
        if not 0 < part.first <= part.last <= MAX_SEQ or part.rows > part.last - part.first + 1:
            raise BackupDamaged(f"{FILE} says that {part.path} has the entries {part.first} to {part.last}.")
        if not (_HASH.fullmatch(part.before) and _HASH.fullmatch(part.chain)):
            raise BackupDamaged(f"{FILE} has a chain value of {part.path} that is not 64 hexadecimal digits.")
    for each in manifest.snapshots:
        if not _NAME.fullmatch(each.name) or not 0 <= each.global_seq <= MAX_SEQ:
            raise BackupDamaged(f"{FILE} has the snapshot {each.name!r} at {each.global_seq}, which it cannot have.")
    return manifest


def existing_manifest(location: Location) -> Manifest:
    """The manifest of a location that must have one."""
    manifest = read_manifest(location)
    if manifest is None:
        raise BackupMismatch(f"{location.name} holds no backup: it has no manifest.json.")
    return manifest


def write_manifest(location: Location, manifest: Manifest) -> None:
    """Replace the manifest."""
    location.put(FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def read_snapshot(location: Location, ref: SnapshotRef) -> Snapshot:
    """The description of a snapshot, checked."""
    content = location.get(ref.path, MAX_MANIFEST_BYTES)
    if content is None:
        raise BackupDamaged(f"{ref.path} is missing in {location.name}.")
    if len(content) != ref.size or hashlib.sha256(content).hexdigest() != ref.sha256:
        raise BackupDamaged(f"{ref.path} is not what was written: its size or its SHA-256 differs from the manifest.")
    snapshot = _decode(content, Snapshot, ref.path)
    if (snapshot.global_seq, snapshot.chain, snapshot.name) != (ref.global_seq, ref.chain, ref.name):
        raise BackupDamaged(f"{ref.path} describes another snapshot than the manifest.")
    for table in snapshot.tables:
        _check_parts(table.parts, f"snapshots/{ref.name}")
    _check_parts(snapshot.artifacts.parts, f"snapshots/{ref.name}")
    return snapshot


def write_snapshot(location: Location, snapshot: Snapshot) -> SnapshotRef:
    """Write the description of a snapshot; the reference goes into the manifest."""
    content = msgspec.json.format(msgspec.json.encode(snapshot), indent=1)
    ref = SnapshotRef(
        name=snapshot.name,
        global_seq=snapshot.global_seq,
        chain=snapshot.chain,
        epoch=snapshot.epoch,
        created_ms=snapshot.created_ms,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    location.put(ref.path, content)
    return ref


def _decode(content: bytes, kind: type[T], path: str) -> T:
    try:
        version = structs.decode(content, _Versioned).format
        if version > FORMAT:
            raise BackupTooNew(
                f"{path} has the format {version}; this version of Tape reads up to {FORMAT}."
                " Upgrade Tape to restore it."
            )
        return structs.decode(content, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupDamaged(f"{path} is not a description of a backup: {error}.") from error


class _Versioned(msgspec.Struct):
    format: int


def _check_parts(parts: Sequence[BackupPart], folder: str) -> None:
    for part in parts:
        if not _PATH.fullmatch(part.path) or not part.path.startswith(f"{folder}/"):
            raise BackupDamaged(f"The manifest names the part {part.path!r}, which is no path of a backup.")
        if not (0 < part.size <= MAX_PART_BYTES and 0 < part.raw_size <= MAX_PART_BYTES and part.rows > 0):
            raise BackupDamaged(
                f"The manifest says that {part.path} has {part.size:,} bytes, {part.raw_size:,} without compression and"
                f" {part.rows:,} rows; a part has at most {MAX_PART_BYTES:,} bytes and at least one row."
            )
        if not _HASH.fullmatch(part.sha256):
            raise BackupDamaged(f"The manifest has a SHA-256 of {part.path} that is not 64 hexadecimal digits.")
