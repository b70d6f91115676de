"""Writes docs/events.md from the catalogue of event types: `make docs`.

With `--check` it writes nothing and fails if the page is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tape.model.event_types import EVENTS, EventType
from tape.model.reserved import WRITTEN_BY

PAGE = Path(__file__).parent.parent / "docs/events.md"

HEAD = """# Events

Generated from the catalogue in `src/tape/model/event_types.py` by `make docs`; edit that, not this page. These are the
types that Tape itself writes; every other `<kind>.<verb>` on a journal is its users'. How they arrive is described in
[stream.md](stream.md).

A *safe* payload is stored as it is. Payloads of users are *redacted* first, unless their type is named in `safe_types`.
"""


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    text = "\n".join([HEAD, *page()]).rstrip() + "\n"
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/events.md is not current. Run: make docs", file=sys.stderr)
        return 1
    return 0


def page() -> Iterator[str]:
    """Entries of the journal first, notices last."""
    yield from ("## Reserved kinds", "")
    yield "Clients cannot append entries of these kinds; an append that tries is rejected with TAPE-1904."
    yield from ("", "| kind | written by |", "|---|---|")
    yield from (f"| `{kind}` | {call} |" for kind, call in WRITTEN_BY.items())
    yield from ("", "## On the journal", "")
    for event in EVENTS:
        if not event.is_notice:
            yield from section(event)
    yield from ("## On a stream only", "", "These are about the stream itself. They are not on the journal.", "")
    for event in EVENTS:
        if event.is_notice:
            yield from section(event)


def section(event: EventType) -> Iterator[str]:
    """One type."""
    delivery = "" if event.is_notice else " Safe." if event.is_safe else " Redacted."
    yield from (f"### {event.name}", "", f"{event.when}{delivery}", "", "| field | |", "|---|---|")
    yield from (f"| `{name}` | {text} |" for name, text in event.fields.items())
    yield ""


if __name__ == "__main__":
    sys.exit(main())
