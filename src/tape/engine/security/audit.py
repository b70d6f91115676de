"""What the server itself puts on the journal about who was let in, who was not, and what was withheld."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import msgspec

from tape.errors import TapeError
from tape.journal.appender import append
from tape.journal.journal import Journal
from tape.model.entry import Draft, checked
from tape.model.principal import Principal, current_principal
from tape.model.subject import build
from tape.store import Transaction

log = logging.getLogger(__name__)

# Refused tokens are journaled at most this often, with their number: a flood of them must not fill the journal.
REJECTION_WINDOW_S = 1.0
UNAUTHENTICATED = Principal(tenant="tape-auth", user="auth-edge", session="auth-edge")
RUN = "audit"


class Audit:
    """Appends audit entries."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rejections: Counter[tuple[str, str]] = Counter()
        self._writing: asyncio.Task[None] | None = None

    async def admin_scope_used(self, caller: Principal, method: str, subscriber_id: int = 0) -> None:
        """A caller looked beyond its own session; durable before it sees anything."""
        payload = {
            "Tenant": caller.tenant,
            "User": caller.user,
            "Session": caller.session,
            "SubscriberID": subscriber_id,
            "Method": method,
        }
        await self._journal.append([_draft("audit", "admin_scope_used", caller, payload)])

    async def redaction_failed(self, draft: Draft, reason: str) -> None:
        """A payload was refused because it could not be searched for secrets; it is not repeated here."""
        principal = Principal(tenant=draft.tenant, user=draft.user, session=draft.session)
        payload = {"OriginalSubject": draft.subject, "Reason": reason}
        await self._journal.append([_draft("audit", "redaction_failed", principal, payload)])

    def auth_rejected(self, reason: str, key_id: str = "") -> None:
        """A token or key was refused. Written soon, together with others like it."""
        self._journal.database.metrics.auth_rejected.labels(reason).inc()
        self._rejections[reason, key_id] += 1
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_rejections())

    async def close(self) -> None:
        """Write what has not been written."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._append_rejections()

    async def _write_rejections(self) -> None:
        try:
            while self._rejections:
                await self._append_rejections()
                await asyncio.sleep(REJECTION_WINDOW_S)
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


def record(tx: Transaction, verb: str, tenant: str, by: str, payload: dict[str, Any]) -> None:
    """Append an audit entry of a change to a tenant's keys or tokens, in the transaction of the change.

    `by` names the operating system's user where no principal made the call.
    """
    caller = current_principal()
    named = {"By": caller.user or by, "ByTenant": caller.tenant, "ByKey": caller.key_id}
    owner = Principal(tenant=tenant, user=caller.user, session=caller.session)
    append(tx, [checked(_draft("audit", verb, owner, payload | named))])


def _draft(kind: str, verb: str, caller: Principal, payload: dict[str, Any]) -> Draft:
    return Draft(
        subject=build(kind, verb),
        run_id=RUN,
        payload_json=msgspec.json.encode(payload).decode(),
        tenant=caller.tenant,
        user=caller.user,
        session=caller.session,
    )
