"""Generates a synthetic journal: some days of agent runs of several tenants.

There are more runs by day than by night. Runs make decisions, call fast and slow tools, retry, fail and wait for
approvals, and some agents crash during a call. For an hour and a half one tool has an outage.
"""

from __future__ import annotations

import contextlib
import math
import random
import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tape.engine.reactions import registry
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.engine.reactions.tasks import Task
from tape.journal.appender import Appender
from tape.journal.key_index import look_up_subjects_below
from tape.model import subject
from tape.model.entry import MAX_SEQ, Draft
from tape.model.reaction_states import HandlerKind, TaskStatus
from tape.store import Transaction
from tape.store.records import insert

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# The tool with the outage, how long before the end the outage starts, and its duration.
FAILING_TOOL, OUTAGE_AGO_MS, OUTAGE_MS = "charge_card", 10 * HOUR_MS, 90 * 60_000
# The average number of entries per run.
ENTRIES_PER_RUN = 12.5
REACTION = "notify-payments-desk"
MAX_DEAD_LETTERS = 40
# The probability that an agent crashes during a call and is not recovered.
_CRASH_RATE = 0.0004


class ToolProfile(msgspec.Struct, frozen=True):
    """A tool: median duration in ms, spread of the durations, and probabilities of failure and retry."""

    name: str
    median_ms: float
    spread: float
    fails: float
    retries: float


TOOLS = {
    tool.name: tool
    for tool in (
        ToolProfile("look_up_customer", 45, 0.5, 0.002, 0.01),
        ToolProfile("search_offers", 380, 0.7, 0.006, 0.02),
        ToolProfile("fetch_rates", 120, 0.6, 0.004, 0.03),
        ToolProfile("charge_card", 900, 0.6, 0.015, 0.04),
        ToolProfile("move_money", 1_600, 0.5, 0.008, 0.05),
        ToolProfile("send_mail", 240, 0.8, 0.01, 0.06),
        ToolProfile("open_ticket", 310, 0.5, 0.012, 0.02),
        ToolProfile("summarize_case", 4_200, 0.55, 0.005, 0.0),
    )
}


class TenantProfile(msgspec.Struct, frozen=True):
    """A tenant: its share of all runs, its agent, and the tools that its runs call."""

    name: str
    share: float
    agent: str
    tools: tuple[str, ...]


TENANTS = (
    TenantProfile("meadow-bank", 0.42, "treasury", ("look_up_customer", "fetch_rates", "move_money", "send_mail")),
    TenantProfile("harbour-travel", 0.31, "booking", ("search_offers", "search_offers", "charge_card", "send_mail")),
    TenantProfile("corner-shop", 0.19, "orders", ("look_up_customer", "charge_card", "send_mail", "open_ticket")),
    TenantProfile("north-clinic", 0.08, "intake", ("look_up_customer", "summarize_case", "open_ticket")),
)

TimedDraft = tuple[int, Draft]
_encode = msgspec.json.Encoder().encode


def make_history(entries: int, *, until_ms: int, days: float = 3.0, seed: int = 7) -> list[TimedDraft]:
    """Generate about so many entries over the days before a time, each with its time, in order."""
    rng = random.Random(seed)  # noqa: S311  (synthetic data, the same each time)
    span_ms = int(days * DAY_MS)
    found: list[TimedDraft] = []
    for number in range(max(round(entries / ENTRIES_PER_RUN), 1)):
        tenant = rng.choices(TENANTS, [each.share for each in TENANTS])[0]
        generator = _RunGenerator(rng, tenant, number, until_ms)
        with contextlib.suppress(_AgentCrashed):
            generator.generate(until_ms - span_ms + _moment(rng, span_ms))
        found += [one for one in generator.drafts if one[0] <= until_ms]
    found.sort(key=lambda one: one[0])
    return found


def write_history(tx: Transaction, drafts: Sequence[TimedDraft]) -> None:
    """Append a part of a history with the time of each entry, which must not be before the journal's last."""
    appender = tx.enlist(Appender)
    start = 0
    for end in range(1, len(drafts) + 1):
        if end == len(drafts) or drafts[end][0] != drafts[start][0]:
            appender.set_time(drafts[start][0])
            appender.append([draft for _, draft in drafts[start:end]])
            start = end


def write_dead_letters(tx: Transaction, until_ms: int) -> int:
    """Register a reaction to failed payments and write dead letters of it; return their number."""
    wanted = Reaction(
        REACTION, "Notify the payments desk", f"/tape/effect/failed/{FAILING_TOOL}/**", "", HandlerKind.TASK
    )
    registry.register(tx, check_reaction(wanted))
    begin = until_ms - OUTAGE_AGO_MS
    failed = msgspec.structs.replace(
        look_up_subjects_below(f"/tape/effect/failed/{FAILING_TOOL}"),
        where="j.ts_ms >= ? AND j.ts_ms < ?",
        where_params=(begin, begin + OUTAGE_MS),
    )
    columns = "global_seq, run_id, seq, subject, payload_json, ts_ms, tenant"
    rows = failed.select(tx, columns, 0, MAX_SEQ, MAX_DEAD_LETTERS)
    for global_seq, run_id, seq, about, payload, ts_ms, tenant in rows:
        dead_letter = Task(
            task_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{REACTION}/{global_seq}")),
            reaction_id=REACTION,
            shard=0,
            source_run_id=run_id,
            source_global_seq=global_seq,
            subject=about,
            payload_json=payload,
            status=TaskStatus.DLQ,
            attempts=5,
            next_attempt_at_ms=0,
            lease_owner="",
            lease_expires_at_ms=0,
            last_error="HTTP 503 from the payments desk: service unavailable",
            created_at_ms=ts_ms,
            completed_at_ms=ts_ms + 31_000,
            trace_id="",
            parent_span_id="",
            first_global_seq=global_seq,
            coalesced=0,
            redriven=0,
            debounced=False,
            strict_order=False,
            source_seq=seq,
            source_ts_ms=ts_ms,
            schema_version=1,
            tenant=tenant,
        )
        insert(tx, "tape_tasks", dead_letter)
    return len(rows)


def split_history(
    drafts: Sequence[TimedDraft], size: int, done: Callable[[int], None]
) -> Iterator[Sequence[TimedDraft]]:
    """Split a history into parts of one transaction each; `done` is called with the number of entries written."""
    for start in range(0, len(drafts), size):
        part = drafts[start : start + size]
        yield part
        done(start + len(part))


def _moment(rng: random.Random, span_ms: int) -> int:
    """Return a random time within a span; 03:00 is a quarter as likely as 15:00."""
    while True:
        moment = rng.randrange(span_ms)
        busy = 0.625 - 0.375 * math.cos(2 * math.pi * (moment / DAY_MS - 0.125))
        if rng.random() < busy:
            return moment


class _AgentCrashed(Exception):
    """The agent of a run has crashed."""


class _RunGenerator:
    """Generates the entries of one run."""

    def __init__(self, rng: random.Random, tenant: TenantProfile, number: int, until_ms: int) -> None:
        self._rng = rng
        self._tenant = tenant
        self._run_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        self._user = f"user-{rng.randrange(400):03}"
        self._session = f"session-{number // 3}"
        self._outage = (until_ms - OUTAGE_AGO_MS, until_ms - OUTAGE_AGO_MS + OUTAGE_MS)
        self._amount = round(rng.lognormvariate(4.2, 1.1), 2)
        self._at = 0
        self.drafts: list[TimedDraft] = []

    def generate(self, at: int) -> None:
        self._at = at
        self._order("created")
        self._run("running", invocation_id=f"call-{self._run_id[:8]}", agent_id=self._tenant.agent)
        for index in range(self._rng.choice((1, 2, 2, 3, 3))):
            self._wait(900, 0.6)
            decision = subject.decision_recorded(self._run_id, index)
            self._emit(decision, decision_index=index, model="planner-2", rationale="next step of the plan")
            if not self._step(index):
                self._wait(40, 0.4)
                self._run("failed" if self._rng.random() < 0.93 else "stuck")
                return
        self._wait(60, 0.4)
        if self._rng.random() < 0.012:
            self._run("cancelled")
            return
        self._run("terminal")
        self._order("paid")

    def _step(self, index: int) -> bool:
        """Call the tools of one decision; return whether the run continues."""
        for call, name in enumerate(self._tenant.tools[index::3] or self._tenant.tools[:1]):
            if name == "move_money" and self._rng.random() < 0.1:
                self._gate()
            if self._rng.random() < _CRASH_RATE:
                self._begin(TOOLS[name], index, call)
                raise _AgentCrashed
            if not self._call(TOOLS[name], index, call) and self._rng.random() < 0.7:
                return False
        return True

    def _begin(self, tool: ToolProfile, index: int, call: int) -> dict[str, str]:
        self._wait(15, 0.5)
        key = f"{self._run_id}/decision-{index}/{tool.name}/{call}"
        facts = {"tool": tool.name, "idempotency_key": key}
        about = {"decision_index": index, "semantics": 1, "dispatch_mode": 1, "connector": "", "scope": ""}
        self._effect("pending", facts, status="pending", **about)
        return facts

    def _call(self, tool: ToolProfile, index: int, call: int) -> bool:
        facts = self._begin(tool, index, call)
        is_outage = tool.name == FAILING_TOOL and self._outage[0] <= self._at < self._outage[1]
        attempts = 0
        while self._rng.random() < (0.35 if is_outage else tool.retries) and attempts < 4:
            attempts += 1
            self._wait(tool.median_ms, tool.spread)
            why = {"transition": "dispatch-retry-scheduled", "dispatch_attempts": attempts, "error": "HTTP 503"}
            self._effect("pending", facts, status="pending", **why)
            self._wait(1_000 * 2**attempts, 0.2)
        self._wait(tool.median_ms * (6 if is_outage else 1), tool.spread)
        if self._rng.random() < (0.45 if is_outage else tool.fails):
            self._effect("failed", facts, status="failed", error="declined by the provider")
            return False
        if self._rng.random() < 0.002:
            self._effect("unknown", facts, status="unknown", error="the answer was lost")
            self._wait(45_000, 0.5)
            self._effect("reconciled", facts, status="reconciled", resolved_to=2)
            return True
        self._effect("confirmed", facts, status="confirmed")
        return True

    def _gate(self) -> None:
        self._emit(subject.gate("waiting", "approval", self._run_id), gate="approval", status="waiting")
        self._wait(20 * 60_000, 0.9)
        self._emit(subject.gate("released", "approval", self._run_id), gate="approval", status="released")

    def _run(self, status: str, **facts: object) -> None:
        about = subject.run(status, self._tenant.name, self._user, self._session, self._run_id)
        owner = {"app": self._tenant.name, "user": self._user, "session": self._session}
        self._emit(about, **owner, status=status, **facts)

    def _effect(self, verb: str, call: dict[str, str], **facts: object) -> None:
        self._emit(subject.effect(verb, call["tool"], self._run_id), **call, **facts)

    def _order(self, verb: str) -> None:
        self._emit(subject.build("order", verb, self._run_id[:8]), total=self._amount, currency="EUR")

    def _wait(self, median_ms: float, spread: float) -> None:
        self._at += max(int(self._rng.lognormvariate(math.log(median_ms), spread)), 1)

    def _emit(self, about: str, **payload: object) -> None:
        draft = Draft(
            subject=about,
            kind=about.split("/", 3)[2],
            run_id=self._run_id,
            payload_json=_encode({"run_id": self._run_id, **payload}).decode(),
            tenant=self._tenant.name,
            user=self._user,
            session=self._session,
        )
        self.drafts.append((self._at, draft))
