"""What a request of the event stream asks for: scope, start, form of the frames."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import Request

from tape.engine.fanout.audience import LiveScope
from tape.errors import InvalidRequest
from tape.journal.reader import EntryIdentity
from tape.model.entry import check_id
from tape.model.grants import Grants
from tape.model.pattern import Pattern
from tape.model.principal import Principal
from tape.server.http.access import granted_to
from tape.server.http.request_bodies import parse_time

MAX_TYPES = 256
MAX_SUBJECTS = 64
MAX_SEQUENCE = (1 << 63) - 1
NS_PER_MS = 1_000_000
PARAMETERS = frozenset(
    {"access_token", "admin", "from", "named", "resume_seq", "run", "session", "subject", "tenant", "type", "user"}
)
# Unknown parameters that a comment names, and how much of each.
MAX_SHOWN = 16
MAX_SHOWN_CHARS = 64

_DECIMAL = re.compile(r"[0-9]{1,20}")


class Start(NamedTuple):
    """Where a stream starts: after a cursor, at a time, or now without both. A text is an invalid Last-Event-ID."""

    cursor: int | str | None = None
    at_ms: int | None = None


def read_scope(request: Request, caller: Principal, *, is_admin: bool) -> LiveScope:
    """The entries that a request asks for, of those that its caller may see."""
    types: set[str] = set(request.query_params.getlist("type"))
    for value in request.headers.getlist("x-harbor-event-type"):
        types.update(value.split(","))
    types = {kind.strip() for kind in types} - {""}
    if len(types) > MAX_TYPES:
        raise InvalidRequest(
            f"{len(types)} event types requested; {MAX_TYPES} is the limit. Request all types instead."
        )
    grants, subjects, is_named = granted_to(caller), _subjects(request), _is_named(request)
    run = _run(request, is_admin=is_admin)
    if is_admin or caller.is_owner:
        return LiveScope(None, run, frozenset(types), grants, subjects, is_named)
    identity = EntryIdentity((caller.tenant, *caller.former_tenants), caller.user, caller.session)
    return LiveScope(identity, run, frozenset(types), grants, subjects, is_named)


def read_start(request: Request) -> Start:
    """Where the stream starts. A Last-Event-ID wins: a browser that reconnects sends the old query again."""
    last = request.headers.get("last-event-id")
    if last is not None:
        last = last.strip()
        return Start((_number(last) if _DECIMAL.fullmatch(last) else last) if last else None)
    values, begin = request.query_params.getlist("resume_seq"), _one(request, "from")
    if values and begin is not None:
        raise InvalidRequest("from and resume_seq both say where the stream starts; send one of them.")
    if values:
        if len(values) > 1 or not _DECIMAL.fullmatch(values[0]) or int(values[0]) >= 1 << 64:
            raise InvalidRequest(f"resume_seq {', '.join(values)!r} must be one decimal number from 0 to 2^64 - 1.")
        return Start(_number(values[0]))
    if begin is None or begin == "now":
        return Start()
    if begin == "start":
        return Start(0)
    if _DECIMAL.fullmatch(begin) and int(begin) < 1 << 64:
        return Start(_number(begin))
    if _DECIMAL.fullmatch(begin) or "-" not in begin:
        raise InvalidRequest(f"from {begin!r} must be a global_seq, start, now or a time like 2026-06-10T23:03:22Z.")
    return Start(at_ms=-(-parse_time("from", begin) // NS_PER_MS))


def describe_unknown(request: Request) -> str:
    """A sentence that names the parameters which the stream does not know; empty without any."""
    unknown = sorted(set(request.query_params) - PARAMETERS)
    if not unknown:
        return ""
    names = ", ".join(quote(name[:MAX_SHOWN_CHARS], safe="") or "''" for name in unknown[:MAX_SHOWN])
    more = f" and {len(unknown) - MAX_SHOWN} more" if len(unknown) > MAX_SHOWN else ""
    return f"stream.parameters_ignored {names}{more}; known are {', '.join(sorted(PARAMETERS))}"


def _run(request: Request, *, is_admin: bool) -> str:
    # A stream of all identities ignores the header, as it always did; the parameter narrows it.
    header = "" if is_admin else request.headers.get("x-harbor-run", "").strip()
    check_id("x-harbor-run", header)
    run = _one(request, "run") or ""
    check_id("run", run)
    if header and run and header != run:
        raise InvalidRequest(f"run {run!r} and X-Harbor-Run {header!r} differ; send one of them.")
    return run or header


def _subjects(request: Request) -> Grants | None:
    texts = sorted({text for text in request.query_params.getlist("subject") if text})
    if len(texts) > MAX_SUBJECTS:
        raise InvalidRequest(f"{len(texts)} subject patterns requested; {MAX_SUBJECTS} is the limit.")
    patterns = [Pattern(text) for text in texts]
    return Grants(patterns) if patterns and not any(each.matches_everything for each in patterns) else None


def _is_named(request: Request) -> bool:
    value = _one(request, "named")
    if value not in (None, "0", "1"):
        raise InvalidRequest(f"named {value!r} must be 0 (no `event:` lines) or 1.")
    return value != "0"


def _one(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidRequest(f"{name} is given {len(values)} times; send it once.")
    return values[0].strip() if values else None


def _number(text: str) -> int | str:
    number = int(text)
    return min(number, MAX_SEQUENCE) if number < 1 << 64 else text
