"""Writes the reference of `kind: Subscription` into docs/subscriptions.md from its declarations: `make docs`.

With `--check` it writes nothing and fails if the page is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tape.documents.fields import Field, Shape, fields_of
from tape.subscriptions.document.spec import SubscriptionSpec

PAGE = Path(__file__).parent.parent / "docs/subscriptions.md"
BEGIN, END = "<!-- fields: made by `make docs` -->\n", "<!-- end of fields -->\n"


def main() -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    text = before + BEGIN + "\n" + "\n".join(page()) + "\n" + END + after
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print("docs/subscriptions.md is not current. Run: make docs", file=sys.stderr)
        return 1
    return 0


def page() -> Iterator[str]:
    """The fields that stand in `spec` itself, then a table for each block."""
    yield from table(SubscriptionSpec)
    for name, block in blocks(SubscriptionSpec, ""):
        yield from (f"### {name}", "", f"{(block.__doc__ or '').splitlines()[0]}", "")
        yield from table(block)


def blocks(block: type[msgspec.Struct], before: str) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Every block inside one, with its name from `spec` on."""
    for field in fields_of(block).values():
        shape = field.shape.item or field.shape
        if shape.block is not None:
            name = before + field.name + ("[]" if field.shape.kind == "list" else "")
            yield name, shape.block
            yield from blocks(shape.block, f"{name}.")


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
        case "choice":
            return ", ".join(f"`{choice}`" for choice in shape.choices)
        case "whole":
            most = f" to {shape.most}" if shape.most is not None else " or more"
            return f"number, {shape.least}{most}"
        case "list":
            assert shape.item is not None
            return "list of blocks" if shape.item.block else "list of texts"
        case "commas":
            return "list or text"
        case "table":
            return "text to text"
        case "size":
            return "size"
        case "flag":
            return "true, false"
        case _:
            return shape.kind


def default(field: Field) -> str:
    """What stands when nothing is given."""
    value: Any = field.default
    if field.is_required:
        return "**required**"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str | int) and value != "" else ""


if __name__ == "__main__":
    sys.exit(main())
