"""What every appended draft goes through before it is stored: secrets out, large fields to the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from tape.engine.security.artifacts import Artifacts
from tape.engine.security.audit import Audit
from tape.engine.security.redaction import Redactor
from tape.errors import RedactionFailed
from tape.model.entry import Draft, type_of

# A payload of more characters is searched in a thread: 64 Ki characters take up to 15 ms.
INLINE_CHARS = 64 * 1024


class DraftScreen:
    """A screen for `Journal`. A draft that cannot be screened refuses its whole request."""

    def __init__(self, redactor: Redactor, artifacts: Artifacts, audit: Audit) -> None:
        self._redactor = redactor
        self._artifacts = artifacts
        self._audit = audit

    async def __call__(self, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts as they may be stored."""
        return [await self._screened(draft) for draft in drafts]

    async def _screened(self, draft: Draft) -> Draft:
        payload = draft.payload_json
        if not self._redactor.is_safe(type_of(draft.kind, draft.subject)):
            try:
                payload = await self._redacted(payload)
            except RedactionFailed as error:
                await self._audit.redaction_failed(draft, str(error))
                raise
        if len(payload) * 4 > self._artifacts.threshold_bytes:
            payload = await self._artifacts.offload((draft.tenant, draft.user, draft.session), payload)
        return draft if payload is draft.payload_json else msgspec.structs.replace(draft, payload_json=payload)

    async def _redacted(self, payload: str) -> str:
        if len(payload) <= INLINE_CHARS:
            return self._redactor.redact(payload)
        return await asyncio.to_thread(self._redactor.redact, payload)
