"""Writes the field references of `kind: Subscription` and `kind: Playbook` into their pages: `make docs`.

With `--check` it writes nothing and fails if a page is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tape.documents.fields import Field, Shape, fields_of
from tape.playbooks.spec import PlaybookSpec
from tape.playbooks.tools import TOOLS, DeclaredTool
from tape.subscriptions.document.spec import SubscriptionSpec

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- fields: made by `make docs` -->\n", "<!-- end of fields -->\n"


def main() -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are current")
    is_check = parser.parse_args().check
    stale = []
    for name, lines in (("subscriptions.md", tables(SubscriptionSpec)), ("playbooks.md", playbook_tables())):
        page = DOCS / name
        before, _, rest = page.read_text().partition(BEGIN)
        text = before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.partition(END)[2]
        if page.read_text() != text:
            stale.append(f"docs/{name}")
            if not is_check:
                page.write_text(text)
    if is_check and stale:
        print(f"{', '.join(stale)} not current. Run: make docs", file=sys.stderr)
        return 1
    return 0


def playbook_tables() -> Iterator[str]:
    """The tables of a playbook, and one for each tool with declared fields."""
    yield from tables(PlaybookSpec)
    for kind, tool in TOOLS.items():
        if isinstance(tool, DeclaredTool):
            yield from section(f"tool, kind: {kind}", tool.declaration)


def tables(block: type[msgspec.Struct]) -> Iterator[str]:
    """The table of a block, then one for each block inside it."""
    yield from table(block)
    for name, inner in blocks(block, ""):
        yield from section(name, inner)


def section(title: str, block: type[msgspec.Struct]) -> Iterator[str]:
    """A heading, the first line of the declaration, and its table."""
    yield from (f"### {title}", "", f"{(block.__doc__ or '').splitlines()[0]}", "")
    yield from table(block)


def blocks(block: type[msgspec.Struct], before: str) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Every block inside one, with its name from the outer block on."""
    for field in fields_of(block).values():
        for suffix, inner in inner_blocks(field.shape):
            name = before + field.name + suffix
            yield name, inner
            yield from blocks(inner, f"{name}.")


def inner_blocks(shape: Shape) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The blocks of a value, each with what follows the name of its field: `[]` for items, `.<name>` for values."""
    if shape.block is not None:
        yield "", shape.block
    if shape.item is not None:
        own = "[]" if shape.kind == "list" else ".<name>"
        yield from ((own + suffix, inner) for suffix, inner in inner_blocks(shape.item))
    for option in shape.options:
        yield from inner_blocks(option)


def table(block: type[msgspec.Struct]) -> Iterator[str]:
    """One block."""
    yield from ("| field | is | default | |", "|---|---|---|---|")
    for field in fields_of(block).values():
        name = " or ".join(f"`{each}`" for each in field.names)
        yield f"| {name} | {kind(field.shape)} | {default(field)} | {field.description.replace('|', '/')} |"
    yield ""


def kind(shape: Shape) -> str:
    """What a value must be, in words."""
    match shape.kind:
        case "any":
            return "any value"
        case "choice":
            return ", ".join(f"`{choice}`" for choice in shape.choices)
        case "whole" | "number":
            most = f" to {shape.most}" if shape.most is not None else " or more"
            return f"number, {shape.least:g}{most}"
        case "list":
            assert shape.item is not None
            return {"block": "list of blocks", "text": "list of texts"}.get(shape.item.kind, "list")
        case "commas":
            return "list or text"
        case "table":
            assert shape.item is not None
            return "text to text" if shape.item.kind == "text" else "mapping"
        case "either":
            return " or ".join(kind(option) for option in shape.options)
        case "size":
            return "size"
        case "flag":
            return "true, false"
        case "expression":
            return "CEL"
        case _:
            return shape.kind


def default(field: Field) -> str:
    """The default of a field."""
    value: Any = field.default
    if field.is_required:
        return "**required**"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`" if value else ""
    return f"`{value}`" if isinstance(value, str | int) and value != "" else ""


if __name__ == "__main__":
    sys.exit(main())
