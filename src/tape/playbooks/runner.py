"""Runs a playbook step by step. The host records each step, so that another worker can resume the run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tape.base.retry import retry_async
from tape.cel.expression import Expression, VariableView
from tape.errors import DownstreamUnavailable, PlaybookError, RunInterrupted, StepFailed, StepRefused, StepTimedOut
from tape.playbooks import functions
from tape.playbooks.answers import note_answer
from tape.playbooks.document import END, GIVEN, Playbook, PlaybookStep
from tape.playbooks.host import Host, RunInfo, is_interruption
from tape.playbooks.inputs import bind_inputs
from tape.playbooks.templates import evaluate
from tape.playbooks.tools import TOOLS, IdempotentTool, ToolCall
from tape.playbooks.unavailability import is_unavailable

# Limit of steps in one run, for playbooks with loops.
MAX_STEPS = 10_000
MAX_DEPTH = 16
# Tools that call no service: unless their step names a downstream, their success says nothing about one.
_WITHOUT_SERVICE = frozenset({"playbook", "publish", "value"})


async def run_playbook(
    playbook: Playbook, payload: Mapping[str, Any], run: RunInfo, host: Host, *, prefix: str = ""
) -> Any:
    """Run a playbook to its end; its output.

    `prefix` precedes the keys of its steps: a playbook inside a step is recorded below that step. Failures of the
    playbook are StepFailed, TemplateFailed or InvalidPayload; other errors interrupt it.
    """
    sent = bind_inputs(playbook.inputs, playbook.workload, payload)
    if playbook.python:
        return await _run_function(playbook, sent, run, host, prefix)
    return await _Run(playbook, sent, run, host, prefix).steps()


async def _run_function(playbook: Playbook, sent: dict[str, Any], run: RunInfo, host: Host, prefix: str) -> Any:
    declared = functions.declared_playbooks().get(playbook.path)
    if declared is None:
        module = playbook.python.partition(":")[0]
        raise RunInterrupted(
            f"the playbook {playbook.path!r} is the Python function {playbook.python}, which this worker does not have:"
            f" start it with --import {module}."
        )
    with host.within(f"{run.id}/{prefix}".rstrip("/") if prefix else "", playbook.path) as context:
        arguments = functions.bind(declared.function, sent, run, context)
        try:
            output = await functions.call(declared.function, arguments)
            note_answer(run.downstream)
            return output
        except Exception as error:
            if isinstance(error, StepFailed) or is_interruption(error):
                raise
            if run.downstream and is_unavailable(error):
                raise DownstreamUnavailable(run.downstream, f"{playbook.path}: {error}") from error
            raise StepFailed(playbook.path, type(error).__name__, str(error)) from error


class _Run:
    """One run through the steps of a playbook."""

    def __init__(self, playbook: Playbook, sent: dict[str, Any], run: RunInfo, host: Host, prefix: str) -> None:
        self._playbook = playbook
        self._run = run
        self._host = host
        self._prefix = prefix
        self._values: dict[str, Any] = {
            **dict.fromkeys(GIVEN),
            **sent,
            "input": sent,
            "workload": sent,
            "run": msgspec.to_builtins(run),
            **{name: {} for name in playbook.steps},  # a step that did not run has no fields
        }
        self._visits: Counter[str] = Counter()

    async def steps(self) -> Any:
        """Run the steps from the first to the end; returns the output."""
        name, last = self._playbook.first, None
        while name and name != END:
            step = self._playbook.steps[name]
            self._visits[name] += 1
            if self._visits.total() > MAX_STEPS:
                raise PlaybookError(f"{self._playbook.path} went through {MAX_STEPS} steps without coming to its end.")
            if step.when is None or self._holds(step.when, f"when of step {name}"):
                last = self._values[name] = await self._step(step)
            name = self._next(step)
        return last if self._playbook.output is None else self._playbook.output(VariableView(self._values))

    def _next(self, step: PlaybookStep) -> str:
        for arrow in step.next:
            if arrow.when is None or self._holds(arrow.when, f"next of step {step.name}"):
                return arrow.step
        return END

    def _holds(self, condition: Expression, where: str) -> bool:
        found = evaluate(condition, VariableView(self._values))
        if not isinstance(found, bool):
            raise PlaybookError(f"{where}: {condition.text!r} gives {found!r}, which is neither true nor false.")
        return found

    async def _step(self, step: PlaybookStep) -> Any:
        visit = self._visits[step.name]
        key = f"{self._run.id}/{self._prefix}{step.name}" + (f"#{visit}" if visit > 1 else "")
        try:
            if step.each is None:
                return await self._perform(step, key, self._values)
            return await self._each(step, key)
        except (StepFailed, PlaybookError) as error:
            if not step.is_optional:
                raise
            return _error_value(error)

    async def _each(self, step: PlaybookStep, key: str) -> list[Any]:
        assert step.each is not None
        items = evaluate(step.each, VariableView(self._values))
        if not isinstance(items, list):
            raise PlaybookError(
                f"each of step {step.name}: {step.each.text!r} gives {type(items).__name__}, not a list."
            )
        slots = asyncio.Semaphore(step.concurrency)
        failed: list[BaseException] = []

        async def one(index: int, item: Any) -> Any:
            async with slots:
                if failed:
                    return None
                values = {**self._values, step.item_name: item, "index": index}
                try:
                    return await self._perform(step, f"{key}[{index}]", values)
                except (StepFailed, PlaybookError) as error:
                    if step.is_optional:
                        return _error_value(error)
                    failed.append(error)
                except BaseException as error:
                    failed.append(error)
                    raise
                return None

        results = await asyncio.gather(*(one(index, item) for index, item in enumerate(items)), return_exceptions=True)
        for result in (*results, *failed):
            if isinstance(result, BaseException):
                raise result
        return list(results)

    async def _perform(self, step: PlaybookStep, key: str, values: Mapping[str, Any]) -> Any:
        config = step.render(VariableView(values))
        tool = TOOLS[step.kind]
        call = ToolCall(config, self._run, step.name, key, self._host)

        needs = step.downstream or ("" if step.kind in _WITHOUT_SERVICE else self._run.downstream)

        async def act() -> Any:
            try:
                result = await _with_retry(step, lambda: tool.call(call))
            except Exception as error:
                if self._run.downstream and not step.is_optional and is_unavailable(error):
                    downstream = step.downstream or self._run.downstream
                    raise DownstreamUnavailable(downstream, f"step {step.name}: {error}") from error
                if isinstance(error, StepRefused) and error.is_answer:
                    note_answer(needs)
                raise
            note_answer(needs)
            return result

        idempotent = step.idempotent
        if idempotent is None:
            idempotent = isinstance(tool, IdempotentTool) and tool.is_idempotent(config)
        request = {"tool": step.kind, **config}
        return await self._host.perform(key, step.name, request, act, may_wait=True, idempotent=idempotent)


async def _with_retry(step: PlaybookStep, act: Callable[[], Any]) -> Any:
    """Return what a tool returns, after as many attempts as the step's policy allows, each within `timeout_s`."""

    async def act_in_time() -> Any:
        try:
            async with asyncio.timeout(step.timeout_s or None) as timer:
                return await act()
        except TimeoutError as error:
            if timer.expired():
                raise StepTimedOut(f"took longer than timeout_s {step.timeout_s:g}.") from error
            raise

    def can_retry(error: Exception) -> bool:
        return not (isinstance(error, StepRefused | StepFailed) or is_interruption(error))

    return await retry_async(act_in_time, step.retry, can_retry=can_retry)


def _error_value(error: Exception) -> dict[str, Any]:
    """An error as the result of a step with `on_error: continue`."""
    kind = error.error_type if isinstance(error, StepFailed) else type(error).__name__
    message = error.error_message if isinstance(error, StepFailed) else str(error)
    return {"error": {"type": kind, "message": message}}
