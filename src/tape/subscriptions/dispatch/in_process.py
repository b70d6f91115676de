"""Dispatch in this process, for `tape subscribe`: no server, no workers."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tape.errors import (
    ApiRefused,
    DownstreamUnavailable,
    PlaybookNotFound,
    RunInterrupted,
    TapeError,
)
from tape.model.dispatch_result import RunDispatchResult
from tape.model.execution_ids import new_id
from tape.model.shared_command import batch_message
from tape.playbooks.answers import recording_answers
from tape.playbooks.batch_results import FailedMessage, failed_messages
from tape.playbooks.document import Playbook
from tape.playbooks.files import from_folder, load_file
from tape.playbooks.host import LocalHost, RunInfo
from tape.playbooks.runner import run_playbook
from tape.subscriptions import events
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.holds import ConfigurationProblem
from tape.subscriptions.dispatch.local_batches import batch_plan, group_plans
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.routing import Plan
from tape.subscriptions.runtime.local_trail import Trail, started_events
from tape.subscriptions.spool.replay import in_batches, in_turns

EMITTER = "subscribe_runtime"


class Finder(Protocol):
    """Finds playbooks by their path."""

    def find(self, path: str) -> object:
        """The playbook of a path. Raises PlaybookNotFound."""


class Playbooks:
    """Playbooks of a local runtime: a file by its path, a Python function, or a file of the folder by its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_name = from_folder(folder)
        self._known: dict[str, Playbook] = {}

    def find(self, path: str) -> Playbook:
        """The playbook of a path."""
        if path not in self._known:
            file = self._folder / path
            self._known[path] = load_file(file) if file.is_file() else self._named(path, file)
        return self._known[path]

    def _named(self, path: str, file: Path) -> Playbook:
        try:
            return self._by_name(path)
        except PlaybookNotFound:
            raise PlaybookNotFound(
                f"dispatch.playbook '{path}' not found (resolved to {file}); local dispatch needs a file path, the"
                " metadata.path of a playbook in that folder, or a function that --import brings"
            ) from None


class LocalReadiness:
    """The check of a local runtime: whether the playbooks of a document can be found. The trail records its holds."""

    def __init__(self, playbooks: Finder, names: Sequence[str], ref: SubscriptionRef, trail: Trail) -> None:
        self._playbooks = playbooks
        self._names = names
        self._ref = ref
        self._trail = trail
        self._is_held = False
        self.asks_server = isinstance(playbooks, ServerPlaybooks)

    async def find_problems(self) -> list[ConfigurationProblem]:
        """The playbooks that are missing."""
        found = []
        for name in self._names:
            try:
                await asyncio.to_thread(self._playbooks.find, name)
            except PlaybookNotFound as error:
                found.append(ConfigurationProblem("playbook", name, str(error)))
        return found

    async def report(self, reasons: Sequence[str]) -> None:
        """Write that the subscription is held, or held no longer."""
        if reasons:
            await self._trail.write([events.held(self._ref, reasons, emitter=EMITTER)])
        elif self._is_held:
            await self._trail.write([events.released(self._ref, emitter=EMITTER)])
        self._is_held = bool(reasons)


class ServerPlaybooks:
    """`Playbooks` of a server's catalog, for a local runtime that dispatches there: it only finds them."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def find(self, path: str) -> None:
        """Raise PlaybookNotFound if the catalog has no such playbook."""
        try:
            self._control.document(path)
        except ApiRefused as error:
            if error.http_status != 404:
                raise
            raise PlaybookNotFound(f"Playbook not found: {path}, in the catalog of {self._control.url}") from error


class InProcessDispatch:
    """Runs playbooks to their end, at most `concurrency` at a time, and writes their events to the trail.

    A message whose run failed counts as handled; the trail has the error.
    """

    def __init__(self, playbooks: Playbooks, ref: SubscriptionRef, trail: Trail, concurrency: int = 1) -> None:
        self.failed = 0
        self._playbooks = playbooks
        self._ref = ref
        self._trail = trail
        self._slots = asyncio.Semaphore(concurrency)
        # One for each ordering key that has runs now.
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._claims: dict[str, tuple[int, float]] = {}
        self._expiring: list[tuple[float, str]] = []
        self._host = LocalHost(playbooks.find, self._publish)

    async def __call__(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        """Run the playbooks; one result per plan."""
        groups = group_plans(plans)
        done = await asyncio.gather(*(self._run([plans[index] for index in group]) for group in groups))
        found = {
            index: result
            for group, results in zip(groups, done, strict=True)
            for index, result in zip(group, results, strict=True)
        }
        return [found[index] for index in range(len(plans))]

    async def in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Hashable]) -> list[RunDispatchResult]:
        """Run the playbooks, each lane in order; after a failure the rest of its lane is skipped."""
        if not any(plan.batch for plan in plans):
            return await in_turns(self, plans, lanes)

        async def send(some: list[int]) -> list[RunDispatchResult]:
            return await self._run([plans[index] for index in some])

        return await in_batches(send, group_plans(plans), lanes)

    async def _run(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        """Run one playbook for plans of a group; one result per plan."""
        async with self._turn(plans[0].run_order), self._slots:
            found = [await self._duplicate_of(plan) for plan in plans]
            fresh = [plan for plan, duplicate in zip(plans, found, strict=True) if duplicate is None]
            done = iter(await self._run_fresh(fresh) if fresh else ())
            return [duplicate or next(done) for duplicate in found]

    async def _duplicate_of(self, plan: Plan) -> RunDispatchResult | None:
        holder = self._claimed_run(plan)
        if holder is None:
            return None
        assert plan.dedup is not None
        await self._trail.write([events.deduplicated(self._ref, plan.dedup.key, holder)])
        return RunDispatchResult("duplicate", holder)

    async def _run_fresh(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        try:
            playbook = self._playbooks.find(plans[0].playbook)
        except PlaybookNotFound as error:
            return [RunDispatchResult("misconfigured", error=str(error))] * len(plans)
        except TapeError as error:
            return [RunDispatchResult("rejected", error=str(error))] * len(plans)
        execution_id = new_id()
        for plan in plans:
            if plan.dedup is not None:
                until = time.monotonic() + plan.dedup.window_secs
                self._claims[plan.dedup.key] = (execution_id, until)
                heapq.heappush(self._expiring, (until, plan.dedup.key))
        await self._trail.write([event for plan in plans for event in started_events(self._ref, plan, execution_id)])
        answered: dict[str, None] = {}
        try:
            with recording_answers(lambda name: answered.setdefault(name)):
                output, error_text = await self._perform(
                    playbook, batch_plan(plans) if plans[0].batch else plans[0], execution_id
                )
        except DownstreamUnavailable as error:
            self._release_claims(plans)
            answer = RunDispatchResult("unavailable", error=str(error), downstream=error.downstream)
            return [answer] * len(plans)
        if error_text and len(plans) > 1:  # it is not known because of which message: each is tried alone
            self._release_claims(plans)
            return [answer for plan in plans for answer in await self._run_fresh([plan])]
        self.failed += bool(error_text)
        started = RunDispatchResult("started", execution_id, error_text, answered=tuple(answered))
        answers = [started] * len(plans)
        for each in failed_messages(output, len(plans)) if plans[0].batch and not error_text else ():
            answers[each.index] = await self._failed_message(plans[each.index], each, started)
        return answers

    async def _failed_message(self, plan: Plan, failed: FailedMessage, started: RunDispatchResult) -> RunDispatchResult:
        """The result of a message that its batch did not handle: its source redelivers it, or it is a dead letter."""
        if failed.verdict == "retry":
            self._release_claims([plan])
            return RunDispatchResult("rejected", error=failed.reason or "its playbook wants to see it again")
        self.failed += 1
        message = batch_message(plan.payload)
        dead = events.dead_lettered(
            self._ref, plan.message_id, 0, "", 1, failed.reason, message=message, emitter=EMITTER
        )
        await self._trail.write([dead])
        return started

    def _release_claims(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            if plan.dedup is not None:
                self._claims.pop(plan.dedup.key, None)

    @contextlib.asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """Wait until the runs before this one with the same key have ended."""
        if not key:
            yield
            return
        lock, waiting = self._turns.get(key, (asyncio.Lock(), 0))
        self._turns[key] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(key)
            if waiting > 1:
                self._turns[key] = (lock, waiting - 1)

    async def _perform(self, playbook: Playbook, plan: Plan, execution_id: int) -> tuple[Any, str]:
        """Run a playbook. Returns its output and its error, or an empty text."""
        trace = {} if plan.trace is None else msgspec.to_builtins(plan.trace)
        run = RunInfo(
            id=str(execution_id),
            path=plan.playbook,
            pool=plan.pool,
            parent=str(self._ref.subscription_id),
            subscription=plan.subscription,
            message_id=plan.message_id,
            priority=plan.priority,
            trace=trace,
            downstream=plan.downstream,
        )
        context: dict[str, Any] = {"subscription": self._ref.path, "message_id": plan.message_id}
        try:
            output = await run_playbook(playbook, plan.payload, run, self._host)
            if plan.batch:
                failed_messages(output, len(plan.payload["messages"]))  # raises if it says nothing of a message
        except DownstreamUnavailable as error:
            waiting = self._event("playbook.waiting", "WAITING", execution_id, {**context, "error": str(error)}, plan)
            await self._trail.write([waiting])
            raise
        except (TapeError, RunInterrupted) as error:
            failed = self._event("playbook.failed", "FAILED", execution_id, {**context, "error": str(error)}, plan)
            await self._trail.write([failed])
            return None, str(error)
        done = self._event("playbook.completed", "COMPLETED", execution_id, {**context, "output": output}, plan)
        await self._trail.write([done])
        return output, ""

    def _event(
        self, kind: str, status: str, execution_id: int, context: dict[str, Any], plan: Plan
    ) -> SubscriptionEvent:
        return events.local(self._ref, kind, status, execution_id, context, plan.trace)

    async def _publish(self, subject: str, payload: Any) -> None:
        context = {"subject": subject, "payload": payload}
        await self._trail.write([events.local(self._ref, "event.published", "PUBLISHED", 0, context)])

    def _claimed_run(self, plan: Plan) -> int | None:
        if plan.dedup is None:
            return None
        now = time.monotonic()
        while self._expiring and self._expiring[0][0] <= now:
            until, key = heapq.heappop(self._expiring)
            if key in self._claims and self._claims[key][1] == until:
                del self._claims[key]
        claim = self._claims.get(plan.dedup.key)
        return None if claim is None else claim[0]
