"""The principal of a call: the tenant it acts for, and its scopes.

An endpoint makes the principal once and sets it with `acting_as`; every function that the call reaches, on whichever
thread, asks `current_principal()`. Work that no call has caused, such as matching, runs as SYSTEM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from tape.errors import ScopeRequired, SubjectNotGranted
from tape.model.grants import Grants, compile_grants

AGENT = "agent"
WORKER = "worker"
APPROVER = "approver"
OPERATOR = "operator"
ADMIN = "admin"
RUNTIME = "runtime"
GATEWAY = "gateway"
FLEET = "console:fleet"
ALL_TENANTS = "tenant:*"
SYSTEM_SCOPE = "system"
# An older name for three scopes at once.
SERVICE = "service"
SERVICE_SCOPES = frozenset({AGENT, WORKER, OPERATOR})

# By how much the clock of an issuer of tokens may be ahead of ours.
CLOCK_SKEW_S = 60.0

# Every scope that a token or key can carry. Other words in a token's `scopes` belong to other systems and are left out.
SCOPES = frozenset(
    {AGENT, WORKER, APPROVER, OPERATOR, ADMIN, RUNTIME, GATEWAY, FLEET, ALL_TENANTS, SYSTEM_SCOPE, SERVICE}
)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes a call, and what it may do. `expires_at` is in seconds since 1970; None is never."""

    tenant: str = ""
    user: str = ""
    session: str = ""
    scopes: frozenset[str] = frozenset()
    # Subject patterns of the entries it may read and append; None is all that its scopes allow.
    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    key_id: str = ""
    # The `jti` of its token, by which that one token can be revoked.
    token_id: str = ""
    expires_at: float | None = None
    # On an open server callers name their own tenant, user and session, or none.
    is_open: bool = False
    # Whether it sees all tenants of a server with keys, so that the event ids of what it reads name the tenant.
    reads_several_tenants: bool = False
    # Names under which the tenant has entries from before it got its own.
    former_tenants: tuple[str, ...] = ()

    @property
    def triple(self) -> tuple[str, str, str]:
        """Tenant, user and session: whose entries a principal without further scopes sees."""
        return self.tenant, self.user, self.session

    def has(self, *scopes: str) -> bool:
        """Whether the principal has one of the scopes."""
        return not self.scopes.isdisjoint(scopes)

    @property
    def is_owner(self) -> bool:
        """Whether the caller owns an open server: it names no tenant, user or session, and sees every entry."""
        return self.is_open and not any(self.triple)

    @property
    def sees_all_tenants(self) -> bool:
        """Whether no tenant is hidden from the principal."""
        return self.has(ALL_TENANTS, SYSTEM_SCOPE) or (self.is_open and not self.tenant)

    def sees(self, tenant: str) -> bool:
        """Whether things of the tenant exist for the principal."""
        return tenant == self.tenant or tenant in self.former_tenants or self.sees_all_tenants

    @property
    def only_tenant(self) -> str | None:
        """The only tenant whose things exist for the principal; None if it sees all."""
        return None if self.sees_all_tenants else self.tenant

    @property
    def visible_tenants(self) -> tuple[str, ...] | None:
        """The tenants whose entries the principal sees: its own and its former names; None if it sees all."""
        return None if self.sees_all_tenants else (self.tenant, *self.former_tenants)

    @property
    def can_widen(self) -> bool:
        """Whether the principal may read beyond its own user and session."""
        return self.is_open or self.has(ADMIN, FLEET, ALL_TENANTS, SYSTEM_SCOPE)

    @property
    def read_grants(self) -> Grants | None:
        """The grants that entries must fit to reach the principal; None if all do."""
        return None if self.read is None else compile_grants(self.read)

    @property
    def write_grants(self) -> Grants | None:
        """The grants that subjects of appended entries must fit; None if all do."""
        return None if self.write is None else compile_grants(self.write)

    def may_read(self, subject: str) -> bool:
        """Whether entries of a subject exist for the principal, as far as its grants go."""
        return self.read is None or compile_grants(self.read).matches(subject)

    def may_write(self, subject: str) -> bool:
        """Whether the grants of the principal include an append to a subject."""
        return self.write is None or compile_grants(self.write).matches(subject)

    def check_read(self, subject: str) -> None:
        """Raise SubjectNotGranted unless the principal may read a subject that it has named."""
        if not self.may_read(subject):
            raise SubjectNotGranted(f"subject {subject!r} is not among the read grants, {self.read_grants}.")

    def check_write(self, subject: str) -> None:
        """Raise SubjectNotGranted unless the principal may append to a subject."""
        if not self.may_write(subject):
            raise SubjectNotGranted(f"subject {subject!r} is not among the write grants, {self.write_grants}.")

    @property
    def may_append_reserved(self) -> bool:
        """Whether the principal may append entries of reserved kinds, to restore or migrate them.

        It must be a caller's key: SYSTEM, which the server itself acts as, has none.
        """
        return self.has(SYSTEM_SCOPE) and bool(self.key_id)

    def tenant_for(self, requested: str) -> str:
        """The tenant that something new belongs to. ScopeRequired if it is another than the principal's own."""
        if self.is_open or self.has(ALL_TENANTS, SYSTEM_SCOPE):
            return requested or self.tenant
        if requested not in ("", self.tenant):
            raise ScopeRequired(f"tenant {requested!r} is not the caller's; that needs the scope {ALL_TENANTS}.")
        return self.tenant


SYSTEM = Principal(scopes=frozenset({SYSTEM_SCOPE}))

_current: ContextVar[Principal] = ContextVar("principal", default=SYSTEM)


def current_principal() -> Principal:
    """The principal of the call that is being served; SYSTEM outside of any call."""
    return _current.get()


def set_principal(principal: Principal) -> None:
    """Act as the principal from now on, in this call's context."""
    _current.set(principal)


@contextmanager
def acting_as(principal: Principal) -> Iterator[None]:
    """Act as the principal within the block."""
    token = _current.set(principal)
    try:
        yield
    finally:
        _current.reset(token)


def expand_scopes(names: frozenset[str]) -> frozenset[str]:
    """The known scopes among the names, with `service` written out."""
    known = SCOPES & names
    return known | SERVICE_SCOPES if SERVICE in known else known
