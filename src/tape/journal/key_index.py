"""Indexes of the journal by subject and by identity, for readers that want few of many entries.

PostgreSQL has them as indexes of the table of entries. In SQLite a commit of a few entries would write a page of each
index for nearly each entry, so the keys are in tables of their own, in blocks of 16,384 numbers, and are added behind
the commits: in order, some thousands at a time, only to the pages of the newest block. A lookup searches each block
up to the last number that is indexed, the *watermark*, and reads the entries after it, which are few, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from tape.store import Reader, Transaction
from tape.store.connection import Dialect, Row

BLOCK_BITS = 14
# An append that leaves so many entries behind the watermark indexes them in its own transaction.
MAX_LAG = 2_048

# The watermark of SQLite; 0 if nothing is indexed.
_WATERMARK = "coalesce((SELECT last_seq FROM tape_journal_blocks ORDER BY block DESC LIMIT 1), 0)"
# The watermark as a column of a SELECT. PostgreSQL indexes every entry in its own transaction.
WATERMARK: dict[Dialect, str] = {"sqlite": _WATERMARK, "postgres": "(SELECT global_seq FROM tape_head WHERE id = 1)"}
# The tables of SQLite that are made from the journal.
TABLES = ("tape_journal_subjects", "tape_journal_identities", "tape_journal_blocks")


class KeyIndex(msgspec.Struct, frozen=True):
    """An index by a key: its table in SQLite, its columns, and a column that is not empty in every entry it has."""

    table: str
    columns: tuple[str, ...]
    partial_on: str = ""

    @property
    def condition(self) -> str:
        """The entries that the index has."""
        return f"{self.partial_on} <> ''" if self.partial_on else "1 = 1"


SUBJECTS = KeyIndex("tape_journal_subjects", ("subject",))
IDENTITIES = KeyIndex("tape_journal_identities", ("tenant", '"user"', "session"), partial_on="session")
KEY_INDEXES = (SUBJECTS, IDENTITIES)


class KeyLookup(msgspec.Struct, frozen=True):
    """The entries of some keys: `condition` is on the columns of one key, written `{0}.subject`, `keys` its parameters.

    `where` is a further condition on columns of entries, written `j.tenant`. `is_exact` says that the condition is for
    one key, whose entries are in order in the index, and not for a range of keys.
    """

    index: KeyIndex
    condition: str
    keys: Sequence[Sequence[Any]]
    where: str = ""
    where_params: Sequence[Any] = ()
    is_exact: bool = True

    def select(
        self, reader: Reader | Transaction, columns: str, after: int, until: int, limit: int, *, newest: bool = False
    ) -> list[Row]:
        """Columns of the first or of the newest entries in a range of numbers, in that order."""
        order = "DESC" if newest else "ASC"
        arms = self._sqlite_arms(order) if reader.dialect == "sqlite" else self._postgres_arms(order)
        union = " UNION ALL ".join(f"SELECT * FROM ({arm}) AS a{index}" for index, arm in enumerate(arms))
        params: list[Any] = []
        blocks = (after >> BLOCK_BITS, until >> BLOCK_BITS) if reader.dialect == "sqlite" else ()
        bounds = (*self.where_params, after, until, limit)
        for key in self.keys:
            params += (*blocks, *key, *bounds)
        if reader.dialect == "sqlite":
            params += (*chain.from_iterable(self.keys), *bounds)
        return reader.query(
            f"SELECT {columns} FROM tape_journal WHERE global_seq IN ({union} ORDER BY 1 {order} LIMIT ?)"
            f" ORDER BY global_seq {order}",
            *params,
            limit,
        )

    def count(self, reader: Reader, limit: int) -> int:
        """How many entries are indexed under the keys, at most `limit` for each."""
        source = "tape_journal AS i"
        if reader.dialect == "sqlite":
            source = f"tape_journal_blocks AS b CROSS JOIN {self.index.table} AS i ON i.block = b.block"
        few = f"SELECT 1 FROM {source} WHERE {self.condition.format('i')} LIMIT ?"
        rows = [reader.one(f"SELECT count(*) FROM ({few}) AS few", *key, limit) for key in self.keys]
        return sum(row[0] for row in rows if row is not None)

    def _sqlite_arms(self, order: str) -> list[str]:
        # CROSS JOIN keeps the order of the loops, in which the entries of one key are in order.
        entries = " CROSS JOIN tape_journal AS j ON j.global_seq = i.global_seq" if self.where else ""
        where = f" AND {self.where}" if self.where else ""
        indexed = (
            f"SELECT i.global_seq FROM tape_journal_blocks AS b CROSS JOIN {self.index.table} AS i ON i.block = b.block"
            f"{entries} WHERE b.block >= ? AND b.block <= ? AND {self.condition.format('i')}{where}"
            f" AND i.global_seq > ? AND i.global_seq <= ? ORDER BY b.block {order}, i.global_seq {order} LIMIT ?"
        )
        keys = " OR ".join([f"({self.condition.format('j')})"] * len(self.keys))
        newer = (
            f"SELECT j.global_seq FROM tape_journal AS j WHERE ({keys}){where}"
            f" AND j.global_seq > max({_WATERMARK}, ?) AND j.global_seq <= ? ORDER BY j.global_seq {order} LIMIT ?"
        )
        return [*[indexed] * len(self.keys), newer]

    def _postgres_arms(self, order: str) -> list[str]:
        where = f" AND j.{self.index.condition}" if self.index.partial_on else ""
        where += f" AND {self.where}" if self.where else ""
        # Over a range of keys the index is not in order: the sign keeps the planner from scanning the journal in order
        # instead of sorting a few numbers.
        number = "j.global_seq" if self.is_exact else "+j.global_seq"
        return [
            f"SELECT j.global_seq FROM tape_journal AS j WHERE {self.condition.format('j')}{where}"
            f" AND {number} > ? AND {number} <= ? ORDER BY {number} {order} LIMIT ?"
        ] * len(self.keys)


def look_up_subject(*subjects: str, where: str = "", where_params: Sequence[Any] = ()) -> KeyLookup:
    """The entries of some subjects."""
    return KeyLookup(SUBJECTS, "{0}.subject = ?", [(each,) for each in subjects], where, where_params)


def look_up_subjects_below(prefix: str) -> KeyLookup:
    """The entries of a subject and of all subjects below it."""
    # "0" is the character after "/".
    return KeyLookup(SUBJECTS, "{0}.subject >= ? AND {0}.subject < ?", [(prefix, prefix + "0")], is_exact=False)


def look_up_identities(identities: Sequence[tuple[str, str, str]]) -> KeyLookup:
    """The entries of some identities: tenant, user and a session that is not empty."""
    return KeyLookup(IDENTITIES, '{0}.tenant = ? AND {0}."user" = ? AND {0}.session = ?', identities)


def read_watermark(reader: Reader) -> int:
    """The last number that is indexed; lookups read the entries after it one by one."""
    row = reader.one(f"SELECT {WATERMARK[reader.dialect]}")
    return int(row[0]) if row is not None else 0


def index_entries(tx: Transaction, after: int) -> None:
    """Add the keys of all entries after the watermark to the tables of SQLite."""
    while (row := tx.one("SELECT min(global_seq) FROM tape_journal WHERE global_seq > ?", after)) and row[0]:
        block = row[0] >> BLOCK_BITS
        until = ((block + 1) << BLOCK_BITS) - 1
        for index in KEY_INDEXES:
            keys = ", ".join(index.columns)
            # A damaged watermark must not keep entries from being appended.
            tx.execute(
                f"INSERT INTO {index.table} SELECT ?, {keys}, global_seq FROM tape_journal"
                f" WHERE global_seq > ? AND global_seq <= ? AND {index.condition} ORDER BY {keys}, global_seq"
                " ON CONFLICT DO NOTHING",
                block,
                after,
                until,
            )
        tx.execute(
            "INSERT INTO tape_journal_blocks SELECT ?, max(global_seq) FROM tape_journal WHERE global_seq <= ?"
            " ON CONFLICT (block) DO UPDATE SET last_seq = excluded.last_seq",
            block,
            until,
        )
        after = until


def drop_blocks(tx: Transaction, oldest: int) -> None:
    """Delete the blocks of SQLite in which `oldest` leaves no entry. The last one has the watermark and stays."""
    if tx.dialect == "sqlite":
        last = "(SELECT max(block) FROM tape_journal_blocks)"
        for table in TABLES:
            tx.execute(f"DELETE FROM {table} WHERE block < ? AND block < {last}", oldest >> BLOCK_BITS)


def rebuild_key_indexes(tx: Transaction) -> None:
    """Make the tables of SQLite anew from the journal."""
    for table in TABLES:
        tx.execute(f"DELETE FROM {table}")
    index_entries(tx, 0)
