"""The table of a run: kinds of damage beside verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.damage.case import Result

VERDICTS = ("right", "named", "refused", "verify only", "stalled", "silent")
VERIFIES = ("✓", "named", "refused", "silent", "crashed")


def print_table(results: Sequence[Result]) -> str:
    """Lines of counts: readers by verdict, `verify` by verdict, false alarms."""
    head = ["damage", "cases", *VERDICTS, *(f"verify {name}" for name in VERIFIES), "false alarm"]
    rows = [head]
    for target, kind in sorted({(one.damage.target, one.damage.kind) for one in results}):
        rows.append(
            _row(
                f"{target}: {kind}", [one for one in results if (one.damage.target, one.damage.kind) == (target, kind)]
            )
        )
    rows.append(_row("all", results))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _row(name: str, results: Sequence[Result]) -> list[str]:
    verdicts, verifies = Counter(one.verdict for one in results), Counter(one.verify for one in results)
    counts = [len(results), *(verdicts[name] for name in VERDICTS), *(verifies[name] for name in VERIFIES)]
    return [name, *(str(count or "–") for count in [*counts, sum(bool(one.alarm) for one in results)])]
