"""A bank in a file: every transfer is a line, and a transfer with a known key is not made again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Transfer:
    """A line of the book."""

    key: str
    account: str
    amount: int


class Bank:
    """Keeps its transfers on disk, so that they survive a crash of its clients. Also records all requests."""

    def __init__(self, folder: Path) -> None:
        self._book = folder / "book.jsonl"
        self._requests = folder / "requests.jsonl"

    def transfer(self, key: str, account: str, amount: int) -> str:
        """Move money to an account; the reference of the transfer that has this key, new or old."""
        self._write(self._requests, Transfer(key, account, amount))
        if self.find(key) is None:
            self._write(self._book, Transfer(key, account, amount))
        return self.find(key) or ""

    def find(self, key: str) -> str | None:
        """The reference of the transfer with that key, if it was made."""
        for number, line in enumerate(self.book, 1):
            if line.key == key:
                return f"T-{number:03}"
        return None

    @property
    def book(self) -> list[Transfer]:
        """The transfers that were made."""
        return self._read(self._book)

    @property
    def requests(self) -> list[Transfer]:
        """All requests, including retries."""
        return self._read(self._requests)

    @staticmethod
    def _write(path: Path, transfer: Transfer) -> None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(transfer)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _read(path: Path) -> list[Transfer]:
        return [Transfer(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
