"""Results of runs: recorded by the process that executes a run, read by every other one."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, overload

import msgspec

from tape.base.retry import UNLIMITED, RetryPolicy, retry
from tape.client.channel import DEFAULT_URL
from tape.client.shared import shared_client
from tape.durable.callback_arguments import names
from tape.errors import InvalidInput, InvalidJson, RunFailed, RunNotEnded, RunResultRejected
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

T = TypeVar("T")

ENDED = frozenset(
    {
        pb.RUN_STATUS_TERMINAL,
        pb.RUN_STATUS_FAILED,
        pb.RUN_STATUS_STUCK,
        pb.RUN_STATUS_CANCELLED,
        pb.RUN_STATUS_COMPENSATING,
    }
)
RESULT_POLL = RetryPolicy(
    max_attempts=UNLIMITED, initial_interval_s=0.05, max_interval_s=1.0, jitter=0.1, retry_on=(RunNotEnded,)
)


def result(run_id: str, *, wait: bool = False, timeout_s: float | None = None, url: str = DEFAULT_URL) -> Any:
    """The result of a finished run, or of an execution of a playbook; None if it recorded none.

    Raises RunFailed, with the error, if the run ended otherwise, and RunNotEnded if it has not ended. With `wait`, it
    waits for the end, at most `timeout_s` seconds (default: without a limit).
    """
    client = shared_client(url)

    def ask() -> Any:
        return result_of(client.get_run(run_id))

    if not wait:
        return ask()
    return retry(ask, RESULT_POLL, deadline_s=timeout_s)


def result_of(run: pb.RunState, kind: Any = Any) -> Any:
    """The result of a run by its state; RunFailed or RunNotEnded if it has none."""
    if run.status not in ENDED:
        raise RunNotEnded(
            f"The run {run.run_id!r} is {_name(run.status)} and has no result yet."
            + (f" It waits at {run.waiting_on_gate!r}." if run.waiting_on_gate else "")
        )
    if run.status != pb.RUN_STATUS_TERMINAL:
        ended_as = _name(run.former_status or run.status)
        raise RunFailed(run.run_id, ended_as, run.error_type, run.error_message)
    return decode(run.result_json, kind)


def encode(value: Any, run_id: str) -> str:
    """A result as JSON; RunResultRejected if it cannot be written so."""
    try:
        return "null" if value is None else to_json(value)
    except InvalidJson as error:
        raise RunResultRejected(
            f"The result of the run {run_id!r} is a {type(value).__name__} and cannot be recorded:"
            f" {error.__cause__ or error}."
            " Return a value that JSON has; the run stays open, and ends when it is executed again."
        ) from error


def decode(result_json: str, kind: Any = Any) -> Any:
    """The value of a recorded result; of the type `kind` if JSON can be read as that."""
    if not result_json:
        return None
    try:
        return msgspec.json.decode(result_json, type=kind)
    except (TypeError, msgspec.ValidationError):
        return msgspec.json.decode(result_json)


@overload
def run_once(
    fn: Callable[..., Awaitable[T]],
    app_name: str,
    *,
    invocation_id: str,
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> Awaitable[T]: ...


@overload
def run_once(
    fn: Callable[..., T],
    app_name: str,
    *,
    invocation_id: str,
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> T: ...


def run_once(
    fn: Callable[..., Any],
    app_name: str,
    *,
    invocation_id: str,
    arguments: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Execute a function as a durable run and return its result; a finished run returns the recorded one.

    The function is called with `arguments` by name, and with the DurableRun if it has a parameter `run`. It is not
    called when the run of this `invocation_id` is finished. If the process dies, the same call resumes the run:
    recorded decisions and effects are not repeated. A coroutine function gives an awaitable. `options` are those of
    `durable_run`.
    """
    if not invocation_id:
        raise InvalidInput("invocation_id is empty; it identifies the run whose result is returned.")
    given = dict(arguments or {})
    if inspect.iscoroutinefunction(fn):
        return _run_once_async(fn, app_name, invocation_id, given, options)
    from tape.durable.runs import durable_run  # here, because it records results with this module

    with durable_run(app_name, invocation_id=invocation_id, **options) as run:
        if not run.is_finished:
            run.result = fn(**_with_run(fn, given, run))
    return run.result_as(_result_type(fn))


async def _run_once_async(
    fn: Callable[..., Awaitable[Any]],
    app_name: str,
    invocation_id: str,
    given: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    from tape.durable.runs import durable_run  # here, because it records results with this module

    async with durable_run(app_name, invocation_id=invocation_id, **options) as run:
        if not run.is_finished:
            run.result = await fn(**_with_run(fn, given, run))
    return run.result_as(_result_type(fn))


def _with_run(fn: Callable[..., Any], given: dict[str, Any], run: Any) -> dict[str, Any]:
    return given | {"run": run} if names(fn, "run") and "run" not in given else given


def _result_type(fn: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(fn).get("return", Any)
    except (NameError, TypeError):  # annotations that only exist while types are checked
        return Any


def _name(status: pb.RunStatus) -> str:
    return pb.RunStatus.Name(status).removeprefix("RUN_STATUS_")
