"""The checksum of an entry: CRC-32 over all of its columns, so that every reader can check every entry.

It is stored beside the entry and finds what disks, memory and stray writes do to it: every change of up to 32 adjacent
bits, and of other changes all but one in 4 billion. Against a forger it proves nothing; that is what the chain is for.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from tape.model.entry import COLUMNS

COUNT = len(COLUMNS)

encode = msgspec.msgpack.Encoder().encode


def checksum(fields: tuple[Any, ...]) -> int:
    """The checksum of an entry's columns, in the order of `entry.COLUMNS`."""
    return crc32(encode(fields))
