"""What of the journal is wanted, as SQL where the database can tell, and as a test where it can't.

Everything that narrows a read meets here: the options `subject` and `where`. What the database cannot
decide exactly is decided on the batch.

Spark's own push-down (`DataSourceReader.pushFilters`) is not used: Spark 4.3 keeps the filters of one
query in the DataFrame and applies them to the next query on it, which then silently lacks rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from tape.cel import IndexKey, Predicate, compile_predicate
from tape.cel.syntax import Binary, Call, Literal, Logical, Name, Node
from tape.model.entry import Entry
from tape.model.pattern import Pattern

# Columns that hold the same text in the database, in Spark and in a predicate.
TEXTS = {
    name: f'"{name}"' if name == "user" else name
    for name in ("run_id", "kind", "tenant", "user", "session", "trace_id", "subject")
}
# More values than this are left to Spark.
MAX_VALUES = 200


class Condition(msgspec.Struct, frozen=True):
    """A piece of SQL and its parameters."""

    sql: str
    params: tuple[Any, ...] = ()


class Bounds(msgspec.Struct, frozen=True):
    """Where in the journal the wanted entries can lie: after, up to, and between two times in ms."""

    after: int = 0
    until: int | None = None
    from_ms: int | None = None
    before_ms: int | None = None

    def both(self, other: Bounds) -> Bounds:
        """What lies within both."""
        return Bounds(
            max(self.after, other.after),
            _least(self.until, other.until),
            max((m for m in (self.from_ms, other.from_ms) if m is not None), default=None),
            _least(self.before_ms, other.before_ms),
        )


class Selecting(msgspec.Struct, frozen=True):
    """The conditions of one reader; picklable, so that executors get them with their part."""

    pattern: str = ""
    where: str = ""

    @property
    def is_everything(self) -> bool:
        """Whether every entry is wanted, so that they can be counted."""
        return not self.where.strip() and Pattern(self.pattern).matches_everything

    @property
    def bounds(self) -> Bounds:
        """Where the predicate lets entries lie."""
        found = Bounds()
        for condition in conjuncts(compile_predicate(self.where).tree):
            found = found.both(_bounds(condition))
        return found

    def conditions(self) -> list[Condition]:
        """Everything that SQL is asked to leave out; exact, except for the option `where` and wildcards."""
        found = []
        pattern = Pattern(self.pattern)
        if pattern.is_literal:
            found.append(Condition("subject = ?", (pattern.prefix,)))
        elif pattern.prefix:
            found.append(_below(pattern.prefix))
        predicate = compile_predicate(self.where)
        found += [condition for key in predicate.index_keys if (condition := _of_key(key)) is not None]
        return found + [prefix for node in conjuncts(predicate.tree) if (prefix := _subject_prefix(node)) is not None]

    def needed(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The columns to read: those that are shown and those that a test looks at."""
        names = dict.fromkeys(columns)
        if self._tested_pattern() is not None:
            names["subject"] = None
        if self.where.strip():
            names |= dict.fromkeys(name for name in Entry.__struct_fields__ if name != "chain")
        return tuple(names)

    def test(self, *, decide_all: bool = False) -> Test | None:
        """What is left to decide on batches, if anything; all of it where no database has looked."""
        pattern, where = self._tested_pattern(), self.where.strip()
        if decide_all and not Pattern(self.pattern).matches_everything:
            pattern = Pattern(self.pattern)
        return Test(pattern, compile_predicate(where) if where else None) if pattern or where else None

    def _tested_pattern(self) -> Pattern | None:
        pattern = Pattern(self.pattern)
        wild = [segment for segment in pattern.segments if not isinstance(segment, str) or segment == "_"]
        is_exact = pattern.is_literal or (len(wild) == 1 and repr(wild[0]) == "**")
        return None if is_exact else pattern


class Test:
    """Decides about whole batches: a pattern once per distinct subject, a predicate once per entry."""

    def __init__(self, pattern: Pattern | None, predicate: Predicate | None) -> None:
        self._pattern = pattern
        self._predicate = predicate

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are wanted."""
        if self._pattern is not None:
            subjects = batch.column("subject").dictionary_encode()
            fits = pa.array([self._pattern.matches(subject) for subject in subjects.dictionary.to_pylist()], pa.bool_())
            batch = batch.filter(fits.take(subjects.indices))
        if self._predicate is not None:
            matches = self._predicate.matches
            batch = batch.filter(pa.array([matches(entry) for entry in entries_of(batch)], pa.bool_()))
        return batch


def entries_of(batch: pa.RecordBatch) -> Iterator[Entry]:
    """The rows of a batch as entries; a column that was not read is empty."""
    fields = []
    for name in Entry.__struct_fields__:
        index = batch.schema.get_field_index(name)
        if index >= 0:
            fields.append(batch.column(index).to_pylist())
        else:
            fields.append([b"" if name == "chain" else ""] * batch.num_rows)
    return map(Entry, *fields)


# ── what a predicate demands ─────────────────────────────────────────────────────────────────────


def conjuncts(node: Node) -> Iterator[Node]:
    """What `&&` joins: if one of them is false or an error, the predicate does not match."""
    if isinstance(node, Logical) and node.operator == "&&":
        for operand in node.operands:
            yield from conjuncts(operand)
    else:
        yield node


_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


def _bounds(node: Node) -> Bounds:
    """The bounds that a comparison of a place or a time with a number sets."""
    if not isinstance(node, Binary) or node.operator not in _MIRRORED:
        return Bounds()
    left, right, symbol = node.left, node.right, node.operator
    if isinstance(left, Literal):
        left, right, symbol = right, left, _MIRRORED[symbol]
    if not (isinstance(left, Name) and isinstance(right, Literal) and type(right.value) is int):
        return Bounds()
    number = right.value
    # The first number that is wanted, and the first that no longer is.
    first, beyond = {
        "<": (None, number),
        "<=": (None, number + 1),
        ">": (number + 1, None),
        ">=": (number, None),
        "==": (number, number + 1),
    }[symbol]
    if left.name == "global_seq":
        return Bounds((first or 1) - 1, None if beyond is None else beyond - 1)
    return Bounds(from_ms=first, before_ms=beyond) if left.name == "ts_ms" else Bounds()


def _subject_prefix(node: Node) -> Condition | None:
    match node:
        case Call(function="startsWith", receiver=Name(name="subject"), arguments=(Literal(value=str(prefix)),)):
            return _starts_with(prefix)
    return None


# ── SQL ──────────────────────────────────────────────────────────────────────────────────────────


def _equals(name: str, values: tuple[str, ...]) -> Condition:
    if not values:
        return Condition("1 = 0")
    return Condition(f"{TEXTS[name]} IN ({','.join('?' * len(values))})", values)


def _starts_with(prefix: str) -> Condition | None:
    if not prefix:
        return None
    # Bytes in UTF-8 sort as code points do; the last code point has no next one.
    last = ord(prefix[-1])
    if last in (0x10FFFF, 0xD7FF):
        return Condition(f"substr(subject, 1, {len(prefix)}) = ?", (prefix,))
    return Condition("(subject || '') >= ? AND (subject || '') < ?", (prefix, prefix[:-1] + chr(last + 1)))


def _below(prefix: str) -> Condition:
    """A subject and everything below it. The concatenation keeps planners at the journal's own order."""
    return Condition(
        "((subject || '') = ? OR ((subject || '') >= ? AND (subject || '') < ?))", (prefix, f"{prefix}/", f"{prefix}0")
    )


def _of_key(key: IndexKey) -> Condition | None:
    """What a predicate demands of one column, if the database can look."""
    if len(key.path) != 1 or key.path[0] not in TEXTS or len(key.values) > MAX_VALUES:
        return None
    return _equals(key.path[0], tuple(value for value in key.values if isinstance(value, str)))


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
