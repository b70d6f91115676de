"""What every appended draft goes through before it is stored: secrets out, large fields to the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from tape.base.telemetry.metrics import Metrics
from tape.engine.security.artifacts import Artifacts
from tape.engine.security.audit import Audit
from tape.engine.security.redaction import Redactor, TenantRedactors, may_have_secret
from tape.errors import RedactionFailed
from tape.model.entry import Draft, type_of

T = TypeVar("T")

# A payload of more characters is searched in a thread: 64 Ki characters take up to 15 ms.
INLINE_CHARS = 64 * 1024
# Threads for such payloads. They compute, so more of them would only take time from the event loop.
THREADS = 2
# Characters of small payloads that are searched before other calls get their turn on the event loop, and what a draft
# counts beside its payload.
CHARS_AT_ONCE = 32 * 1024
CHARS_PER_DRAFT = 256
# Stored as they were sent: a replay of an MCP session must equal it (docs/mcp.md).
VERBATIM = frozenset({"mcp.message"})


class DraftScreen:
    """A screen for `Journal`. A draft that cannot be screened refuses its whole request."""

    def __init__(self, redactors: TenantRedactors, artifacts: Artifacts, audit: Audit, metrics: Metrics) -> None:
        self._redactors = redactors
        self._artifacts = artifacts
        self._audit = audit
        self._found = metrics.redactions
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tape-screen")

    async def __call__(self, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts as they may be stored."""
        screened: list[Draft] = []
        start = 0
        while start < len(drafts):
            if start:
                await asyncio.sleep(0)  # other calls are served between the parts of a large one
            end = _end_of_part(drafts, start)
            part = drafts[start:end]
            screened += part if self._is_harmless(part) else [await self._screened(draft) for draft in part]
            start = end
        return screened

    def _is_harmless(self, drafts: Sequence[Draft]) -> bool:
        """Whether the drafts are stored as they are: together they are searched for a fraction of what each costs."""
        payloads = [draft.payload_json for draft in drafts]
        longest = max(map(len, payloads))
        return (
            longest <= INLINE_CHARS and longest * 4 <= self._artifacts.threshold_bytes and not may_have_secret(payloads)
        )

    async def _screened(self, draft: Draft) -> Draft:
        payload = draft.payload_json
        redactor, kind = self._redactors.of(draft.tenant), type_of(draft.kind, draft.subject)
        if kind in VERBATIM:
            return draft
        if not redactor.is_safe(kind):
            try:
                payload = await self._redacted(redactor, payload)
            except RedactionFailed as error:
                await self._audit.redaction_failed(draft, str(error))
                raise
        if len(payload) * 4 > self._artifacts.threshold_bytes:
            payload, large = await self._run(self._artifacts.split, payload)
            await self._artifacts.store((draft.tenant, draft.user, draft.session), large)
        return draft if payload is draft.payload_json else msgspec.structs.replace(draft, payload_json=payload)

    async def _redacted(self, redactor: Redactor, payload: str) -> str:
        findings = await self._run(redactor.find, payload)
        action = "dry_run" if redactor.policy.dry_run else redactor.policy.action
        for finding in findings:
            self._found.labels(finding.rule.removeprefix("json:").partition(",")[0], action).inc()
        return redactor.stored(payload, findings)

    async def _run(self, search: Callable[[str], T], payload: str) -> T:
        """Search a payload: a small one on the event loop, a large one on a thread."""
        if len(payload) <= INLINE_CHARS:
            return search(payload)
        return await asyncio.get_running_loop().run_in_executor(self._threads, search, payload)


def _end_of_part(drafts: Sequence[Draft], start: int) -> int:
    """Where the drafts end that are searched before other calls get their turn; there is one at least."""
    chars, end = 0, start
    while end < len(drafts):
        chars += len(drafts[end].payload_json) + CHARS_PER_DRAFT
        if chars > CHARS_AT_ONCE and end > start:
            break
        end += 1
    return end
