"""Revoked tokens: JWTs that are rejected by their `jti` although their signature is good."""

from __future__ import annotations

from tape.base.clock import now_ms
from tape.engine.security.access_version import next_version
from tape.engine.security.audit import record
from tape.errors import InvalidInput, ScopeRequired, TooManyKeys
from tape.model.entry import check_id
from tape.model.principal import ALL_TENANTS, current_principal
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, load_all
from tape.store.records import store as store_record

# Servers hold revoked tokens in memory until the tokens have expired.
MAX_OF_TENANT = 10_000
MAX_TOKENS = 100_000
MAX_UNTIL_MS = 10 * 365 * 86_400_000


class RevokedToken(Record, frozen=True):
    """A token of a tenant, which is rejected until it has expired."""

    tenant: str
    jti: str
    until_ms: int
    revoked_at_ms: int
    revoked_by: str
    version: int


def revoke_token(tx: Transaction, jti: str, tenant: str = "", *, for_ms: int, by: str = "") -> RevokedToken:
    """Reject the tokens of a tenant with this `jti` from now on, for at least as long as one can be valid."""
    caller = current_principal()
    if not caller.sees_all_tenants and tenant not in ("", caller.tenant):
        raise ScopeRequired(f"tenant {tenant!r} is not the caller's; that needs the scope {ALL_TENANTS}.")
    tenant = tenant or caller.tenant
    if not tenant:
        raise InvalidInput("tenant is empty; name the tenant of the token.")
    if not jti:
        raise InvalidInput("jti is empty; it is a claim of the token, which `tape access check` shows.")
    for name, value in (("jti", jti), ("tenant", tenant)):
        check_id(name, value)
    if not 0 < for_ms <= MAX_UNTIL_MS:
        raise InvalidInput("until must be after now, and at most 10 years ahead.")
    now = now_ms()
    _check_limits(tx, tenant, now)
    before = tx.one("SELECT until_ms FROM tape_revoked_tokens WHERE tenant = ? AND jti = ?", tenant, jti)
    until_ms = max(now + for_ms, before[0] if before else 0)
    token = RevokedToken(tenant, jti, until_ms, now, caller.user or by, next_version(tx))
    store_record(tx, "tape_revoked_tokens", ("tenant", "jti"), token)
    record(tx, "token_revoked", tenant, by, {"TokenID": jti, "UntilMs": token.until_ms})
    return token


def _check_limits(tx: Transaction, tenant: str, now: int) -> None:
    for limit, where, params, owner in (
        (MAX_OF_TENANT, "tenant = ? AND until_ms > ?", (tenant, now), f"tenant {tenant!r}"),
        (MAX_TOKENS, "until_ms > ?", (now,), "database"),
    ):
        row = tx.one(f"SELECT COUNT(*) FROM tape_revoked_tokens WHERE {where}", *params)
        if row is not None and row[0] >= limit:
            raise TooManyKeys(
                f"The {owner} has {row[0]} revoked tokens, {limit} at most."
                " Withdraw the key that signs them from the JWKS instead."
            )


def read_changed_tokens(reader: Reader, version: int) -> list[RevokedToken]:
    """The tokens that were revoked after a version."""
    rows = reader.query(f"SELECT {columns(RevokedToken)} FROM tape_revoked_tokens WHERE version > ?", version)
    return load_all(RevokedToken, rows)


def delete_expired(tx: Transaction, now: int) -> int:
    """Delete revocations of tokens that have expired; how many."""
    return tx.execute("DELETE FROM tape_revoked_tokens WHERE until_ms <= ?", now)
