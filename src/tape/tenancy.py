"""Public names of tenancy."""

from tape.durable.tenancy import DEFAULT_TENANT, TenancyConfig, TenancyMode

__all__ = ["DEFAULT_TENANT", "TenancyConfig", "TenancyMode"]
