"""Printing: tables for people, JSON for programs."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import typer
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tape.errors import InvalidInput, InvalidJson

# Width of lines when the output is not a terminal.
UNBOUNDED = 10_000
CUT = 100

_COLOURS = {
    "running": "cyan",
    "runnable": "blue",
    "waiting": "yellow",
    "terminal": "green",
    "confirmed": "green",
    "compensated": "green",
    "released": "green",
    "answered": "green",
    "timed_out": "red",
    "escalated": "red",
    "reminded": "yellow",
    "failed": "red",
    "stuck": "red",
    "unknown": "red",
    "denied": "red",
    "pending": "yellow",
    "committed": "cyan",
    "compensating": "magenta",
    "cancelled": "magenta",
    "reconciled": "magenta",
    "claimed": "cyan",
    "done": "green",
    "dlq": "red",
}
_AGES = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def console() -> Console:
    """Standard output; lines are wrapped only on a terminal."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=UNBOUNDED)


def table(*columns: str) -> Table:
    """An empty table without lines around it."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], nothing: str) -> None:
    """Print rows under their columns, or a sentence if there are none."""
    shown = table(*columns)
    for row in rows:
        shown.add_row(*row)
    if shown.row_count:
        console().print(shown)
    else:
        typer.echo(nothing)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values, one line each."""
    width = max(map(len, facts)) + 2
    page = console()
    for name, fact in facts.items():
        page.print(Text.assemble((f"{name:<{width}}", "dim"), fact))


def print_json(thing: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(msgspec.json.encode(thing).decode())


def state(name: str) -> Text:
    """The name of a state in its colour."""
    return Text(name, _COLOURS.get(name, ""))


def state_of(kind: Any, number: int) -> str:
    """The short name of a proto enum value: RUN_STATUS_RUNNING is running."""
    return _word(kind.DESCRIPTOR.name, kind.Name(number) if number in kind.values() else str(number))


def _word(enum: str, name: str) -> str:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum).upper()
    return name.removeprefix(f"{prefix}_").lower()


def as_dict(message: Message) -> dict[str, Any]:
    """A message as a dict: every field by its name, enum values by their short names."""
    return {field.name: _plain(getattr(message, field.name), field.enum_type) for field in message.DESCRIPTOR.fields}


def _plain(value: Any, enum: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(each, enum) for each in value]
    if isinstance(value, Message):
        return as_dict(value)
    if enum is not None:
        known = enum.values_by_number.get(value)
        return _word(enum.name, known.name) if known else str(value)
    return value


def age(milliseconds: int) -> str:
    """A duration in its largest unit and the next: 3m 12s, 2d 4h, 250ms."""
    if milliseconds < 1_000:
        return f"{max(milliseconds, 0)}ms"
    for position, (unit, length) in enumerate(_AGES):
        if milliseconds >= length:
            whole, rest = divmod(milliseconds, length)
            smaller = _AGES[position + 1] if position + 1 < len(_AGES) else None
            more = rest // smaller[1] if smaller else 0
            return f"{whole}{unit} {more}{smaller[0]}" if smaller and more else f"{whole}{unit}"
    raise AssertionError(milliseconds)


def moment(ts_ms: int) -> str:
    """A time in the local time zone, to the millisecond."""
    return f"{dt.datetime.fromtimestamp(ts_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}.{ts_ms % 1000:03d}"


def cut(text: str) -> str:
    """A text on one line, cut after 100 characters."""
    line = " ".join(text.split())
    return line if len(line) <= CUT else f"{line[: CUT - 1]}…"


def parse_age(option: str, text: str) -> int:
    """How many milliseconds 90s, 10m, 2h or 7d are."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise InvalidInput(f"{option} {text!r} is not an age such as 90s, 10m, 2h or 7d.")
    return int(found[1]) * dict(_AGES)[found[2]]


def checked_json(name: str, text: str) -> str:
    """The text, if it is JSON."""
    try:
        msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidJson(f"{name} {text[:80]!r} is not JSON ({error}); a string is written '\"…\"'.") from error
    return text
