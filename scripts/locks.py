"""Reads lock files: which releases are pinned, with the hashes of their files and what needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PARENT = re.compile(r"^    #(?: via|  ) +(?P<name>[A-Za-z0-9._-]+)(?: \(pyproject\.toml\))?$")


class Release(NamedTuple):
    """A pinned release. `needed_by` has the names of the packages that depend on it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]


def read_lock(path: Path) -> list[Release]:
    """The releases of a lock file, in its order."""
    return [_release(block) for block in _blocks(path.read_text())]


def normalized(name: str) -> str:
    """The name of a package in the form that registries and advisories use."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _blocks(text: str) -> Iterator[list[str]]:
    block: list[str] = []
    for line in text.splitlines():
        if _PIN.match(line) and block:
            yield block
            block = []
        if line.strip():
            block.append(line)
    if block:
        yield block


def _release(lines: list[str]) -> Release:
    pin = _PIN.match(lines[0])
    if pin is None:
        raise ValueError(f"{lines[0]!r} pins no release.")
    hashes = tuple(sorted(found for line in lines for found in _HASH.findall(line)))
    if not hashes:
        raise ValueError(f"{pin['name']} has no hashes; write the lock files with `make lock`.")
    parents = sorted({normalized(found["name"]) for line in lines if (found := _PARENT.match(line))})
    return Release(normalized(pin["name"]), pin["version"], hashes, tuple(parents))
