"""Limits per tenant, checked before a request is decoded, the same for gRPC and HTTP.

Calls, bytes, appends and streams of a tenant are counted together, whichever sessions its callers name. Beyond a limit
a call is refused. While several tenants make calls, each has some slots, and more of its calls wait for one: so a
flood waits behind itself. Callers of an open server and of the server's own programs have no limits per tenant.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import NamedTuple

from tape.base.telemetry.metrics import Metrics
from tape.errors import TenantLimitReached
from tape.model.principal import AGENT, GATEWAY, RUNTIME, SYSTEM_SCOPE, WORKER, Principal

# Key of the admitted call in the scope of an HTTP request; the router ends it with the response.
TICKET = "tape.ticket"
# Seconds after which a refused caller may try again, where no rate says how long it takes.
RETRY_AFTER_S = 1.0
# Seconds since two tenants have made calls for which they share the server, and for which they compete for it. The
# first bounds what is in progress before the call of a tenant that makes few; the second favors those that make many.
SHARED_S = 60.0
COMPETING_S = 1.0


class SlotCount(NamedTuple):
    """The slots of each tenant for its calls in progress, while tenants share the server and while they compete."""

    shared: int
    competing: int


WRITE_SLOTS = SlotCount(64, 4)
# A long query holds no appends up: calls that only read have slots of their own.
READ_SLOTS = SlotCount(16, 2)
# A larger request takes more of the slots.
BYTES_PER_SLOT = 16 << 10
# While tenants compete and calls wait, a slot rests for this part of the time that its last call took, so that other
# tenants get their turn on the event loop and in the writer.
REST = 1.0
# Programs that serve many users have the streams of their tenant, not those of one user.
PROGRAM_SCOPES = (AGENT, WORKER, RUNTIME, GATEWAY)
# Tenants without calls that are remembered for their rates.
MAX_IDLE_TENANTS = 1_000


class TenantLimits(NamedTuple):
    """The settings of the same names; 0 is unlimited."""

    tenant_max_calls: int = 512
    tenant_max_bytes_in_flight: int = 64 << 20
    tenant_max_streams: int = 1_000
    user_max_streams: int = 100
    tenant_appends_per_s: float = 0.0
    tenant_bytes_per_s: float = 0.0


class _Rate:
    """A token bucket that holds one second's worth. The last taker may overdraw it; the next waits for that."""

    __slots__ = ("_at", "_per_s", "_tokens")

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._tokens = per_s
        self._at = time.monotonic()

    def seconds_until_free(self) -> float:
        """Seconds until something can be taken; 0 if it can now."""
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._at) * self._per_s, self._per_s)
        self._at = now
        return 0.0 if self._tokens > 0 else max(-self._tokens / self._per_s, 0.001)

    def take(self, amount: float) -> None:
        self._tokens -= amount

    @property
    def is_full(self) -> bool:
        self.seconds_until_free()
        return self._tokens >= self._per_s


class _Sharing:
    """How long ago two tenants have last made calls. The server's own programs, of no tenant, do not count."""

    __slots__ = ("_at", "_last_tenant")

    def __init__(self) -> None:
        self._at = float("-inf")
        self._last_tenant = ""

    def note(self, tenant: str) -> None:
        """A call of a tenant begins."""
        if tenant and tenant != self._last_tenant:
            if self._last_tenant:
                self._at = time.monotonic()
            self._last_tenant = tenant

    @property
    def seconds(self) -> float:
        """Seconds since a call that was not of the same tenant as the one before."""
        return time.monotonic() - self._at

    @property
    def is_competing(self) -> bool:
        """Whether tenants compete for the server."""
        return self.seconds < COMPETING_S


class _Slots:
    """The slots of a tenant that calls in progress have taken, and the calls that wait, first in, first out."""

    __slots__ = ("_count", "_sharing", "taken", "waiting")

    def __init__(self, count: SlotCount, sharing: _Sharing) -> None:
        self._count = count
        self._sharing = sharing
        self.taken = 0
        self.waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def has_free(self, weight: int) -> bool:
        """Whether a call can begin. The heaviest begins when no other is in progress."""
        if not self.taken or self.taken + weight <= self._count.competing:
            return True
        seconds = self._sharing.seconds
        return seconds >= SHARED_S or (seconds >= COMPETING_S and self.taken + weight <= self._count.shared)

    def grant(self) -> None:
        """Give free slots to the calls that wait longest."""
        while self.waiting and self.has_free(self.waiting[0][1]):
            future, weight = self.waiting.popleft()
            if not future.done():
                self.taken += weight
                future.set_result(None)


class _Tenant:
    """What one tenant has in progress."""

    __slots__ = ("appends", "bytes", "bytes_rate", "calls", "name", "reads", "streams", "users", "writes")

    def __init__(self, name: str, limits: TenantLimits, sharing: _Sharing) -> None:
        self.name = name
        self.calls = 0
        self.bytes = 0
        self.streams = 0
        self.users: Counter[str] = Counter()
        self.appends = _Rate(limits.tenant_appends_per_s) if limits.tenant_appends_per_s else None
        self.bytes_rate = _Rate(limits.tenant_bytes_per_s) if limits.tenant_bytes_per_s else None
        self.reads = _Slots(READ_SLOTS, sharing)
        self.writes = _Slots(WRITE_SLOTS, sharing)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with this object."""
        return not (self.calls or self.streams or self.reads.taken or self.writes.taken) and all(
            rate is None or rate.is_full for rate in (self.appends, self.bytes_rate)
        )


class Admission:
    """Admits calls and streams of tenants within their limits. Belongs to one event loop."""

    def __init__(self, limits: TenantLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._refused = metrics.tenant_limited
        self._delayed = metrics.calls_delayed
        self.sharing = _Sharing()
        self._exempt = Ticket(self, None, 0, _Slots(WRITE_SLOTS, self.sharing))
        self._tenants: dict[str, _Tenant] = {}

    def enter(self, principal: Principal, size: int, *, appends: bool = False, reads: bool = False) -> Ticket:
        """Admit a call with a request of so many bytes until its `leave`. Raises TenantLimitReached."""
        if _is_exempt(principal):
            return self._exempt
        tenant, limits = self._tenant(principal.tenant), self._limits
        if limits.tenant_max_calls and tenant.calls >= limits.tenant_max_calls:
            raise self._refusal("tenant_max_calls", f"{tenant.calls} calls are in progress")
        self._check_bytes(tenant, size)
        if appends and tenant.appends is not None:
            self._check_rate("tenant_appends_per_s", tenant.appends, "appends")
        if tenant.bytes_rate is not None:
            self._check_rate("tenant_bytes_per_s", tenant.bytes_rate, "bytes")
            tenant.bytes_rate.take(size)
        if appends and tenant.appends is not None:
            tenant.appends.take(1)
        tenant.calls += 1
        tenant.bytes += size
        return Ticket(self, tenant, size, tenant.reads if reads else tenant.writes)

    def open_stream(self, principal: Principal) -> Stream:
        """Admit a stream of any kind until its `close`. Raises TenantLimitReached."""
        if _is_exempt(principal):
            return Stream(self, None, "")
        tenant, limits = self._tenant(principal.tenant), self._limits
        # A token's session can be any: streams count for its user, or for the key that has none.
        user = principal.user or principal.key_id
        is_limited = limits.user_max_streams and not principal.has(*PROGRAM_SCOPES)
        if is_limited and tenant.users[user] >= limits.user_max_streams:
            raise self._refusal("user_max_streams", f"this user has {tenant.users[user]} open streams")
        if limits.tenant_max_streams and tenant.streams >= limits.tenant_max_streams:
            raise self._refusal("tenant_max_streams", f"this tenant has {tenant.streams} open streams")
        tenant.streams += 1
        tenant.users[user] += 1
        return Stream(self, tenant, user)

    def release(self, tenant: _Tenant) -> None:
        """Forget a tenant that has nothing in progress."""
        if tenant.is_idle and self._tenants.get(tenant.name) is tenant:
            del self._tenants[tenant.name]

    def grow(self, tenant: _Tenant, size: int) -> None:
        """Count bytes that arrived without being announced."""
        self._check_bytes(tenant, size)
        tenant.bytes += size

    def count_delayed(self) -> None:
        """Count a call that waits for a slot."""
        self._delayed.inc()

    def _tenant(self, name: str) -> _Tenant:
        self.sharing.note(name)
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= MAX_IDLE_TENANTS:
                self._tenants = {known: each for known, each in self._tenants.items() if not each.is_idle}
            tenant = self._tenants[name] = _Tenant(name, self._limits, self.sharing)
        return tenant

    def _check_rate(self, limit: str, rate: _Rate, what: str) -> None:
        if seconds := rate.seconds_until_free():
            raise self._refusal(limit, f"this tenant has sent more {what} than it may in a second", seconds)

    def _check_bytes(self, tenant: _Tenant, size: int) -> None:
        limit = self._limits.tenant_max_bytes_in_flight
        # One request alone is bounded by the limits of its route.
        if limit and tenant.bytes and tenant.bytes + size > limit:
            raise self._refusal("tenant_max_bytes_in_flight", f"requests of {tenant.bytes} bytes are in progress")

    def _refusal(self, limit: str, found: str, retry_after_s: float = RETRY_AFTER_S) -> TenantLimitReached:
        self._refused.labels(limit).inc()
        return TenantLimitReached(
            f"{found}; the limit of {limit} is {getattr(self._limits, limit):g}. Nothing was done:"
            f" try again in {retry_after_s:.3g} s with fewer at once, or have the server's {limit} raised.",
            retry_after_s,
        )


class Ticket:
    """A call in progress. `leave` may be called more than once."""

    __slots__ = ("_admission", "_began", "_size", "_slots", "_tenant", "_weight")

    def __init__(self, admission: Admission, tenant: _Tenant | None, size: int, slots: _Slots) -> None:
        self._admission = admission
        self._tenant = tenant
        self._size = size
        self._slots = slots
        self._weight = 0
        self._began = 0.0

    async def turn(self) -> None:
        """Wait for a slot, if tenants share the server and this one has taken its slots."""
        slots = self._slots
        if self._tenant is None or self._began:
            return
        self._weight = 1 + self._size // BYTES_PER_SLOT
        if slots.waiting or not slots.has_free(self._weight):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            slots.waiting.append((future, self._weight))
            self._admission.count_delayed()
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._give_back(self._tenant)
                raise
        else:
            slots.taken += self._weight
        self._began = time.monotonic()

    def end_turn(self) -> None:
        """Leave the slot to the next call: what is left to do, such as sending the response, waits for the caller."""
        tenant, began = self._tenant, self._began
        if tenant is None or not began:
            return
        self._began = 0.0
        if self._slots.waiting and self._admission.sharing.is_competing:
            rest = (time.monotonic() - began) * REST
            asyncio.get_running_loop().call_later(rest, self._give_back, tenant)
        else:
            self._give_back(tenant)

    def charge_appends(self, count: int) -> None:
        """Charge the drafts of a decoded request beyond the first."""
        if self._tenant is not None and self._tenant.appends is not None:
            self._tenant.appends.take(count - 1)

    def grow(self, size: int) -> None:
        """Count more bytes of the request. Raises TenantLimitReached."""
        if self._tenant is not None:
            self._admission.grow(self._tenant, size)
            self._size += size

    def leave(self) -> None:
        """The call has ended."""
        self.end_turn()
        tenant, self._tenant = self._tenant, None
        if tenant is not None:
            tenant.calls -= 1
            tenant.bytes -= self._size
            self._admission.release(tenant)

    def _give_back(self, tenant: _Tenant) -> None:
        self._slots.taken -= self._weight
        self._slots.grant()
        self._admission.release(tenant)


class Stream:
    """An open stream. `close` may be called more than once."""

    __slots__ = ("_admission", "_tenant", "_user")

    def __init__(self, admission: Admission, tenant: _Tenant | None, user: str) -> None:
        self._admission = admission
        self._tenant = tenant
        self._user = user

    def close(self) -> None:
        """The stream has ended."""
        tenant, self._tenant = self._tenant, None
        if tenant is None:
            return
        tenant.streams -= 1
        tenant.users[self._user] -= 1
        if not tenant.users[self._user]:
            del tenant.users[self._user]
        self._admission.release(tenant)


def _is_exempt(principal: Principal) -> bool:
    return principal.is_open or SYSTEM_SCOPE in principal.scopes
