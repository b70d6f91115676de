"""Names of calls: from the text that a person types to the RPC or route in the table of permissions."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from urllib.parse import parse_qsl

from tape.errors import NotFound
from tape.model.tenant_names import MARK
from tape.server.permissions import PERMISSIONS, RPCS, TOKENLESS_ROUTES

CALLS = frozenset(PERMISSIONS) | TOKENLESS_ROUTES
# Routes that need other scopes with a parameter, and the value that it has then.
VARIANTS = {"GET /v1/events?admin": "1", "GET /api/credentials/?include_data": "true"}


def find_call(text: str) -> str:
    """The call that a text names: `BeginRun`, `/tape.v1.Tape/BeginRun` or `POST /api/execute`. Raises NotFound."""
    method, _, target = text.strip().partition(" ")
    if not target:
        name = method.rpartition("/")[2]
        if name in RPCS:
            return name
    path, _, query = target.strip().partition("?")
    method = "GET" if method.upper() == "HEAD" else method.upper()
    for route in _routes(path):
        call = f"{method} {route}"
        for name, value in parse_qsl(query):
            if VARIANTS.get(f"{call}?{name}") == value.lower():
                return f"{call}?{name}"
        if call in CALLS:
            return call
    near = ", ".join(_find_near(text)) or "none. docs/security.md lists all calls"
    raise NotFound(f"There is no method or route {text!r}. Near matches: {near}.")


def display(call: str) -> str:
    """A call as documents write it: with the parts of its path that vary in braces."""
    path, _, query = call.partition("?")
    if path.endswith("/{}/"):
        path = path.replace("{}/", "{name}/{action}")
    elif path.endswith("/") and path != "GET /":
        path += "{name}"
    return f"{path}?{query}={VARIANTS[call]}" if query else path


def _routes(path: str) -> Iterator[str]:
    """The names that the routes of a path can have in the table, the most exact first."""
    yield path
    before, slash, name = path.rpartition("/")
    if name:
        yield before + slash
        if (parts := before.rpartition("/"))[2].startswith(MARK):
            yield parts[0] + slash
        yield f"{before.rpartition('/')[0]}/{{}}/"


def _find_near(text: str) -> list[str]:
    names = {display(call): display(call) for call in CALLS}
    names |= {name.partition(" ")[2]: name for name in names if " " in name}
    lowered = {name.lower(): shown for name, shown in names.items()}
    wanted = text.strip().lower()
    found = [lowered[name] for name in get_close_matches(wanted, lowered, n=5, cutoff=0.5)]
    found += [shown for name, shown in sorted(lowered.items()) if wanted in name]
    return list(dict.fromkeys(found))[:5]
