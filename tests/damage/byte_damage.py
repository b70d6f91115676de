"""Damage to the bytes of files: what disks, controllers and file systems do."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

SECTOR = 512

# Changes a range of a file. `old` is an earlier state of the whole file, or empty.
ByteDamage = Callable[[bytearray, range, bytes, random.Random], str]


def flip_bit(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """One bit."""
    at, bit = chance.choice(where), chance.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at}"


def change_byte(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """One byte becomes another."""
    at = chance.choice(where)
    before = data[at]
    data[at] = (before + chance.randint(1, 255)) % 256
    return f"byte {at} from {before:#04x} to {data[at]:#04x}"


def zero_sector(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """512 bytes become zero."""
    at = chance.choice(range(where.start, where.stop, SECTOR))
    end = min(at + SECTOR, where.stop)
    data[at:end] = bytes(end - at)
    return f"bytes {at} to {end - 1} zeroed"


def swap_sectors(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """512 bytes change places with 512 others of the file."""
    first = chance.choice(range(where.start, where.stop, SECTOR))
    second = chance.choice(range(0, len(data) - SECTOR + 1, SECTOR))
    _swap(data, first, second, SECTOR)
    return f"sectors at {first} and {second} swapped"


def swap_pages(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """A page changes places with another one of the file."""
    size = len(where)
    second = chance.choice([at for at in range(0, len(data) - size + 1, size) if at != where.start] or [where.start])
    _swap(data, where.start, second, size)
    return f"pages at {where.start} and {second} swapped"


def restore_page(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """An old copy of a page is back, as if the last write to it had been lost."""
    before = old[where.start : where.stop]
    data[where.start : where.stop] = before + bytes(len(where) - len(before))
    return f"an old copy of the page at {where.start}" if before else f"the page at {where.start} was never written"


def zero_page(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """A whole page becomes zero."""
    data[where.start : where.stop] = bytes(len(where))
    return f"the page at {where.start} zeroed"


def cut(data: bytearray, where: range, old: bytes, chance: random.Random) -> str:
    """The file ends early."""
    at = chance.choice(where)
    del data[at:]
    return f"cut at byte {at}"


KINDS: dict[str, ByteDamage] = {
    "bit flipped": flip_bit,
    "byte changed": change_byte,
    "sector zeroed": zero_sector,
    "sectors swapped": swap_sectors,
    "pages swapped": swap_pages,
    "page zeroed": zero_page,
    "old page back": restore_page,
    "file cut": cut,
}


def damage_file(
    path: Path, kind: str, where: range, chance: random.Random, old: Path | None = None, extent: int = -1
) -> str:
    """Damage a range of a file; says what was done. What follows the first `extent` bytes is not read."""
    with path.open("r+b") as file:  # in place: owner and mode stay
        data = bytearray(file.read(extent))
        size = len(data)
        before = old.read_bytes() if old is not None and old.exists() else b""
        done = KINDS[kind](data, where, before, chance)
        file.seek(0)
        file.write(data)
        if len(data) < size:
            file.truncate(len(data))
    return done


def _swap(data: bytearray, first: int, second: int, size: int) -> None:
    size = min(size, len(data) - max(first, second))
    one, other = data[first : first + size], data[second : second + size]
    data[first : first + size], data[second : second + size] = other, one
