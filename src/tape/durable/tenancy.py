"""The tenant of a process, and how strictly tenants are separated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tape.errors import InvalidConfig

DEFAULT_TENANT = "default"


class TenancyMode(StrEnum):
    """`single`: one tenant. `soft`: tenants are labelled. `hard`: each has a server and a database of its own."""

    SINGLE = "single"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True)
class TenancyConfig:
    """The tenant of this process, and the mode it was deployed for."""

    mode: TenancyMode = TenancyMode.SINGLE
    tenant_id: str = DEFAULT_TENANT

    @staticmethod
    def from_dict(raw: Mapping[str, Any] | None) -> TenancyConfig:
        """From `{"mode": …, "tenant_id": …}`; what is missing has its default, what is unknown is an error."""
        raw = raw or {}
        if unknown := sorted(set(raw) - {"mode", "tenant_id"}):
            raise InvalidConfig(f"tenancy has no setting {unknown[0]!r}; it has mode and tenant_id.")
        mode = raw.get("mode", TenancyMode.SINGLE)
        try:
            mode = TenancyMode(str(getattr(mode, "value", mode)).lower())
        except ValueError:
            known = ", ".join(each.value for each in TenancyMode)
            raise InvalidConfig(f"tenancy mode {mode!r} is not one of {known}.") from None
        return TenancyConfig(mode, str(raw.get("tenant_id") or DEFAULT_TENANT))

    @staticmethod
    def from_env() -> TenancyConfig:
        """From TAPE_TENANCY_MODE and TAPE_TENANT_ID."""
        names = {"mode": "TAPE_TENANCY_MODE", "tenant_id": "TAPE_TENANT_ID"}
        return TenancyConfig.from_dict({key: os.environ[name] for key, name in names.items() if os.environ.get(name)})

    def is_hard(self) -> bool:
        """Whether tenants must not share anything."""
        return self.mode is TenancyMode.HARD

    def warn_if_hard_but_unenforced(self) -> list[str]:
        """Warnings about a `hard` mode that is not enforced; empty if there are none."""
        if not self.is_hard():
            return []
        warnings = []
        if self.tenant_id == DEFAULT_TENANT:
            warnings.append("tenancy is hard, but no tenant is named: set TAPE_TENANT_ID.")
        if not os.environ.get("TAPE_STORE"):
            warnings.append("tenancy is hard, but TAPE_STORE does not name a database of this tenant alone.")
        return warnings
