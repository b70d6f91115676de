"""The identity of a run from the environment names of the event bus SDK: `AIPLEX_TENANT_ID`, `AIPLEX_ACTOR`, …"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tape.adk import identity
from tape.errors import MissingIdentity as MissingIdentity

PREFIX = "AIPLEX_"
LEASE_VARIABLE = "TAPE_LEASE_MS"


def with_aiplex_names(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with each `AIPLEX_<NAME>` also as `TAPE_<NAME>`, unless that is set.

    `AIPLEX_INSTANCE_ID` is the instance's id.
    """
    found = {f"TAPE_{name.removeprefix(PREFIX)}": value for name, value in env.items() if name.startswith(PREFIX)}
    if f"{PREFIX}INSTANCE_ID" in env:
        found["TAPE_AIPLEX_INSTANCE_ID"] = env[f"{PREFIX}INSTANCE_ID"]
    return found | dict(env)


def lease_ttl_ms(env: Mapping[str, str] | None = None) -> int | None:
    """The lease of a run in ms that `TAPE_LEASE_MS` says; None if it is not set."""
    text = (os.environ if env is None else env).get(LEASE_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{LEASE_VARIABLE} {text!r} must be a whole number of milliseconds, at least 1.")
    return int(text)


class RunIdentity(identity.RunIdentity):
    """The identity of a run; `from_env` also reads `AIPLEX_…`."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, strict: bool | None = None) -> RunIdentity:
        """The identity that `AIPLEX_TENANT_ID`, `AIPLEX_ACTOR`, … or `TAPE_TENANT_ID`, `TAPE_ACTOR`, … describe."""
        made = super().from_env(with_aiplex_names(os.environ if env is None else env), strict=strict)
        assert isinstance(made, RunIdentity)
        return made
