"""Service keys of tenants, for workers, runtimes, gateways and SDK processes: create, list, rotate, revoke.

A key is shown once, when it is made; the database has its digest. Every function acts for the current principal, which
sees the keys of its own tenant. Every change is an audit entry in the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tape.base.clock import now_ms
from tape.engine.security.access_version import next_version
from tape.engine.security.audit import record
from tape.errors import InvalidInput, InvalidPattern, KeyExists, NotFound, ScopeRequired, TooManyKeys
from tape.model.entry import check_id
from tape.model.grants import compile_grants
from tape.model.pattern import Pattern
from tape.model.principal import (
    ADMIN,
    AGENT,
    ALL_TENANTS,
    APPROVER,
    OPERATOR,
    SCOPES,
    SERVICE,
    SYSTEM_SCOPE,
    WORKER,
    Principal,
    current_principal,
    expand_scopes,
)
from tape.model.service_key import NewKey, make_key
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, insert, load_all

# Keys of one tenant and of all, those that were replaced and are still valid included. Servers hold them in memory.
MAX_KEYS_OF_TENANT = 1_000
MAX_KEYS = 100_000
MAX_PATTERN_CHARS = 1_024
MAX_PAGE = 1_000
MAX_LIFETIME_MS = 10 * 365 * 86_400_000
MAX_OVERLAP_MS = 90 * 86_400_000
# Expired, replaced and revoked keys are listed for this long.
KEEP_ENDED_MS = 30 * 86_400_000
# The key id of a principal that came from a service key: this and the id in the key.
KEY_ID_PREFIX = "key:"
# What `admin` may do itself in its tenant, so that its keys may do it too.
_GRANTED_BY_ADMIN = frozenset({AGENT, WORKER, APPROVER, OPERATOR, SERVICE})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class ServiceKey(Record, frozen=True):
    """A secret of a key, without the secret itself. Times are 0 where there is none."""

    key_id: str
    tenant: str
    name: str
    digest: str
    user_id: str
    scopes: str
    read_patterns: str
    write_patterns: str
    created_at_ms: int
    created_by: str
    expires_at_ms: int
    retires_at_ms: int
    revoked_at_ms: int
    last_used_at_ms: int
    version: int

    @property
    def ends_at_ms(self) -> int:
        """When the key stops being valid; 0 is never."""
        ends = [at for at in (self.expires_at_ms, self.retires_at_ms, self.revoked_at_ms) if at]
        return min(ends, default=0)

    def state_at(self, now: int) -> str:
        """`valid`, or why it is not: `revoked`, `replaced` or `expired`; `replaced soon` within an overlap."""
        if self.revoked_at_ms:
            return "revoked"
        if self.retires_at_ms and self.retires_at_ms <= now:
            return "replaced"
        if self.expires_at_ms and self.expires_at_ms <= now:
            return "expired"
        return "replaced soon" if self.retires_at_ms else "valid"

    def principal(self) -> Principal:
        """The principal of a call with this key. Its session is the key's name unless the call names one."""
        return Principal(
            tenant=self.tenant,
            user=self.user_id,
            session=self.name,
            scopes=expand_scopes(frozenset(self.scopes.split())),
            read=_patterns(self.read_patterns),
            write=_patterns(self.write_patterns),
            key_id=KEY_ID_PREFIX + self.key_id,
            expires_at=self.ends_at_ms / 1000 if self.ends_at_ms else None,
        )

    def describe(self, now: int) -> dict[str, Any]:
        """What may be shown of the key: everything but its digest. Times in milliseconds since 1970, or None."""
        times = ("created_at_ms", "expires_at_ms", "retires_at_ms", "revoked_at_ms", "last_used_at_ms")
        return {
            "name": self.name,
            "tenant": self.tenant,
            "key_id": self.key_id,
            "state": self.state_at(now),
            "user": self.user_id,
            "scopes": self.scopes.split(),
            "read": _patterns(self.read_patterns),
            "write": _patterns(self.write_patterns),
            "created_by": self.created_by,
            **{name: getattr(self, name) or None for name in times},
        }


class KeyRequest(NamedTuple):
    """A new key. `lifetime_ms` None is a key that does not expire; patterns None are all that its scopes allow."""

    name: str
    tenant: str = ""
    scopes: Sequence[str] = ()
    user: str = ""
    lifetime_ms: int | None = None
    read: Sequence[str] | None = None
    write: Sequence[str] | None = None


class IssuedKey(NamedTuple):
    """A key that was just made, and its text, which is not stored."""

    key: ServiceKey
    text: str


def create(tx: Transaction, request: KeyRequest, by: str = "") -> IssuedKey:
    """Make a key. It gets no scope and no pattern that its creator lacks."""
    caller = current_principal()
    scopes = _checked_scopes(request.scopes)
    tenant = _tenant_for(caller, request.tenant)
    if not tenant and scopes.isdisjoint({ALL_TENANTS, SYSTEM_SCOPE}):
        raise InvalidInput(f"tenant is empty; name the tenant of the key, or give it the scope {ALL_TENANTS}.")
    _check_name(request.name)
    for name, value in (("tenant", tenant), ("user", request.user)):
        check_id(name, value)
    now = now_ms()
    made = make_key()
    key = ServiceKey(
        key_id=made.key_id,
        tenant=tenant,
        name=request.name,
        digest=made.digest,
        user_id=request.user or request.name,
        scopes=" ".join(sorted(scopes)),
        read_patterns=_encoded("read", request.read, caller.read),
        write_patterns=_encoded("write", request.write, caller.write),
        created_at_ms=now,
        created_by=caller.user or by,
        expires_at_ms=_expiry(now, request.lifetime_ms),
        retires_at_ms=0,
        revoked_at_ms=0,
        last_used_at_ms=0,
        version=0,
    )
    _check_grantable(caller, key)
    if _select(tx, "name = ? AND tenant = ? AND retires_at_ms = 0 AND revoked_at_ms = 0", key.name, tenant):
        raise KeyExists(
            f"There is a service key {key.name!r} already. Choose another name, rotate it with"
            f" `tape keys rotate {key.name}`, or revoke it first."
        )
    _check_limits(tx, tenant, now)
    return _issue(tx, key, made, "key_created", by)


def list_keys(
    reader: Reader | Transaction,
    tenant: str | None = None,
    *,
    after: str = "",
    limit: int = MAX_PAGE,
    with_ended: bool = False,
) -> list[ServiceKey]:
    """Keys by tenant and name, of one tenant or of all that the caller sees. A page begins after a `page_key`."""
    caller = current_principal()
    if tenant is not None:
        check_id("tenant", tenant)
        tenant = _tenant_for(caller, tenant)
    elif not caller.sees_all_tenants:
        tenant = caller.tenant
    params: list[str | int]
    conditions, params = ["(tenant, name, key_id) > (?, ?, ?)"], [*_after(after)]
    if tenant is not None:
        conditions.append("tenant = ?")
        params.append(tenant)
    if not with_ended:
        conditions.append("revoked_at_ms = 0 AND (retires_at_ms = 0 OR retires_at_ms > ?)")
        params.append(now_ms())
    where = " AND ".join(conditions)
    return _select(reader, f"{where} ORDER BY tenant, name, key_id LIMIT ?", *params, min(max(limit, 1), MAX_PAGE))


def page_key(key: ServiceKey) -> str:
    """Where the page after this key begins."""
    return f"{key.tenant}/{key.name}/{key.key_id}"


def rotate(
    tx: Transaction,
    name: str,
    tenant: str | None = None,
    *,
    overlap_ms: int,
    lifetime_ms: int | None = None,
    by: str = "",
) -> IssuedKey:
    """Replace the secret of a key; the one before stays valid for the overlap.

    The new secret expires as long after now as the one before did after it was made, unless `lifetime_ms` is given.
    The caller learns the secret, so it must be one who could create such a key.
    """
    if not 0 <= overlap_ms <= MAX_OVERLAP_MS:
        raise InvalidInput(f"overlap must be between 0 and {MAX_OVERLAP_MS // 86_400_000} days.")
    before = _find_current(tx, name, tenant)
    _check_grantable(current_principal(), before)
    now = now_ms()
    _check_limits(tx, before.tenant, now)
    if lifetime_ms is None and before.expires_at_ms:
        lifetime_ms = before.expires_at_ms - before.created_at_ms
    tx.execute(
        "UPDATE tape_service_keys SET retires_at_ms = ?, version = ? WHERE key_id = ?",
        now + overlap_ms,
        next_version(tx),
        before.key_id,
    )
    made = make_key()
    key = msgspec.structs.replace(
        before,
        key_id=made.key_id,
        digest=made.digest,
        created_at_ms=now,
        created_by=current_principal().user or by,
        expires_at_ms=_expiry(now, lifetime_ms),
        last_used_at_ms=0,
    )
    return _issue(tx, key, made, "key_rotated", by, ReplacedKeyID=before.key_id, ReplacedUntilMs=now + overlap_ms)


def revoke(tx: Transaction, name: str, tenant: str | None = None, by: str = "") -> ServiceKey:
    """End a key at once, with the secret that a rotation has replaced."""
    key = _find_current(tx, name, tenant)
    now = now_ms()
    tx.execute(
        "UPDATE tape_service_keys SET revoked_at_ms = ?, version = ?"
        " WHERE tenant = ? AND name = ? AND revoked_at_ms = 0 AND (retires_at_ms = 0 OR retires_at_ms > ?)",
        now,
        next_version(tx),
        key.tenant,
        key.name,
        now,
    )
    record(tx, "key_revoked", key.tenant, by, {"Name": key.name, "KeyID": key.key_id})
    return msgspec.structs.replace(key, revoked_at_ms=now)


def delete_ended(tx: Transaction, now: int) -> int:
    """Delete keys that ended more than 30 days ago; how many."""
    until = now - KEEP_ENDED_MS
    return tx.execute(
        "DELETE FROM tape_service_keys WHERE (revoked_at_ms > 0 AND revoked_at_ms < ?)"
        " OR (retires_at_ms > 0 AND retires_at_ms < ?) OR (expires_at_ms > 0 AND expires_at_ms < ?)",
        until,
        until,
        until,
    )


def read_changed_keys(reader: Reader, version: int) -> list[ServiceKey]:
    """The keys that changed after a version, oldest change first."""
    return _select(reader, "version > ? ORDER BY version", version)


def record_use(tx: Transaction, used_at_ms: dict[str, int]) -> None:
    """Write down when keys were used last."""
    for key_id, at_ms in used_at_ms.items():
        tx.execute(
            "UPDATE tape_service_keys SET last_used_at_ms = ? WHERE key_id = ? AND last_used_at_ms < ?",
            at_ms,
            key_id,
            at_ms,
        )


def _select(reader: Reader | Transaction, where: str, *params: Any) -> list[ServiceKey]:
    return load_all(
        ServiceKey, reader.query(f"SELECT {columns(ServiceKey)} FROM tape_service_keys WHERE {where}", *params)
    )


def _find_current(tx: Transaction, name: str, tenant: str | None) -> ServiceKey:
    """The newest secret of a key. A key that the caller does not see does not exist for it."""
    caller = current_principal()
    where = "name = ? AND retires_at_ms = 0 AND revoked_at_ms = 0 ORDER BY tenant"
    named = _select(tx, where, name) if _NAME.fullmatch(name) else []
    found = [key for key in named if caller.sees(key.tenant) and tenant in (None, key.tenant)]
    if not found:
        raise NotFound(f"no such service key: {name[:200]!r}.")
    if len(found) > 1:
        tenants = ", ".join(repr(key.tenant) for key in found[:5])
        raise InvalidInput(f"Several tenants have a service key {name!r}: {tenants}. Name one (`tenant`, --tenant).")
    return found[0]


def _issue(tx: Transaction, key: ServiceKey, made: NewKey, verb: str, by: str, **more: Any) -> IssuedKey:
    key = msgspec.structs.replace(key, version=next_version(tx))
    insert(tx, "tape_service_keys", key)
    payload = {"Name": key.name, "KeyID": key.key_id, "Scopes": key.scopes.split(), "ExpiresAtMs": key.expires_at_ms}
    record(tx, verb, key.tenant, by, payload | more)
    return IssuedKey(key, made.text)


def _tenant_for(caller: Principal, requested: str) -> str:
    if caller.sees_all_tenants:
        return requested or caller.tenant
    if requested not in ("", caller.tenant):
        raise ScopeRequired(f"tenant {requested!r} is not the caller's; that needs the scope {ALL_TENANTS}.")
    return caller.tenant


def _check_grantable(caller: Principal, key: ServiceKey) -> None:
    """Raise unless the caller could do itself what the key may do."""
    if caller.has(SYSTEM_SCOPE):
        return
    granted = caller.scopes | _GRANTED_BY_ADMIN if caller.has(ADMIN) else caller.scopes
    if lacking := sorted(set(key.scopes.split()) - granted):
        names = ", ".join(f"`{scope}`" for scope in lacking)
        raise ScopeRequired(f"a key with the scope {names} can be issued only by a caller that has it.")
    for name, own, wanted in (("read", caller.read, key.read_patterns), ("write", caller.write, key.write_patterns)):
        if own is None:
            continue
        for text in ("/**",) if (patterns := _patterns(wanted)) is None else patterns:
            if not compile_grants(own).covers(Pattern(text)):
                raise ScopeRequired(f"{name} pattern {text!r} reaches beyond the {name} patterns of the caller.")


def _check_limits(tx: Transaction, tenant: str, now: int) -> None:
    """Raise if there are as many valid keys as there may be."""
    is_valid = "revoked_at_ms = 0 AND (retires_at_ms = 0 OR retires_at_ms > ?)"
    for limit, where, params, owner in (
        (MAX_KEYS_OF_TENANT, f"tenant = ? AND {is_valid}", (tenant, now), f"tenant {tenant!r}"),
        (MAX_KEYS, is_valid, (now,), "database"),
    ):
        row = tx.one(f"SELECT COUNT(*) FROM tape_service_keys WHERE {where}", *params)
        if row is not None and row[0] >= limit:
            raise TooManyKeys(f"The {owner} has {row[0]} service keys, {limit} at most. Revoke those out of use.")


def _checked_scopes(scopes: Sequence[str]) -> frozenset[str]:
    names = frozenset(filter(None, scopes))
    if unknown := names - SCOPES:
        raise InvalidInput(f"scope {min(unknown)[:100]!r} is not known; the scopes are {', '.join(sorted(SCOPES))}.")
    return names


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"name {name[:200]!r} must be letters, digits, '.', '_' or '-', at most 128, not beginning with a sign."
        )


def _expiry(now: int, lifetime_ms: int | None) -> int:
    if lifetime_ms is None:
        return 0
    if not 0 < lifetime_ms <= MAX_LIFETIME_MS:
        raise InvalidInput("expires must be after now, and at most 10 years ahead.")
    return now + lifetime_ms


def _encoded(name: str, given: Sequence[str] | None, inherited: tuple[str, ...] | None) -> str:
    """Patterns as they are stored; empty for None. A key without its own inherits those of its creator."""
    patterns = inherited if given is None else tuple(dict.fromkeys(given))
    if patterns is None:
        return ""
    for text in patterns:
        if not 0 < len(text) <= MAX_PATTERN_CHARS:
            raise InvalidInput(f"{name} pattern {text[:40]!r} must have 1 to {MAX_PATTERN_CHARS} characters.")
    try:
        compile_grants(patterns)
    except InvalidPattern as error:
        raise InvalidInput(f"{name}: {error}") from error
    return msgspec.json.encode(patterns).decode()


def _patterns(stored: str) -> tuple[str, ...] | None:
    return msgspec.json.decode(stored, type=tuple[str, ...]) if stored else None


def _after(after: str) -> tuple[str, str, str]:
    if not after:
        return "", "", ""
    tenant, *rest = after.rsplit("/", 2)
    if len(rest) != 2 or "\0" in after:
        raise InvalidInput(f"after {after[:200]!r} is not a cursor; take `next` of the page before.")
    return tenant, rest[0], rest[1]
