"""Comparison of stored checksums with what the chain proves: a wrong checksum beside a whole entry is damage too."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from tape.journal.salvage import UNAVAILABLE
from tape.model.chain import TEXTS
from tape.model.checksum import checksum
from tape.model.entry import Entry
from tape.store import Reader
from tape.store.connection import Row

_ROW = ("global_seq", "seq", "ts_ms", "schema_version", *TEXTS, "chain")
_in_order_of_columns = itemgetter(*(_ROW.index(name) for name in Entry.__struct_fields__))


def checksum_of(row: Row) -> int:
    """The checksum of an entry as `read_entries` gives it."""
    return checksum(_in_order_of_columns(row))


def compare_checksums(
    reader: Reader, proven: Sequence[tuple[int, int]], first: int, last: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The proven entries of a range without a checksum, and those with another one, each with the right one."""
    try:
        stored: dict[int, object] = dict(
            reader.query(
                "SELECT global_seq, checksum FROM tape_journal WHERE global_seq >= ? AND global_seq <= ?", first, last
            )
        )
    except UNAVAILABLE:
        raise
    except Exception:  # a damaged page; its entries are named already
        return [], []
    missing: list[tuple[int, int]] = []
    wrong: list[tuple[int, int]] = []
    for number, right in proven:
        found = stored.get(number)
        if found != right:
            (missing if found is None else wrong).append((number, right))
    return missing, wrong
