"""What the server itself puts on the journal about who was let in, who was not, and what was withheld."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tape.errors import TapeError
from tape.journal.appender import append
from tape.journal.journal import Journal
from tape.model.entry import Draft, checked
from tape.model.principal import ADMIN, ALL_TENANTS, FLEET, SYSTEM_SCOPE, Principal, current_principal
from tape.model.subject import build
from tape.store import Transaction

log = logging.getLogger(__name__)

# Rejected tokens, and uses of a scope beyond those below, are journaled at most this often, with their number: a flood
# of them must not fill the journal.
WRITE_INTERVAL_S = 1.0
# Reads by `admin` and the like that are journaled one by one, before they are answered, of one caller within a second.
MAX_SINGLE_READS = 10
# Calls with `tenant:*`, of one caller and one method, are journaled at most this often, with their number.
CALLS_INTERVAL_S = 60.0
# Callers and methods beyond which old ones are forgotten before new ones are added.
MAX_REMEMBERED = 1_000
UNAUTHENTICATED = Principal(tenant="tape-auth", user="auth-edge", session="auth-edge")
RUN = "audit"


class _Uses(msgspec.Struct):
    """Uses of a scope by one caller for one method that are not journaled yet."""

    caller: Principal
    method: str
    scope: str
    interval_s: float
    count: int = 0
    written_at: float = 0.0
    # Reads that were journaled one by one since the given time.
    single: int = 0
    single_since: float = 0.0

    def is_due(self, now: float) -> bool:
        """Whether they are to be journaled now."""
        return bool(self.count) and now - self.written_at >= self.interval_s

    def is_over(self, now: float) -> bool:
        """Whether nothing has to be remembered about them."""
        return not self.count and now - max(self.written_at, self.single_since) >= self.interval_s

    def draft(self) -> Draft:
        """The audit entry about them."""
        return _draft(
            "audit",
            "admin_scope_used",
            self.caller,
            {**_use(self.caller, self.method), "Scope": self.scope, "KeyID": self.caller.key_id, "Count": self.count},
        )


class Audit:
    """Appends audit entries."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rejections: Counter[tuple[str, str]] = Counter()
        self._uses: dict[tuple[str, ...], _Uses] = {}
        self._writing: asyncio.Task[None] | None = None
        journal.on_reserved = self.reserved_appended

    async def admin_scope_used(self, caller: Principal, method: str, subscriber_id: int = 0) -> None:
        """A caller looked beyond its own session; durable before it sees anything.

        After 10 reads of one caller within a second, further ones are journaled together, within a second.
        """
        uses, now = self._uses_of(caller, method, widening_scope(caller), WRITE_INTERVAL_S), time.monotonic()
        if now - uses.single_since >= WRITE_INTERVAL_S:
            uses.single, uses.single_since = 0, now
        if uses.single >= MAX_SINGLE_READS:
            uses.count += 1
            self._start_writing()
            return
        uses.single += 1
        payload = _use(caller, method) | {"SubscriberID": subscriber_id}
        await self._journal.append([_draft("audit", "admin_scope_used", caller, payload)])

    def scope_used(self, caller: Principal, method: str, scope: str, count: int = 1) -> None:
        """A caller made a call with a scope that reaches all tenants. The first is journaled at once."""
        self._uses_of(caller, method, scope, CALLS_INTERVAL_S).count += count
        self._start_writing()

    def reserved_appended(self, caller: Principal, count: int) -> None:
        """A caller appended entries of reserved kinds. Written soon, with their number."""
        self._uses_of(caller, "append.reserved", SYSTEM_SCOPE, WRITE_INTERVAL_S).count += count
        self._start_writing()

    async def redaction_failed(self, draft: Draft, reason: str) -> None:
        """A payload was refused because it could not be searched for secrets; it is not repeated here."""
        principal = Principal(tenant=draft.tenant, user=draft.user, session=draft.session)
        payload = {"OriginalSubject": draft.subject, "Reason": reason}
        await self._journal.append([_draft("audit", "redaction_failed", principal, payload)])

    def auth_rejected(self, reason: str, key_id: str = "") -> None:
        """A token or key was refused. Written soon, together with others like it."""
        self._journal.database.metrics.auth_rejected.labels(reason).inc()
        self._rejections[reason, key_id] += 1
        self._start_writing()

    async def close(self) -> None:
        """Write what has not been written."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._append_rejections()
        await self._append_uses(lambda uses: bool(uses.count))

    def _uses_of(self, caller: Principal, method: str, scope: str, interval_s: float) -> _Uses:
        # Without the session, which callers may choose with each request.
        key = (caller.tenant, caller.user, caller.key_id, method)
        if (uses := self._uses.get(key)) is None:
            if len(self._uses) >= MAX_REMEMBERED:
                self._forget_old(time.monotonic())
            uses = self._uses[key] = _Uses(caller, method, scope, interval_s, written_at=-interval_s)
        return uses

    def _forget_old(self, now: float) -> None:
        self._uses = {key: uses for key, uses in self._uses.items() if not uses.is_over(now)}

    def _start_writing(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._rejections or any(uses.count for uses in self._uses.values()):
                now = time.monotonic()
                await self._append_rejections()
                await self._append_uses(lambda uses: uses.is_due(now))  # noqa: B023
                self._forget_old(now)
                await asyncio.sleep(WRITE_INTERVAL_S)
        finally:
            self._writing = None

    async def _append_rejections(self) -> None:
        counts, self._rejections = self._rejections, Counter()
        drafts = [
            _draft(
                "auth",
                "rejected",
                UNAUTHENTICATED,
                {"Reason": reason, "Count": count} | ({"KeyID": key_id} if key_id else {}),
            )
            for (reason, key_id), count in counts.items()
        ]
        if not drafts:
            return
        try:
            await self._journal.append(drafts)
        except TapeError as error:
            log.warning("%d rejected tokens were not journaled: %s", counts.total(), error)

    async def _append_uses(self, is_wanted: Callable[[_Uses], bool]) -> None:
        due = [uses for uses in self._uses.values() if is_wanted(uses)]
        drafts = [uses.draft() for uses in due]
        for uses in due:
            uses.count, uses.written_at = 0, time.monotonic()
        if not drafts:
            return
        try:
            await self._journal.append(drafts)
        except TapeError as error:
            log.warning("uses of scopes were not journaled: %s: %s", ", ".join(uses.method for uses in due), error)


def widening_scope(caller: Principal) -> str:
    """The scope by which a caller may read beyond its own session."""
    return next((scope for scope in (ADMIN, FLEET, ALL_TENANTS, SYSTEM_SCOPE) if caller.has(scope)), "")


def _use(caller: Principal, method: str) -> dict[str, Any]:
    return {
        "Tenant": caller.tenant,
        "User": caller.user,
        "Session": caller.session,
        "SubscriberID": 0,
        "Method": method,
    }


def record(tx: Transaction, verb: str, tenant: str, by: str, payload: dict[str, Any]) -> None:
    """Append an audit entry of a change to a tenant's keys or tokens, in the transaction of the change.

    `by` names the operating system's user where no principal made the call.
    """
    caller = current_principal()
    named = {"By": caller.user or by, "ByTenant": caller.tenant, "ByKey": caller.key_id}
    owner = Principal(tenant=tenant, user=caller.user, session=caller.session)
    append(tx, [checked(_draft("audit", verb, owner, payload | named))])


async def record_dead_letters(journal: Journal, verb: str, ids: Sequence[str], failed: int, reason: str) -> None:
    """Append an audit entry: the caller redrives or drops dead letters. Durable before the first is changed."""
    caller = current_principal()
    payload = {
        "Count": len(ids),
        "IDs": list(ids[:100]),
        "Failed": failed,
        "Reason": reason[:500],
        "By": caller.user,
        "ByTenant": caller.tenant,
        "ByKey": caller.key_id,
    }
    await journal.append([_draft("audit", verb, caller, payload)])


def _draft(kind: str, verb: str, caller: Principal, payload: dict[str, Any]) -> Draft:
    return Draft(
        subject=build(kind, verb),
        run_id=RUN,
        payload_json=msgspec.json.encode(payload).decode(),
        tenant=caller.tenant,
        user=caller.user,
        session=caller.session,
    )
