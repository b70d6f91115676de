"""The selection of entries by the options `subject` and `where`: as SQL where possible, else on record batches.

Spark's own push-down (`DataSourceReader.pushFilters`) is not used: Spark 4.3 keeps the filters of one query in the
DataFrame and applies them to the next query on it, which then silently lacks rows.
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

# Columns with the same text in the database, in Spark and in a predicate.
TEXTS = {
    name: f'"{name}"' if name == "user" else name
    for name in ("run_id", "kind", "tenant", "user", "session", "trace_id", "subject")
}
# A predicate with more values than this is not pushed down to the database.
MAX_VALUES = 200


class Condition(msgspec.Struct, frozen=True):
    """A SQL condition and its parameters."""

    sql: str
    params: tuple[Any, ...] = ()


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of the selected entries: after a global_seq, up to another, and between two times in ms."""

    after: int = 0
    until: int | None = None
    from_ms: int | None = None
    before_ms: int | None = None

    def both(self, other: Bounds) -> Bounds:
        """Return the intersection of both."""
        return Bounds(
            max(self.after, other.after),
            _least(self.until, other.until),
            max((m for m in (self.from_ms, other.from_ms) if m is not None), default=None),
            _least(self.before_ms, other.before_ms),
        )


class EntrySelection(msgspec.Struct, frozen=True):
    """The subject pattern and the predicate of one reader; picklable, because executors receive it."""

    pattern: str = ""
    where: str = ""

    @property
    def selects_all(self) -> bool:
        """Whether every entry is selected, so that missing ones can be counted."""
        return not self.where.strip() and Pattern(self.pattern).matches_everything

    @property
    def bounds(self) -> Bounds:
        """The bounds that the predicate implies."""
        found = Bounds()
        for condition in conjuncts(compile_predicate(self.where).tree):
            found = found.both(_bounds(condition))
        return found

    def conditions(self) -> list[Condition]:
        """Return the SQL conditions. They are exact except for the option `where` and for wildcards."""
        found = []
        pattern = Pattern(self.pattern)
        if pattern.is_literal:
            found.append(Condition("subject = ?", (pattern.prefix,)))
        elif pattern.prefix:
            found.append(_below(pattern.prefix))
        predicate = compile_predicate(self.where)
        found += [condition for key in predicate.index_keys if (condition := _of_key(key)) is not None]
        return found + [prefix for node in conjuncts(predicate.tree) if (prefix := _subject_prefix(node)) is not None]

    def required_columns(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the columns to read: those of the result and those that the batch filter needs."""
        names = dict.fromkeys(columns)
        if self._inexact_pattern() is not None:
            names["subject"] = None
        if self.where.strip():
            names |= dict.fromkeys(name for name in Entry.__struct_fields__ if name != "chain")
        return tuple(names)

    def batch_filter(self, *, decide_all: bool = False) -> BatchFilter | None:
        """Return the filter for what SQL did not decide, or None; with `decide_all`, for everything."""
        pattern, where = self._inexact_pattern(), self.where.strip()
        if decide_all and not Pattern(self.pattern).matches_everything:
            pattern = Pattern(self.pattern)
        return BatchFilter(pattern, compile_predicate(where) if where else None) if pattern or where else None

    def _inexact_pattern(self) -> Pattern | None:
        pattern = Pattern(self.pattern)
        wild = [segment for segment in pattern.segments if not isinstance(segment, str) or segment == "_"]
        is_exact = pattern.is_literal or (len(wild) == 1 and repr(wild[0]) == "**")
        return None if is_exact else pattern


class BatchFilter:
    """Filters record batches: a pattern once per distinct subject, a predicate once per entry."""

    def __init__(self, pattern: Pattern | None, predicate: Predicate | None) -> None:
        self._pattern = pattern
        self._predicate = predicate

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows of a batch."""
        if self._pattern is not None:
            subjects = batch.column("subject").dictionary_encode()
            fits = pa.array([self._pattern.matches(subject) for subject in subjects.dictionary.to_pylist()], pa.bool_())
            batch = batch.filter(fits.take(subjects.indices))
        if self._predicate is not None:
            matches = self._predicate.matches
            batch = batch.filter(pa.array([matches(entry) for entry in entries_of(batch)], pa.bool_()))
        return batch


def entries_of(batch: pa.RecordBatch) -> Iterator[Entry]:
    """Yield the rows of a batch as entries; columns that were not read are empty."""
    fields = []
    for name in Entry.__struct_fields__:
        index = batch.schema.get_field_index(name)
        if index >= 0:
            fields.append(batch.column(index).to_pylist())
        else:
            fields.append([b"" if name == "chain" else ""] * batch.num_rows)
    return map(Entry, *fields)


# ── conditions of a predicate ────────────────────────────────────────────────────────────────────


def conjuncts(node: Node) -> Iterator[Node]:
    """Yield the operands of `&&`: if one of them is false or an error, the predicate does not match."""
    if isinstance(node, Logical) and node.operator == "&&":
        for operand in node.operands:
            yield from conjuncts(operand)
    else:
        yield node


_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


def _bounds(node: Node) -> Bounds:
    """Return the bounds that a comparison of `global_seq` or `ts_ms` with a number sets."""
    if not isinstance(node, Binary) or node.operator not in _MIRRORED:
        return Bounds()
    left, right, symbol = node.left, node.right, node.operator
    if isinstance(left, Literal):
        left, right, symbol = right, left, _MIRRORED[symbol]
    if not (isinstance(left, Name) and isinstance(right, Literal) and type(right.value) is int):
        return Bounds()
    number = right.value
    # The first selected number, and the first after the selected ones.
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
    # Bytes in UTF-8 sort as code points do; the last code point has no successor.
    last = ord(prefix[-1])
    if last in (0x10FFFF, 0xD7FF):
        return Condition(f"substr(subject, 1, {len(prefix)}) = ?", (prefix,))
    return Condition("(subject || '') >= ? AND (subject || '') < ?", (prefix, prefix[:-1] + chr(last + 1)))


def _below(prefix: str) -> Condition:
    """Select a subject and its descendants. The concatenation makes query planners keep the journal's order."""
    return Condition(
        "((subject || '') = ? OR ((subject || '') >= ? AND (subject || '') < ?))", (prefix, f"{prefix}/", f"{prefix}0")
    )


def _of_key(key: IndexKey) -> Condition | None:
    """Return the condition of a predicate on one column, if SQL can express it."""
    if len(key.path) != 1 or key.path[0] not in TEXTS or len(key.values) > MAX_VALUES:
        return None
    return _equals(key.path[0], tuple(value for value in key.values if isinstance(value, str)))


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
