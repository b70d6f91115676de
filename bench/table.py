"""What a question answers with: a table, for the terminal and for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.table

NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """Figures as text. The first column names the row, the others are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def for_terminal(self) -> rich.table.Table:
        """The table as rich prints it."""
        shown = rich.table.Table(
            title=self.title,
            title_justify="left",
            caption="\n".join(f"· {note}" for note in self.notes),
            caption_justify="left",
        )
        for position, column in enumerate(self.columns):
            shown.add_column(column, justify="right" if position else "left", overflow="fold")
        for row in self.rows:
            shown.add_row(*row)
        return shown

    def as_markdown(self) -> str:
        """The table as Markdown."""
        lines = [
            f"## {self.title}",
            "",
            _line(self.columns),
            _line(["---", *["---:"] * (len(self.columns) - 1)]),
            *map(_line, self.rows),
        ]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


def count(number: float) -> str:
    """12,345"""
    return f"{number:,.0f}"


def milliseconds(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return NOTHING
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def ratio(ours: float | None, theirs: float | None) -> str:
    """How many times theirs ours is."""
    if not ours or not theirs:
        return NOTHING
    times = ours / theirs
    return f"{times:.2f}×" if times < 10 else f"{times:.0f}×"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
