"""The recorded history of a run, in pages: its decisions and effects, with what was asked and what came of it."""

from __future__ import annotations

from typing import NamedTuple

from tape.engine.ledgers import runs
from tape.engine.ledgers.decisions import Decision
from tape.engine.ledgers.effects import Effect
from tape.errors import InvalidInput
from tape.store import Reader, Transaction
from tape.store.records import columns, load_all

DEFAULT_LIMIT = 200
MAX_LIMIT = 1_000
# Characters of requests and responses in one page; the first step is there however large it is.
PAGE_SIZE = 2 << 20
BEFORE_ALL = -(1 << 62)

Step = Decision | Effect

DECISION_SIZE = "length(request_json) + length(response_json) + length(rationale)"
EFFECT_SIZE = "length(request_json) + length(response_json) + length(error_json)"


class StepPage(NamedTuple):
    """Steps in order, and the cursor of the next page; "" if there is none."""

    steps: list[Step]
    next_cursor: str


def list_steps(reader: Reader, run_id: str, *, cursor: str = "", limit: int = 0) -> StepPage:
    """The steps of a run, oldest first, in pages that are bounded by number and size."""
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit {limit} must lie between 0 and {MAX_LIMIT}; 0 means {DEFAULT_LIMIT}.")
    runs.get(reader, run_id)
    after, wanted = _parse_cursor(cursor), limit or DEFAULT_LIMIT
    sizes: list[tuple[int, int]] = []
    for table, expression in (("tape_decisions", DECISION_SIZE), ("tape_effects", EFFECT_SIZE)):
        rows = reader.query(
            f"SELECT seq, {expression} FROM {table} WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            run_id,
            after,
            wanted + 1,
        )
        sizes += [(int(row[0]), int(row[1])) for row in rows]
    sizes.sort()
    last, total = after, 0
    for number, (seq, size) in enumerate(sizes[:wanted]):
        total += size
        if number and total > PAGE_SIZE:
            break
        last = seq
    return StepPage(read_steps(reader, run_id, after, last), str(last) if sizes and last < sizes[-1][0] else "")


def read_steps(reader: Reader | Transaction, run_id: str, after: int, last: int) -> list[Step]:
    """The steps of a run after one seq and up to another, in order."""
    found: list[Step] = []
    found += load_all(Decision, reader.query(_select("tape_decisions", Decision), run_id, after, last))
    found += load_all(Effect, reader.query(_select("tape_effects", Effect), run_id, after, last))
    return sorted(found, key=lambda step: step.seq)


def _select(table: str, kind: type[Decision] | type[Effect]) -> str:
    return f"SELECT {columns(kind)} FROM {table} WHERE run_id = ? AND seq > ? AND seq <= ?"


def _parse_cursor(cursor: str) -> int:
    if not cursor:
        return BEFORE_ALL
    try:
        number = int(cursor)
    except ValueError:
        number = 1 << 63
    if abs(number) >= 1 << 63 or len(cursor) > 20:
        raise InvalidInput(f"cursor {cursor[:40]!r} is not a next_cursor of this call.")
    return number
