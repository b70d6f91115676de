"""Parts: rows of a table in a compressed file.

A part is a gzip file of frames, each the number of its bytes (32 bit, big-endian) and an array of rows in MessagePack.
MessagePack has the types of both dialects without loss: 64-bit integers, doubles, texts, bytes and null.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tape.backup.manifest import MAX_PART_BYTES, BackupPart
from tape.errors import BackupDamaged, BackupLocationFailed
from tape.store.connection import Row

# A part is closed when its rows have so many bytes, so that one fits in memory while it is written and read.
PART_BYTES = 32 << 20
FRAME_BYTES = 1 << 20
_STEP = 1 << 20
_GZIP = 31
_LEVEL = 4

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode
_TYPES = frozenset({int, float, str, bytes, type(None)})


class PartWriter:
    """Collects rows of one part."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._compressed: list[bytes] = []
        self._frame: list[bytes] = []
        self._frame_bytes = 0
        self.rows = 0
        self.raw_size = 0

    @property
    def is_full(self) -> bool:
        """Whether the part should be closed."""
        return self.raw_size >= PART_BYTES

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        for row in rows:
            encoded = _encode(row)
            self._frame.append(encoded)
            self._frame_bytes += len(encoded)
            if self._frame_bytes >= FRAME_BYTES:
                self._close_frame()
        self.rows += len(rows)

    def finish(self) -> tuple[bytes, BackupPart]:
        """The file, and its description without a path."""
        self._close_frame()
        content = b"".join([*self._compressed, self._compressor.flush()])
        if max(len(content), self.raw_size) > MAX_PART_BYTES:
            raise BackupLocationFailed(
                f"A row has {self.raw_size:,} bytes; a part of a backup has at most {MAX_PART_BYTES:,}."
            )
        digest = hashlib.sha256(content).hexdigest()
        return content, BackupPart(path="", size=len(content), raw_size=self.raw_size, rows=self.rows, sha256=digest)

    def _close_frame(self) -> None:
        if not self._frame:
            return
        # An array of 32-bit length.
        frame = b"".join([b"\xdd", len(self._frame).to_bytes(4, "big"), *self._frame])
        framed = len(frame).to_bytes(4, "big") + frame
        self._compressed.append(self._compressor.compress(framed))
        self.raw_size += len(framed)
        self._frame, self._frame_bytes = [], 0


def read_part(content: bytes, part: BackupPart, columns: int) -> Iterator[list[Row]]:
    """The rows of a part, verified against its description before the first is returned.

    What it decompresses to is bounded by the description, whose numbers the manifest's reader has bounded.
    """
    if len(content) != part.size or hashlib.sha256(content).hexdigest() != part.sha256:
        raise BackupDamaged(f"{part.path} is not what was written: its size or its SHA-256 differs from the manifest.")
    return _rows(content, part, columns)


def _rows(content: bytes, part: BackupPart, columns: int) -> Iterator[list[Row]]:
    rows = 0
    for frame in _frames(content, part):
        try:
            batch: list[Any] = _decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BackupDamaged(f"{part.path} has a frame that is no rows: {error}.") from error
        if any(len(row) != columns for row in batch):
            raise BackupDamaged(f"{part.path} has a row without a value for each of its {columns} columns.")
        if not {type(value) for row in batch for value in row} <= _TYPES:
            raise BackupDamaged(f"{part.path} has a value that no column has.")
        rows += len(batch)
        yield [tuple(row) for row in batch]
    if rows != part.rows:
        raise BackupDamaged(f"{part.path} has {rows:,} rows, and the manifest says {part.rows:,}.")


def _frames(content: bytes, part: BackupPart) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(_GZIP)
    buffer = bytearray()
    left, rest = part.raw_size, content
    try:
        while not decompressor.eof:
            some = decompressor.decompress(rest, _STEP)
            rest = decompressor.unconsumed_tail
            left -= len(some)
            if left < 0 or (not some and not rest and not decompressor.eof):
                raise BackupDamaged(f"{part.path} does not decompress to the {part.raw_size:,} bytes of the manifest.")
            buffer += some
            while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "big")):
                yield bytes(buffer[4:end])
                del buffer[:end]
    except zlib.error as error:
        raise BackupDamaged(f"{part.path} cannot be decompressed: {error}.") from error
    if buffer or left or decompressor.unused_data:
        raise BackupDamaged(f"{part.path} does not decompress to the {part.raw_size:,} bytes of the manifest.")
