"""The redactor of each tenant, by the policies of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tape.base.redaction_policy import DEFAULT_POLICY, RedactionPolicies
from tape.engine.security.redaction.engine import Redactor

# Redactors that are kept; one for a tenant.
MAX_CACHED = 1_024


class TenantRedactors:
    """The redactors of tenants: `of(tenant)`. A tenant without a policy of its own has the default one."""

    def __init__(self, safe_types: Sequence[str] = (), policies: RedactionPolicies = (), key: str = "") -> None:
        self._safe_types = safe_types
        self._policies = {"": DEFAULT_POLICY, **dict(policies)}
        self._key = key
        self.of = lru_cache(MAX_CACHED)(self._make)

    def _make(self, tenant: str) -> Redactor:
        policy = self._policies.get(tenant) or self._policies[""]
        # The tenant is part of the key: equal secrets of two tenants have different hashes.
        return Redactor(self._safe_types, policy, f"{self._key}\0{tenant}".encode())
