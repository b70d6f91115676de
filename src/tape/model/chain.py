"""The hash chain: every entry seals itself and, through its predecessor, everything before it.

    chain(n) = SHA-256( chain(n-1) ‖ canonical(n) ),   chain(0) = 32 zero bytes

`canonical` is a fixed header of big-endian numbers (global_seq, seq, ts_ms: 64 bit; schema_version
and the byte lengths of the ten texts: 32 bit), then the texts in UTF-8 in the order of `TEXTS`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256

CHAIN_BYTES = 32
GENESIS = bytes(CHAIN_BYTES)
TEXTS = (
    "run_id",
    "kind",
    "subject",
    "payload_json",
    "trace_id",
    "span_id",
    "parent_span_id",
    "tenant",
    "user",
    "session",
)
_pack_header = struct.Struct(">3q11I").pack


def canonical(global_seq: int, seq: int, ts_ms: int, schema_version: int, texts: Sequence[str]) -> bytes:
    """An entry's unambiguous bytes. `texts` are in the order of `TEXTS`."""
    joined = "".join(texts)
    body = joined.encode()
    # Encoding all texts at once is far cheaper; in ASCII, characters and bytes have the same lengths.
    lengths = map(len, texts) if len(body) == len(joined) else [len(text.encode()) for text in texts]
    return _pack_header(global_seq, seq, ts_ms, schema_version, *lengths) + body


def link(previous: bytes, entry: bytes) -> bytes:
    """The chain value of an entry, given its predecessor's and its canonical bytes."""
    return sha256(previous + entry).digest()
