"""Redaction policies: how secrets in the payloads of a tenant are hidden, from the tables of tape.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tape.errors import InvalidConfig

MASK = "mask"
HASH = "hash"
MAX_ALLOWED_KEYS = 1_000
MIN_KEY_CHARS = 32


@dataclass(frozen=True, slots=True)
class RedactionPolicy:
    """How secrets are hidden, and under which keys they are not. A dry run counts them and stores them unchanged."""

    action: str = MASK
    allow_keys: frozenset[str] = frozenset()
    dry_run: bool = False


DEFAULT_POLICY = RedactionPolicy()
# The policy of each tenant; the one without a name is for all others.
RedactionPolicies = tuple[tuple[str, RedactionPolicy], ...]


def parse_policies(where: str, table: Any) -> RedactionPolicies:
    """The policies of the table [redaction] and its [redaction.tenants.NAME]; a tenant inherits what it leaves out."""
    table = _as_table(where, table)
    tenants = _as_table(f"{where}.tenants", table.get("tenants", {}))
    own = {name: value for name, value in table.items() if name != "tenants"}
    default = _parse(where, own, DEFAULT_POLICY)
    named = ((name, _parse(f"{where}.tenants.{name}", given, default)) for name, given in tenants.items())
    return (("", default), *named)


def check_key(policies: RedactionPolicies, key: str) -> None:
    """Raise InvalidConfig if secrets are to be hashed without a key that cannot be guessed."""
    tenant = next((tenant for tenant, policy in policies if policy.action == HASH), None)
    if tenant is not None and len(key) < MIN_KEY_CHARS:
        table = f"redaction.tenants.{tenant}" if tenant else "redaction"
        raise InvalidConfig(
            f"{table}.action is {HASH}, which needs a key of at least {MIN_KEY_CHARS} characters: set"
            " TAPE_REDACTION_KEY, for example to the output of `openssl rand -hex 32`."
        )


def _parse(where: str, given: Any, base: RedactionPolicy) -> RedactionPolicy:
    policy = base
    for name, value in _as_table(where, given).items():
        if name == "action":
            if value not in (MASK, HASH):
                raise InvalidConfig(f"{where}.action is {value!r}; use {MASK} or {HASH}.")
            policy = replace(policy, action=value)
        elif name == "allow_keys":
            if not isinstance(value, list) or not all(isinstance(key, str) and key for key in value):
                raise InvalidConfig(f"{where}.allow_keys is {value!r}; it must be a list of keys of payloads.")
            if len(value) > MAX_ALLOWED_KEYS:
                raise InvalidConfig(
                    f"{where}.allow_keys has {len(value)} keys; at most {MAX_ALLOWED_KEYS} are allowed."
                )
            policy = replace(policy, allow_keys=frozenset(key.lower() for key in value))
        elif name == "dry_run":
            if not isinstance(value, bool):
                raise InvalidConfig(f"{where}.dry_run is {value!r}; it must be true or false.")
            policy = replace(policy, dry_run=value)
        else:
            raise InvalidConfig(f"{where} has the unknown key {name!r}. Known are action, allow_keys, dry_run.")
    return policy


def _as_table(where: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise InvalidConfig(f"{where} is {given!r}; it must be a table: [{where}]")
    return given
