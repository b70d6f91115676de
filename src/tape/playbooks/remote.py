"""A worker as the host of playbooks: every step is an effect on the run's journal."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from tape.client import AsyncTapeClient, TapeClient
from tape.effect.call import EffectCall, RunHandle, within
from tape.effect.patience import patiently_async
from tape.errors import EffectUnknown, InvalidInput, InvalidJson, PayloadTooLarge, StepFailed
from tape.journal.entry import Draft
from tape.journal.payload import to_json
from tape.playbooks.host import Act, is_interruption
from tape.playbooks.spec import Playbook
from tape.proto import tape_pb2 as pb
from tape.telemetry.tracing import current_trace, to_traceparent

# A child that was started for a step is the same one for as long as a run may reasonably take.
CHILD_WINDOW_S = 30 * 24 * 3600

Load = Callable[[str], Awaitable[Playbook]]


class RemoteHost:
    """Records the steps of one run on a server, in the name of whoever has the run's lease."""

    def __init__(self, run: pb.RunState, owner: str, client: AsyncTapeClient, blocking: TapeClient, load: Load) -> None:
        self._run = run
        self._client = client
        self._load = load
        ids = (run.app_name, run.user_id, run.session_id, run.invocation_id)
        self._handle = RunHandle(blocking, run.run_id, owner, *ids)

    async def perform(self, key: str, step: str, request: Any, act: Act) -> Any:
        """The recorded result of a step; if there is none, act and record what came of it."""
        begun = await patiently_async(
            self._client.begin_effect,
            run_id=self._run.run_id,
            decision_index=-1,
            tool_name=step,
            request_json=to_json(request),
            custom_key=key,
            semantics=pb.EFFECT_SEMANTICS_IDEMPOTENT,
        )
        if begun.status != pb.EFFECT_STATUS_PENDING:
            return _outcome(step, key, begun)
        try:
            result = _plain(await act())
        except Exception as error:
            if is_interruption(error):
                raise  # not the step failed: whoever takes over will try it
            return await self._fail(step, key, error)
        try:
            return _outcome(step, key, await self._settle(key, pb.EFFECT_STATUS_CONFIRMED, response_json=result))
        except PayloadTooLarge as error:
            return await self._fail(step, key, error)

    async def _fail(self, step: str, key: str, error: Exception) -> Any:
        # A step within a step tells what failed in there.
        kind = error.error_type if isinstance(error, StepFailed) else type(error).__name__
        message = f"{error.step}: {error.error_message}" if isinstance(error, StepFailed) else str(error)
        error_json = json.dumps({"type": kind, "message": message})
        record = await self._settle(key, pb.EFFECT_STATUS_FAILED, error_json=error_json)
        try:
            return _outcome(step, key, record)
        except StepFailed as failed:
            raise failed from error

    async def _settle(self, key: str, status: int, **texts: str) -> Any:
        return await patiently_async(
            self._client.complete_effect, run_id=self._run.run_id, idempotency_key=key, status=status, **texts
        )

    async def publish(self, subject: str, payload: Any, key: str) -> None:
        """Append an event to the run's journal, once for a key."""
        draft = Draft(
            subject=subject,
            payload_json=to_json(payload),
            run_id=self._run.run_id,
            tenant=self._run.app_name,
            session=self._run.session_id,
            **current_trace()._asdict(),
        )
        await self._client.append_many([draft], request_id=key)

    async def load(self, path: str) -> Playbook:
        """A playbook of the catalog, as it is now."""
        return await self._load(path)

    async def start(self, path: str, payload: dict[str, Any], pool: str, key: str) -> str:
        """Start another execution below this one, once for a key; it goes on with this one's trace."""
        trace = current_trace()
        result = await patiently_async(
            self._client.execute,
            path=path,
            payload=payload,
            pool=pool,
            parent_execution_id=int(self._run.run_id),
            traceparent=to_traceparent(trace) if trace.trace_id and trace.span_id else "",
            dedup_key=key,
            dedup_window_secs=CHILD_WINDOW_S,
        )
        return str(result.execution_id)

    def within(self, key: str, step: str) -> AbstractContextManager[Any]:
        """Effects declared by code in this block are recorded below the step's key, or the run's own."""
        return _within(EffectCall(self._handle, tool_name=step if key else "", idempotency_key=key))


@contextmanager
def _within(call: EffectCall) -> Iterator[EffectCall]:
    with within(call):
        yield call


def _outcome(step: str, key: str, record: Any) -> Any:
    """What is on record is what counts, also if somebody else was there first."""
    if record.status == pb.EFFECT_STATUS_CONFIRMED:
        return msgspec.json.decode(record.response_json or "null")
    if record.status == pb.EFFECT_STATUS_FAILED:
        error = msgspec.json.decode(record.error_json or "{}", type=dict)
        raise StepFailed(step, str(error.get("type", "")), str(error.get("message", "")))
    raise EffectUnknown(f"Nobody knows whether the effect {key!r} happened; see: tape effects --unknown")


def _plain(result: Any) -> str:
    """A result as JSON; dataclasses, structs and times become what JSON has for them."""
    try:
        return "null" if result is None else to_json(result)
    except InvalidJson as error:
        raise InvalidInput(f"the result cannot be written as JSON: {error.__cause__ or error}.") from error
