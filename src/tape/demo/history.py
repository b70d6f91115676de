"""A made-up history: days of agents at work for several tenants, as their journal would tell it.

Runs come by day more often than by night; they decide, call tools that are quick or slow, retry, fail, wait for
people, and some vanish in the middle of a call. For an hour and a half one tool is in trouble.
"""

from __future__ import annotations

import contextlib
import math
import random
import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tape.engine.reactions import registry
from tape.engine.reactions.reaction import Reaction, checked
from tape.engine.reactions.tasks import Task
from tape.journal.appender import Appender
from tape.model import subject
from tape.model.entry import Draft
from tape.model.reaction_states import HandlerKind, TaskStatus
from tape.store import Transaction
from tape.store.records import insert

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# The tool in trouble, how long before the end its trouble begins, and how long that lasts.
TROUBLED, TROUBLE_AGO_MS, TROUBLE_MS = "charge_card", 10 * HOUR_MS, 90 * 60_000
# An average run is about so many entries.
ENTRIES_PER_RUN = 12.5
REACTION = "tell-the-payments-desk"
_KEPT_LETTERS = 40
# How often an agent is gone for good in the middle of a call.
_VANISHES = 0.0004


class Tool(msgspec.Struct, frozen=True):
    """How a tool behaves: its median in ms, how far durations spread, and how often it fails or has to try again."""

    name: str
    median_ms: float
    spread: float
    fails: float
    retries: float


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("look_up_customer", 45, 0.5, 0.002, 0.01),
        Tool("search_offers", 380, 0.7, 0.006, 0.02),
        Tool("fetch_rates", 120, 0.6, 0.004, 0.03),
        Tool("charge_card", 900, 0.6, 0.015, 0.04),
        Tool("move_money", 1_600, 0.5, 0.008, 0.05),
        Tool("send_mail", 240, 0.8, 0.01, 0.06),
        Tool("open_ticket", 310, 0.5, 0.012, 0.02),
        Tool("summarize_case", 4_200, 0.55, 0.005, 0.0),
    )
}


class Tenant(msgspec.Struct, frozen=True):
    """Somebody whose agents work here: its share of all runs, and what their steps are."""

    name: str
    share: float
    agent: str
    tools: tuple[str, ...]


TENANTS = (
    Tenant("meadow-bank", 0.42, "treasury", ("look_up_customer", "fetch_rates", "move_money", "send_mail")),
    Tenant("harbour-travel", 0.31, "booking", ("search_offers", "search_offers", "charge_card", "send_mail")),
    Tenant("corner-shop", 0.19, "orders", ("look_up_customer", "charge_card", "send_mail", "open_ticket")),
    Tenant("north-clinic", 0.08, "intake", ("look_up_customer", "summarize_case", "open_ticket")),
)

Told = tuple[int, Draft]
_encode = msgspec.json.Encoder().encode


def make_history(entries: int, *, until_ms: int, days: float = 3.0, seed: int = 7) -> list[Told]:
    """About so many entries over so many days before a moment, each with its time, in order."""
    dice = random.Random(seed)  # noqa: S311  (a made-up history, the same each time)
    span_ms = int(days * DAY_MS)
    found: list[Told] = []
    for number in range(max(round(entries / ENTRIES_PER_RUN), 1)):
        tenant = dice.choices(TENANTS, [each.share for each in TENANTS])[0]
        life = _Life(dice, tenant, number, until_ms)
        with contextlib.suppress(_Vanished):
            life.live(until_ms - span_ms + _moment(dice, span_ms))
        found += [one for one in life.told if one[0] <= until_ms]
    found.sort(key=lambda one: one[0])
    return found


def write_history(tx: Transaction, told: Sequence[Told]) -> None:
    """Append a part of a history, every entry at its own time; the journal must not have come further."""
    page = tx.enlist(Appender)
    start = 0
    for end in range(1, len(told) + 1):
        if end == len(told) or told[end][0] != told[start][0]:
            page.set_time(told[start][0])
            page.append([draft for _, draft in told[start:end]])
            start = end


def write_letters(tx: Transaction, until_ms: int) -> int:
    """A reaction to failed payments whose handler was out of order for a while, and its dead letters; their number."""
    wanted = Reaction(REACTION, "Tell the payments desk", f"/tape/effect/failed/{TROUBLED}/**", "", HandlerKind.TASK)
    registry.register(tx, checked(wanted))
    begin = until_ms - TROUBLE_AGO_MS
    rows = tx.query(
        "SELECT global_seq, run_id, seq, subject, payload_json, ts_ms FROM tape_journal"
        " WHERE subject >= ? AND subject < ? AND ts_ms >= ? AND ts_ms < ? ORDER BY global_seq LIMIT ?",
        f"/tape/effect/failed/{TROUBLED}/",
        f"/tape/effect/failed/{TROUBLED}0",
        begin,
        begin + TROUBLE_MS,
        _KEPT_LETTERS,
    )
    for global_seq, run_id, seq, about, payload, ts_ms in rows:
        letter = Task(
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
            last_error="HTTP 503 from the payments desk: out of order, come back later",
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
        )
        insert(tx, "tape_tasks", letter)
    return len(rows)


def in_parts(told: Sequence[Told], size: int, done: Callable[[int], None]) -> Iterator[Sequence[Told]]:
    """A history in parts for one transaction each; `done` hears of every entry that was written."""
    for start in range(0, len(told), size):
        part = told[start : start + size]
        yield part
        done(start + len(part))


def _moment(dice: random.Random, span_ms: int) -> int:
    """A time within a span; at three in the morning (of the span) a quarter as likely as in the afternoon."""
    while True:
        moment = dice.randrange(span_ms)
        busy = 0.625 - 0.375 * math.cos(2 * math.pi * (moment / DAY_MS - 0.125))
        if dice.random() < busy:
            return moment


class _Vanished(Exception):
    """The agent of a run is gone."""


class _Life:
    """One run, told from its beginning to its end."""

    def __init__(self, dice: random.Random, tenant: Tenant, number: int, until_ms: int) -> None:
        self._dice = dice
        self._tenant = tenant
        self._run_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        self._user = f"user-{dice.randrange(400):03}"
        self._session = f"session-{number // 3}"
        self._trouble = (until_ms - TROUBLE_AGO_MS, until_ms - TROUBLE_AGO_MS + TROUBLE_MS)
        self._amount = round(dice.lognormvariate(4.2, 1.1), 2)
        self._at = 0
        self.told: list[Told] = []

    def live(self, at: int) -> None:
        self._at = at
        self._order("created")
        self._run("running", invocation_id=f"call-{self._run_id[:8]}", agent_id=self._tenant.agent)
        for index in range(self._dice.choice((1, 2, 2, 3, 3))):
            self._wait(900, 0.6)
            decision = subject.decision_recorded(self._run_id, index)
            self._tell(decision, decision_index=index, model="planner-2", rationale="next step of the plan")
            if not self._step(index):
                self._wait(40, 0.4)
                self._run("failed" if self._dice.random() < 0.93 else "stuck")
                return
        self._wait(60, 0.4)
        if self._dice.random() < 0.012:
            self._run("cancelled")
            return
        self._run("terminal")
        self._order("paid")

    def _step(self, index: int) -> bool:
        """Call the tools of one decision; whether the run can go on."""
        for call, name in enumerate(self._tenant.tools[index::3] or self._tenant.tools[:1]):
            if name == "move_money" and self._dice.random() < 0.1:
                self._gate()
            if self._dice.random() < _VANISHES:
                self._begin(TOOLS[name], index, call)
                raise _Vanished
            if not self._call(TOOLS[name], index, call) and self._dice.random() < 0.7:
                return False
        return True

    def _begin(self, tool: Tool, index: int, call: int) -> dict[str, str]:
        self._wait(15, 0.5)
        key = f"{self._run_id}/decision-{index}/{tool.name}/{call}"
        facts = {"tool": tool.name, "idempotency_key": key}
        about = {"decision_index": index, "semantics": 1, "dispatch_mode": 1, "connector": "", "scope": ""}
        self._effect("pending", facts, status="pending", **about)
        return facts

    def _call(self, tool: Tool, index: int, call: int) -> bool:
        facts = self._begin(tool, index, call)
        in_trouble = tool.name == TROUBLED and self._trouble[0] <= self._at < self._trouble[1]
        attempts = 0
        while self._dice.random() < (0.35 if in_trouble else tool.retries) and attempts < 4:
            attempts += 1
            self._wait(tool.median_ms, tool.spread)
            why = {"transition": "dispatch-retry-scheduled", "dispatch_attempts": attempts, "error": "HTTP 503"}
            self._effect("pending", facts, status="pending", **why)
            self._wait(1_000 * 2**attempts, 0.2)
        self._wait(tool.median_ms * (6 if in_trouble else 1), tool.spread)
        if self._dice.random() < (0.45 if in_trouble else tool.fails):
            self._effect("failed", facts, status="failed", error="declined by the provider")
            return False
        if self._dice.random() < 0.002:
            self._effect("unknown", facts, status="unknown", error="the answer was lost")
            self._wait(45_000, 0.5)
            self._effect("reconciled", facts, status="reconciled", resolved_to=2)
            return True
        self._effect("confirmed", facts, status="confirmed")
        return True

    def _gate(self) -> None:
        self._tell(subject.gate("waiting", "approval", self._run_id), gate="approval", status="waiting")
        self._wait(20 * 60_000, 0.9)
        self._tell(subject.gate("released", "approval", self._run_id), gate="approval", status="released")

    def _run(self, status: str, **facts: object) -> None:
        about = subject.run(status, self._tenant.name, self._user, self._session, self._run_id)
        owner = {"app": self._tenant.name, "user": self._user, "session": self._session}
        self._tell(about, **owner, status=status, **facts)

    def _effect(self, verb: str, call: dict[str, str], **facts: object) -> None:
        self._tell(subject.effect(verb, call["tool"], self._run_id), **call, **facts)

    def _order(self, verb: str) -> None:
        self._tell(subject.build("order", verb, self._run_id[:8]), total=self._amount, currency="EUR")

    def _wait(self, median_ms: float, spread: float) -> None:
        self._at += max(int(self._dice.lognormvariate(math.log(median_ms), spread)), 1)

    def _tell(self, about: str, **payload: object) -> None:
        draft = Draft(
            subject=about,
            kind=about.split("/", 3)[2],
            run_id=self._run_id,
            payload_json=_encode({"run_id": self._run_id, **payload}).decode(),
            tenant=self._tenant.name,
            user=self._user,
            session=self._session,
        )
        self.told.append((self._at, draft))
