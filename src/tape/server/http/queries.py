"""`POST /v1/events/list` and `/aggregate`: pages and counts of events."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.engine.fanout.hub import Hub
from tape.engine.ledgers.counts import Count
from tape.engine.ledgers.granted_counts import count_granted
from tape.engine.ledgers.window import MS, Window
from tape.engine.security.audit import Audit
from tape.errors import InvalidRequest
from tape.journal.identity_filter import IdentityFilter
from tape.journal.pages import EntryQuery, list_history
from tape.model.cloudevents import BATCHED
from tape.model.principal import Principal
from tape.server.http.access import HttpAccess, granted_to, require_widening
from tape.server.http.cloudevents import to_batch
from tape.server.http.frames import event_json
from tape.server.http.request_bodies import parse_time, read_json, to_time

PROTOCOL_VERSION = "0.1.0"
MAX_AGGREGATE_BYTES = 32 << 10
MAX_LIST_BYTES = 64 << 10
MAX_BUCKETS = 10_000
MAX_WINDOW_NS = 100 * 366 * 86_400 * 1_000_000_000
DEFAULT_LIMIT = 50
MAX_LIMIT = 200
# Gaps that the header of a CloudEvents batch names.
MAX_GAPS = 50

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Names = list[Annotated[str, msgspec.Meta(max_length=500, pattern="^[^\\x00]*$")]]


class Identity(msgspec.Struct, forbid_unknown_fields=True):
    """Accepted from older clients and ignored: the token determines the identity."""

    tenant: Any = None
    user: Any = None
    session: Any = None
    run: Any = None
    scope: Any = None
    actor: Any = None
    requester: Any = None
    impersonating: Any = None


class Filter(msgspec.Struct, forbid_unknown_fields=True):
    """Which events; a missing identity field is the caller's own."""

    event_types: Names = []
    tenant_ids: Names = []
    user_ids: Names = []
    session_ids: Names = []
    run_ids: Names = []
    since: str | None = None
    until: str | None = None


class AggregateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Counts over a window, in equal buckets; both in nanoseconds."""

    identity: Identity | None = None
    filter: Filter | None = None
    window: Int64 = 0
    bucket: Int64 = 0
    anchor: str | None = None
    by_tenant: bool = False


class ListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A page of events before a cursor; 0 is the newest."""

    identity: Identity | None = None
    filter: Filter | None = None
    cursor: Int64 = 0
    limit: Int64 = 0


class QueryRoutes:
    """Routes of both queries."""

    def __init__(self, hub: Hub, access: HttpAccess, audit: Audit) -> None:
        self._history = hub.history
        self._database = hub.database
        self._gaps = hub.gaps
        self._access = access
        self._audit = audit

    async def aggregate(self, request: Request) -> Response:
        """Counts by type in equal buckets, the oldest first."""
        caller = await self._access.caller_of(request)
        wanted = await read_json(request, AggregateRequest, MAX_AGGREGATE_BYTES)
        asked = wanted.filter or Filter()
        since, until = _times(asked)
        if since is not None and until is not None and until < since:
            raise InvalidRequest(f"until {asked.until!r} is before since {asked.since!r}.")
        window = _window(wanted, since, until)
        grants = granted_to(caller)
        identity = await self._identity_filter(caller, asked, "aggregate")
        found = await self._database.read(
            lambda reader: count_granted(reader, grants, window, identity, asked.event_types, asked.run_ids)
        )
        oldest = await self._database.read(_oldest_ms)
        answer = _buckets(window, found, by_tenant=wanted.by_tenant)
        if oldest is not None and window.low_ms < oldest:
            answer["truncated"] = True
        return _json(msgspec.json.encode(answer))

    async def list_events(self, request: Request) -> Response:
        """A page of events, the oldest first in it."""
        caller = await self._access.caller_of(request)
        wanted = await read_json(request, ListRequest, MAX_LIST_BYTES)
        asked = wanted.filter or Filter()
        if wanted.limit < 0 or wanted.cursor < 0:
            name = "limit" if wanted.limit < 0 else "cursor"
            raise InvalidRequest(f"{name} {getattr(wanted, name)} must not be negative.")
        since, until = _times(asked)
        if since is not None and until is not None and until <= since:
            raise InvalidRequest(f"until {asked.until!r} must be after since {asked.since!r}.")
        grants = granted_to(caller)
        question = EntryQuery(
            await self._identity_filter(caller, asked, "list"),
            frozenset(asked.event_types),
            asked.run_ids,
            None if since is None else -(-since // MS),
            None if until is None else -(-until // MS),
            wanted.cursor,
            min(wanted.limit or DEFAULT_LIMIT, MAX_LIMIT),
            grants,
        )
        page = await list_history(self._history, question)
        self._gaps.record(page.gaps)
        if BATCHED in request.headers.get("accept", ""):
            headers = {"Tape-Next-Cursor": str(page.next_cursor)}
            if page.gaps:
                headers["Tape-Gaps"] = ", ".join(f"{gap.first}-{gap.last};{gap.reason}" for gap in page.gaps[:MAX_GAPS])
            return Response(to_batch(page.entries), media_type=BATCHED, headers=headers)
        events = ",".join(event_json(entry) for entry in page.entries)
        more = "true" if page.next_cursor else "false"
        truncated = ',"truncated":true' if page.is_truncated else ""
        gaps = f',"gaps":{msgspec.json.encode(page.gaps).decode()}' if page.gaps else ""
        body = f'{{"events":[{events}],"next_cursor":{page.next_cursor},"has_more":{more}{truncated}{gaps}}}'
        return _json(body.encode())

    async def _identity_filter(self, caller: Principal, asked: Filter, method: str) -> IdentityFilter:
        """The identity filter; to name other identities than the caller's own needs a scope and is audited.

        The owner of an open server sees all entries, and those that it names.
        """
        named = (asked.tenant_ids, asked.user_ids, asked.session_ids)
        own = IdentityFilter()
        if not caller.is_owner:
            own = IdentityFilter([caller.tenant, *caller.former_tenants], [caller.user], [caller.session])
        if all(set(names) <= {mine} for names, mine in zip(named, caller.triple, strict=True)):
            return IdentityFilter(*(names or None for names in named)) if caller.is_owner else own
        require_widening(caller, f"cross-session {method} requires a verified `admin` or `console:fleet` scope")
        await self._audit.admin_scope_used(caller, f"events.{method}")
        # Below a field that names others all values match; above it only the caller's own.
        users = asked.user_ids or (None if asked.tenant_ids else own.users)
        sessions = asked.session_ids or (None if asked.tenant_ids or asked.user_ids else own.sessions)
        return IdentityFilter(asked.tenant_ids or own.tenants, users, sessions)


def _window(wanted: AggregateRequest, since: int | None, until: int | None) -> Window:
    prefix = "aggregate window/bucket invalid: events: aggregate Window/Bucket is invalid:"
    for name, value in (("Window", wanted.window), ("Bucket", wanted.bucket)):
        if value <= 0:
            raise InvalidRequest(f"{prefix} {name}={value}ns must be > 0")
    if wanted.window % wanted.bucket:
        raise InvalidRequest(f"{prefix} Window={wanted.window}ns not evenly divisible by Bucket={wanted.bucket}ns")
    buckets = wanted.window // wanted.bucket
    if buckets > MAX_BUCKETS:
        raise InvalidRequest(f"{prefix} {buckets} buckets; {MAX_BUCKETS} is the limit, use larger ones")
    if wanted.window > MAX_WINDOW_NS:
        raise InvalidRequest(f"{prefix} Window={wanted.window}ns is more than 100 years")
    now = time.time_ns()
    # Entry times are whole milliseconds: an entry of the current one must not lie past the end.
    start = now // MS * MS + MS - wanted.window
    if wanted.anchor is not None:
        anchor = parse_time("anchor", wanted.anchor)
        if abs(anchor - now) > MAX_WINDOW_NS:
            raise InvalidRequest(f"anchor {wanted.anchor!r} is more than 100 years from now.")
        start = anchor + (now - wanted.window - anchor) // wanted.bucket * wanted.bucket
    return Window(start, wanted.bucket, buckets, since, until)


def _times(asked: Filter) -> tuple[int | None, int | None]:
    since = parse_time("since", asked.since) if asked.since else None
    until = parse_time("until", asked.until) if asked.until else None
    return since, until


def _buckets(window: Window, found: list[Count], *, by_tenant: bool) -> dict[str, Any]:
    sums: list[dict[str, int]] = [{} for _ in range(window.buckets)]
    tenants: list[dict[str, dict[str, int]]] = [{} for _ in range(window.buckets)]
    for each in found:
        sums[each.bucket][each.type] = sums[each.bucket].get(each.type, 0) + each.entries
        tenants[each.bucket].setdefault(each.tenant, {})[each.type] = each.entries
    buckets: list[dict[str, Any]] = []
    for index in range(window.buckets):
        start = window.start_ns + index * window.bucket_ns
        bucket: dict[str, Any] = {
            "bucket_start": to_time(start),
            "bucket_end": to_time(start + window.bucket_ns),
            "counts": dict(sorted(sums[index].items())),
        }
        if by_tenant:
            bucket["counts_by_tenant"] = dict(sorted(tenants[index].items()))
        buckets.append(bucket)
    return {"buckets": buckets, "protocol_version": PROTOCOL_VERSION}


def _oldest_ms(reader: Any) -> int | None:
    """The time of the oldest entry, if older ones were pruned."""
    row = reader.one(
        "SELECT j.ts_ms FROM tape_head h JOIN tape_journal j ON j.global_seq = h.oldest WHERE h.id = 1 AND h.oldest > 1"
    )
    return int(row[0]) if row else None


def _json(body: bytes) -> Response:
    return Response(body + b"\n", media_type="application/json")
