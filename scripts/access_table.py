"""Writes the tables of calls and scopes into docs/security.md: `make docs`.

With `--check` it writes nothing and fails if the page is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tape.model.principal import ADMIN, AGENT, ALL_TENANTS, APPROVER, FLEET, GATEWAY, OPERATOR, RUNTIME, WORKER
from tape.server.calls import display
from tape.server.permissions import JOURNAL_ROUTES, ROUTES, RPCS, TOKENLESS_ROUTES, scopes_for

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
BEGIN, END = "<!-- access: made by `make docs` -->\n", "<!-- end of access -->\n"
# `system` may make every call, `service` is another name for three of these.
COLUMNS = (AGENT, WORKER, APPROVER, OPERATOR, ADMIN, RUNTIME, GATEWAY, FLEET, ALL_TENANTS)


def main() -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    is_check = parser.parse_args().check
    before, _, rest = PAGE.read_text().partition(BEGIN)
    text = before + BEGIN + "\n" + "\n".join(tables()) + "\n" + END + rest.partition(END)[2]
    if PAGE.read_text() == text:
        return 0
    if is_check:
        print("docs/security.md not current. Run: make docs", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


def tables() -> Iterator[str]:
    """The table of RPCs, the table of routes, and the routes that need no token."""
    yield from table("RPC", RPCS)
    yield from table("route", (*JOURNAL_ROUTES, *ROUTES))
    tokenless = ", ".join(f"`{display(call)}`" for call in sorted(TOKENLESS_ROUTES))
    yield f"These routes need no token: {tokenless}."
    yield ""


def table(title: str, calls: Iterable[str]) -> Iterator[str]:
    """One row for each call, one column for each scope."""
    yield f"| {title} | every token | {' | '.join(f'`{scope}`' for scope in COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    for call in calls:
        scopes = scopes_for(call)
        marks = ["yes" if scope in scopes else "" for scope in COLUMNS]
        yield f"| `{display(call)}` | {'' if scopes else 'yes'} | {' | '.join(marks)} |"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
