"""The CPU that predicates of callers may use: each has a budget, and so has each tenant.

A predicate runs inside the server, so its time is taken from all callers. One evaluation is bounded by its steps
(`tape.cel.limits`); this module bounds all evaluations of a caller together.

**What counts.** The CPU time of each evaluation beyond an allowance of 10 µs and 20 ns per byte of payload, at most
1 ms. The allowance is about what it costs to read and deliver the entry, which a caller may do without a predicate. So
a cheap predicate never uses its budget, at whatever rate entries arrive and however much history it replays.

**How much.** A tenant has `predicate_cpu_ms_per_s` (50 ms per second), counted separately for streams, reactions and
queries; one stream, reaction or query may use half of it. Both save up to 5 seconds' worth.

**Beyond it.** The account is checked before each evaluation. A stream without budget leaves the live path and reads
stored entries when it has 1 second's worth again: it is slowed down and loses nothing. It ends with
PredicateOverBudget (RESOURCE_EXHAUSTED) if its predicate takes more than 1 ms per entry on average. A reaction without
budget is put behind and catches up later; that counts as one predicate error. 0 turns the budget off.

An evaluation on the event loop that takes more than 2,000 steps, or has a payload of more than 64 KiB, is repeated on a
thread, so that it delays other calls by about 1 ms. Isolation does not rely on that: a thread that evaluates holds the
interpreter too, and only the budget bounds for how long.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tape.base.telemetry.metrics import Metrics
from tape.base.telemetry.throttle import ThrottledLog
from tape.cel import EntryView, Predicate
from tape.errors import PredicateOverBudget
from tape.model.entry import Entry

T = TypeVar("T")

log = logging.getLogger(__name__)

DEFAULT_MS_PER_S = 50.0
STREAM, REACTION, QUERY = "stream", "reaction", "query"

# One stream, reaction or query may use this share of its tenant's budget.
SHARE = 0.5
# Seconds of budget that an account saves, and that it needs again after it was used up.
SAVED_S = 5.0
RESUMED_S = 1.0
# The part of an evaluation that is not charged: seconds, seconds per byte of payload, and at most.
FREE_S = 10e-6
FREE_S_PER_BYTE = 20e-9
MAX_FREE_S = 1e-3
# Average CPU seconds per entry beyond which a stream without budget ends instead of being slowed down.
MAX_AVERAGE_S = 1e-3
# The average is over about this many of the last entries.
AVERAGED_ENTRIES = 1_000
# An evaluation on the event loop takes at most so many steps and bytes of payload, which is about 1 ms.
INLINE_STEPS = 2_000
INLINE_BYTES = 64 << 10
# Accounts of tenants that have their full budget are forgotten beyond this number.
MAX_TENANTS = 4_096

_wall = time.perf_counter
_cpu = time.thread_time


class CpuAccount:
    """CPU seconds that are refilled continuously, up to a bound. Threads may share it."""

    __slots__ = ("_balance", "_clock", "_is_spent", "_lock", "_rate", "_refilled_at")

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._balance = rate * SAVED_S
        self._clock = clock
        self._refilled_at = clock()
        self._is_spent = False
        self._lock = threading.Lock()

    def charge(self, seconds: float) -> bool:
        """Take seconds that were used; True if that used the account up."""
        with self._lock:
            self._refill()
            self._balance -= seconds
            was_spent, self._is_spent = self._is_spent, self._is_spent or self._balance < 0
            return self._is_spent and not was_spent

    @property
    def wait_s(self) -> float:
        """Seconds until the account may be used; 0 if it may be used now."""
        if not self._is_spent:
            return 0.0
        with self._lock:
            self._refill()
            missing = self._rate * RESUMED_S - self._balance
            self._is_spent = missing > 1e-9
            return missing / self._rate if self._is_spent else 0.0

    @property
    def is_full(self) -> bool:
        """Whether nothing was charged lately."""
        with self._lock:
            self._refill()
            return self._balance >= self._rate * SAVED_S

    def _refill(self) -> None:
        now = self._clock()
        self._balance = min(self._balance + (now - self._refilled_at) * self._rate, self._rate * SAVED_S)
        self._refilled_at = now


class PredicateAccount:
    """The account of one stream, reaction or query, and its tenant's behind it."""

    __slots__ = ("_average_of", "_budget", "_is_logged", "_own", "_spent", "_tenant", "kind", "tenant", "what")

    def __init__(self, budget: PredicateBudget, kind: str, tenant: str, what: str, accounts: tuple[CpuAccount, ...]):
        self.kind = kind
        self.tenant = tenant
        self.what = what
        self._budget = budget
        self._own, self._tenant = accounts
        self._spent = 0.0
        self._average_of = 0
        self._is_logged = False

    @property
    def wait_s(self) -> float:
        """Seconds until the predicate may be evaluated; 0 if it may be evaluated now."""
        return max(self._own.wait_s, self._tenant.wait_s)

    def charge(self, seconds: float) -> None:
        """Take CPU seconds beyond the allowance of an entry."""
        if not self._budget.ms_per_s:
            return
        self._spent += seconds
        # Both accounts are charged, whichever was used up first.
        if self._own.charge(seconds) | self._tenant.charge(seconds):
            self._budget.count_over(self.kind)
            if not self._is_logged:
                self._is_logged = True
                self._budget.log.warn(
                    "%s of tenant %r has used its CPU budget (predicate_cpu_ms_per_s=%g), about %.2f ms per entry, and"
                    " is slowed down or ended",
                    self.what,
                    self.tenant,
                    self._budget.ms_per_s,
                    self.average_s * 1e3,
                )

    async def wait(self) -> None:
        """Wait until the predicate may be evaluated. Raises PredicateOverBudget if it is too expensive for that."""
        while True:
            self.check()
            if not (delay := self.wait_s):
                return
            await asyncio.sleep(delay)

    def count(self, evaluations: int) -> None:
        """Count evaluations, charged or not."""
        self._average_of += evaluations
        if self._average_of > AVERAGED_ENTRIES:
            self._spent *= AVERAGED_ENTRIES / self._average_of
            self._average_of = AVERAGED_ENTRIES

    @property
    def average_s(self) -> float:
        """CPU seconds per entry beyond the allowance, over about the last 1,000 entries."""
        return self._spent / max(self._average_of, 1)

    def check(self) -> None:
        """Raise PredicateOverBudget if the budget is used up and the predicate is too expensive to be slowed down."""
        if self.average_s > MAX_AVERAGE_S and self._spent > self._budget.own_rate and self.wait_s > 0:
            raise PredicateOverBudget(
                f"The predicate takes {self.average_s * 1e3:.1f} ms of CPU per entry; streams and queries with a"
                f" predicate may use {self._budget.ms_per_s:g} ms per second and tenant (predicate_cpu_ms_per_s), each"
                f" of them {SHARE:.0%} of it. Narrow the subject pattern, or use a predicate that walks through less."
            )


class Evaluations:
    """A batch of evaluations on one thread. `close()` counts their CPU seconds in the metrics."""

    __slots__ = ("_counter", "_cpu_at", "_seconds")

    def __init__(self, metrics: Metrics, kind: str) -> None:
        self._counter = metrics.predicate_seconds.labels(kind)
        self._cpu_at = _cpu()
        self._seconds = 0.0

    def close(self) -> None:
        """Count the CPU seconds."""
        self._counter.inc(self._seconds)

    def matches(self, account: PredicateAccount, predicate: Predicate, view: EntryView) -> bool:
        """Evaluate a predicate and charge the account. The caller has checked `account.wait_s`."""
        began = _wall()
        is_match = predicate.matches(view)
        self._count(account, _wall() - began, view)
        return is_match

    def matches_inline(self, account: PredicateAccount, predicate: Predicate, view: EntryView) -> bool | None:
        """As `matches`, on the event loop: None if the evaluation takes too long for it and belongs on a thread."""
        if len(view.entry.payload_json) > INLINE_BYTES:
            return None
        began = _wall()
        is_match = predicate.matches_within(view, INLINE_STEPS)
        self._count(account, _wall() - began, view)
        return is_match

    def filter(
        self, account: PredicateAccount, predicate: Predicate, entries: Sequence[Entry]
    ) -> tuple[list[Entry], int]:
        """The entries for which the predicate is true, and how many were evaluated before the budget was used up."""
        matching: list[Entry] = []
        matches = predicate.matches
        done = counted = 0
        if account.wait_s > 0:
            return matching, 0
        self._cpu_at = cpu_began = _cpu()
        began = _wall()
        for entry in entries:
            if matches(entry):
                matching.append(entry)
            done += 1
            ended = _wall()
            if ended - began > FREE_S:
                account.count(done - counted)
                counted = done
                self._charge(account, ended - began, len(entry.payload_json))
                if account.wait_s > 0:
                    break
                ended = _wall()
            began = ended
        account.count(done - counted)
        self._seconds += _cpu() - cpu_began
        return matching, done

    def run(self, account: PredicateAccount, work: Callable[[], T]) -> T:
        """Charge an account for other work with a predicate, beyond 1 ms."""
        self._cpu_at = _cpu()
        try:
            return work()
        finally:
            seconds = _cpu() - self._cpu_at
            account.count(1)
            account.charge(max(seconds - MAX_FREE_S, 0.0))
            self._seconds += seconds

    def _count(self, account: PredicateAccount, seconds: float, view: EntryView) -> None:
        account.count(1)
        if seconds > FREE_S:
            seconds = self._charge(account, seconds, len(view.entry.payload_json))
        self._seconds += seconds

    def _charge(self, account: PredicateAccount, seconds: float, size: int) -> float:
        # The clock also runs while another thread has the interpreter, the CPU time of this thread does not. To read
        # it takes 0.7 µs, so it is read only here: what was used since it was read last is an upper bound.
        cpu = _cpu()
        seconds, self._cpu_at = min(seconds, cpu - self._cpu_at), cpu
        excess = seconds - min(FREE_S + size * FREE_S_PER_BYTE, MAX_FREE_S)
        if excess > 0:
            account.charge(excess)
        return seconds


class PredicateBudget:
    """Opens accounts. One per server."""

    def __init__(
        self,
        metrics: Metrics,
        ms_per_s: float = DEFAULT_MS_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ms_per_s = ms_per_s
        self.own_rate = ms_per_s / 1e3 * SHARE
        self._metrics = metrics
        self._clock = clock
        self._tenants: dict[tuple[str, str], CpuAccount] = {}
        self.log = ThrottledLog(log)

    def open(self, kind: str, tenant: str, what: str) -> PredicateAccount:
        """An account for one stream, reaction or query. `what` names it in the log."""
        tenant_account = self._tenants.get((kind, tenant))
        if tenant_account is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._tenants = {key: account for key, account in self._tenants.items() if not account.is_full}
            tenant_account = self._tenants[kind, tenant] = self._account(self.ms_per_s / 1e3)
        return PredicateAccount(self, kind, tenant, what, (self._account(self.own_rate), tenant_account))

    def evaluations(self, kind: str) -> Evaluations:
        """Begin a batch of evaluations on this thread."""
        return Evaluations(self._metrics, kind)

    def count_over(self, kind: str) -> None:
        """Count an account that was used up."""
        self._metrics.predicate_over_budget.labels(kind).inc()

    def _account(self, rate: float) -> CpuAccount:
        return CpuAccount(rate, self._clock)
