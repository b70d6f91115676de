"""The page of `tape --help`, in the look of the pages that typer prints of commands.

The module of typer that prints those imports renderers of Markdown, source code and tracebacks, which take longer to
load than everything that this page needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Panels = Mapping[str, Mapping[str, str]]


def print_help(usage: str, summary: str, options: Iterable[tuple[str, str, str]], panels: Panels) -> None:
    """Print the usage, one sentence, the options (long name, short name, help) and the commands by panel."""
    console = Console(highlight=False)
    console.print(Padding(Text.assemble(("Usage: ", "bold yellow"), (usage, "bold")), 1))
    console.print(Padding(summary, (0, 1, 1, 1)))
    table = _table()
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(style="bold green", no_wrap=True)
    table.add_column(ratio=1)
    for row in options:
        table.add_row(*map(Text, row))
    console.print(_panel("Options", table))
    width = max(len(name) for commands in panels.values() for name in commands)
    for title, commands in panels.items():
        table = _table()
        table.add_column(style="bold cyan", no_wrap=True, width=width)
        table.add_column(ratio=1)
        for name, sentence in commands.items():
            table.add_row(name, Text(sentence))
        console.print(_panel(title, table))


def _table() -> Table:
    return Table(show_header=False, expand=True, box=None, pad_edge=False)


def _panel(title: str, table: Table) -> Panel:
    return Panel(table, title=title, title_align="left", border_style="dim")
