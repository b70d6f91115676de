"""The reactor: runs handlers when signals change, the most urgent first, one at a time."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from tape.errors import InvalidInput, InvalidRule, UnknownName
from tape.session.arity import positional_count
from tape.session.cursors import CursorStore, FileCursor
from tape.session.events import AttemptFailed, ErrorOccurred, Interrupted
from tape.session.predicates import Change, SignalPredicate, trailing_ms
from tape.session.tape import SessionTape
from tape.session.tokens import TokenRegistry

log = logging.getLogger("tape.session")

Handler = Callable[..., object]
MAX_ERRORS = 100


@dataclass(frozen=True, slots=True)
class ReactorRule:
    """What to do when. A higher `priority` is more urgent; a preemptive rule interrupts a less urgent handler."""

    name: str
    predicate: SignalPredicate
    handler: Handler
    priority: int = 0
    preemptive: bool = False
    agent_name: str = ""


@dataclass(frozen=True, slots=True)
class HandlerError:
    """A handler or a predicate failed on a change."""

    rule: str
    change: Change
    error: Exception


@dataclass(order=True, slots=True)
class _Fire:
    """A handler that is to run."""

    urgency: int
    number: int
    rule: Any
    change: Any


class Reactor:
    """Follows the signal changes on a tape and runs the handlers of matching rules.

    Handlers run one at a time: the highest `priority` first, equal ones in their order. With `cursor_path`, or any
    `CursorStore`, a restart goes on after the changes whose handlers have ended; one that was running runs again.
    Events about the reactor itself go to `bus`, or else on the tape.
    """

    def __init__(
        self,
        tape: SessionTape,
        *,
        bus: Any = None,
        cursor_path: str | os.PathLike[str] | None = None,
        cursor_store: CursorStore | None = None,
        tokens: TokenRegistry | None = None,
    ) -> None:
        if cursor_path is not None and cursor_store is not None:
            raise InvalidInput("Give either cursor_path or cursor_store: a reactor has one cursor.")
        self.tape = tape
        self.tokens = tokens if tokens is not None else TokenRegistry()
        self.errors: deque[HandlerError] = deque(maxlen=MAX_ERRORS)
        self.disabled: dict[str, str] = {}
        self.cursor_errors = 0
        self._emit: Callable[[Any], object] = bus.emit if bus is not None else tape.record
        self._store: CursorStore | None = FileCursor(cursor_path) if cursor_path is not None else cursor_store
        self._rules: list[ReactorRule] = []
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._reset()

    @property
    def rules(self) -> tuple[ReactorRule, ...]:
        """The rules in the order in which they were added."""
        return tuple(self._rules)

    def when(
        self,
        predicate: SignalPredicate,
        handler: Handler,
        *,
        name: str = "",
        priority: int = 0,
        preemptive: bool = False,
        agent_name: str = "",
    ) -> ReactorRule:
        """Add a rule. The handler, async or not, gets the Change, or nothing if it takes no argument.

        `agent_name` says whose token the handler gets as `change.token`; by default that of the rule's name.
        """
        if not isinstance(predicate, SignalPredicate):
            predicate = getattr(predicate, "changed", predicate)
        if not isinstance(predicate, SignalPredicate):
            raise InvalidRule(f"{predicate!r} is neither a predicate nor a signal.")
        if not callable(handler):
            raise InvalidRule(f"The handler {handler!r} cannot be called.")
        name = name or f"rule_{len(self._rules)}"
        rule = ReactorRule(name, predicate, handler, priority, preemptive, agent_name or name)
        self._rules.append(rule)
        return rule

    def enable(self, name: str) -> None:
        """Let a rule take part again that was disabled because its predicate failed."""
        if self.disabled.pop(name, None) is None:
            raise UnknownName(f"No rule {name!r} is disabled; disabled are {sorted(self.disabled)}.")

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    async def run(self, *, from_seq: int | None = None, budget: int | None = None) -> int:
        """React until `stop()`, or until `budget` handlers have ended; how many have.

        Without `from_seq` it goes on at the stored cursor, or begins at 0.
        """
        if self._stopping is not None:
            raise InvalidInput("This reactor already runs.")
        self._reset()
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        start = from_seq if from_seq is not None else (self._store.load() if self._store else None) or 0
        self._position = start
        self._remember_before(start)
        tasks = [asyncio.create_task(self._follow(start)), asyncio.create_task(self._work(budget))]
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, stop):
                task.cancel()
            for timer, _ in self._trailing.values():
                timer.cancel()
            results = await asyncio.gather(*tasks, stop, return_exceptions=True)
            self._stopping = None
            self._save_cursor()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return self._ended

    def start(self, *, from_seq: int | None = None, budget: int | None = None) -> asyncio.Task[int]:
        """Run in a task of its own; the task."""
        return asyncio.get_running_loop().create_task(self.run(from_seq=from_seq, budget=budget))

    def stop(self) -> None:
        """End `run()` at once. A running handler is cancelled; it and those that wait run again after a restart."""
        if self._stopping is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    # ── from the tape to the queue ───────────────────────────────────────────────────────────────

    def _reset(self) -> None:
        self._queue: list[_Fire] = []
        self._latest: dict[str, Change] = {}
        self._trailing: dict[str, tuple[asyncio.TimerHandle, _Fire]] = {}
        self._running: _Fire | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._ready = asyncio.Event()
        self._position = 0
        self._saved: int | None = None
        self._ended = 0

    def _remember_before(self, start: int) -> None:
        """The state of the signals before the cursor, which `&` asks for."""
        for entry in self.tape.since(0, skip_expired=True):
            if entry["seq"] >= start:
                break
            if entry.get("kind") == "signal_changed":
                change = _change_of(entry)
                self._latest[change.signal_name] = change

    async def _follow(self, start: int) -> None:
        async with aclosing(self.tape.tail(start)) as entries:  # type: ignore[type-var]
            async for entry in entries:
                if entry.get("kind") == "signal_changed":
                    self._take(_change_of(entry))
                self._position = entry["seq"] + 1
                if self._position >= self.tape.head:
                    self._save_cursor()

    def _take(self, change: Change) -> None:
        self._latest[change.signal_name] = change
        for rule in self._rules:
            if rule.name in self.disabled:
                continue
            try:
                is_match = rule.predicate.matches(change, self._latest)
            except Exception as error:
                self._disable(rule, change, error)
                continue
            if not is_match:
                continue
            fire = _Fire(-rule.priority, next(self._numbers), rule, change)
            if wait_ms := trailing_ms(rule.predicate):
                self._fire_later(fire, wait_ms)
            else:
                self._submit(fire)

    def _fire_later(self, fire: _Fire, wait_ms: float) -> None:
        assert self._loop is not None
        waiting = self._trailing.pop(fire.rule.name, None)
        if waiting is not None:
            waiting[0].cancel()

        def due() -> None:
            self._submit(self._trailing.pop(fire.rule.name)[1])

        self._trailing[fire.rule.name] = (self._loop.call_later(wait_ms / 1_000, due), fire)

    def _submit(self, fire: _Fire) -> None:
        heapq.heappush(self._queue, fire)
        self._ready.set()
        running = self._running
        if not fire.rule.preemptive or running is None or fire.rule.priority <= running.rule.priority:
            return
        assert self._task is not None
        if not self._has_begun:  # nothing of it has run: it is not interrupted but goes back into the queue
            heapq.heappush(self._queue, running)
            self._running = None
            self._task.cancel()
            return
        if self._task.cancel():
            reason = f"preempted by {fire.rule.name} (priority {fire.rule.priority})"
            cursor = self.tape.head
            self.tokens.get_or_create(running.rule.agent_name).cancel_with_cursor(cursor)
            self._emit(Interrupted(agent_name=running.rule.agent_name, reason=reason, resume_cursor=cursor))

    # ── handlers ───────────────────────────────────────────────────────────

    async def _work(self, budget: int | None) -> None:
        while budget is None or self._ended < budget:
            while not self._queue:
                self._ready.clear()
                await self._ready.wait()
            self._running = heapq.heappop(self._queue)
            self._has_begun = False
            self._task = asyncio.create_task(self._handle(self._running))
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError:  # we are stopped, and so is the handler
                self._task.cancel()
                await asyncio.wait([self._task])
                raise
            if self._running is not None:
                self._running = None
                self._ended += 1
                self._save_cursor()

    async def _handle(self, fire: _Fire) -> None:
        self._has_begun = True
        rule: ReactorRule = fire.rule
        token = self.tokens.get_or_create(rule.agent_name)
        token.reset()
        change = replace(fire.change, token=token)
        try:
            result = rule.handler() if positional_count(rule.handler) == 0 else rule.handler(change)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            self.errors.append(HandlerError(rule.name, fire.change, error))
            log.error("The handler of rule %s failed on %s", rule.name, fire.change.signal_name, exc_info=error)
            self._emit(AttemptFailed(agent_name=rule.agent_name, error=f"{type(error).__name__}: {error}"))

    def _disable(self, rule: ReactorRule, change: Change, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self.disabled[rule.name] = reason
        self.errors.append(HandlerError(rule.name, change, error))
        log.error("The predicate of rule %s failed, so the rule is disabled", rule.name, exc_info=error)
        self._emit(ErrorOccurred(tool_name=rule.name, error=f"The predicate failed, the rule is disabled. {reason}"))

    def _save_cursor(self) -> None:
        if self._store is None:
            return
        open_fires = [*self._queue, *(fire for _, fire in self._trailing.values())]
        if self._running is not None:
            open_fires.append(self._running)
        cursor = min((fire.change.seq for fire in open_fires), default=self._position)
        if cursor == self._saved:
            return
        try:
            self._store.save(cursor)
            self._saved = cursor
        except OSError as error:  # log and continue: a restart would only repeat more entries
            if not self.cursor_errors:
                log.error("The cursor %d could not be saved", cursor, exc_info=error)
            self.cursor_errors += 1


class ReactorPlugin:
    """Starts and stops a reactor with a session."""

    name = "reactor"

    def __init__(self, reactor: Reactor, *, from_seq: int | None = None, budget: int | None = None) -> None:
        self.reactor = reactor
        self._from_seq = from_seq
        self._budget = budget
        self._task: asyncio.Task[int] | None = None

    async def on_session_start(self, **_: Any) -> None:
        """Start it."""
        if self._task is None or self._task.done():
            self._task = self.reactor.start(from_seq=self._from_seq, budget=self._budget)

    async def on_session_end(self, **_: Any) -> int:
        """Stop it; how many handlers have ended."""
        if self._task is None:
            return 0
        self.reactor.stop()
        task, self._task = self._task, None
        return await task

    start = on_session_start
    stop = on_session_end


def _change_of(entry: dict[str, Any]) -> Change:
    return Change(entry.get("name", ""), entry.get("value"), entry.get("previous"), entry["seq"], entry.get("t"))
