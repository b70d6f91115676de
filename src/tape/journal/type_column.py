"""The type of an entry, `<kind>.<verb>`, in SQL: it is no column of its own."""

from __future__ import annotations

from tape.store.connection import Dialect

# `<kind>.<verb>`, as Entry.type has it, from the subject /tape/<kind>/<verb>/…
_AFTER_KIND = "substr(subject, length(kind) + 8)"
_VERB: dict[Dialect, str] = {
    "sqlite": f"substr({_AFTER_KIND}, 1, instr({_AFTER_KIND} || '/', '/') - 1)",
    "postgres": "split_part(subject, '/', 4)",
}


def type_sql(dialect: Dialect) -> str:
    """An entry's type as an SQL expression."""
    verb = _VERB[dialect]
    return f"CASE WHEN {verb} = '' THEN kind ELSE kind || '.' || {verb} END"
