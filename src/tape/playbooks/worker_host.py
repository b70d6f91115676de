"""The host of playbooks in a worker: every step is an effect in the run's journal."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from tape.base.telemetry.tracing import current_trace, to_traceparent
from tape.client import AsyncTapeClient, TapeClient
from tape.durable.effect_call import EffectCall, RunHandle, within
from tape.durable.server_retry import call_with_retry_async
from tape.errors import EffectUnknown, InvalidInput, InvalidJson, PayloadTooLarge, RunInterrupted, StepFailed, TapeError
from tape.model.entry import Draft
from tape.model.payload import to_json
from tape.model.tenant_names import name_within
from tape.playbooks.document import Playbook
from tape.playbooks.host import Act, RunInfo, is_interruption
from tape.playbooks.pools import APP
from tape.proto import tape_pb2 as pb
from tape.reactions.slots import acquire_slot

# Dedup window of child executions, longer than any run: 30 days.
CHILD_WINDOW_S = 30 * 24 * 3600
# A larger result is recorded at once, so that a rejection fails its step.
DEFERRED_BYTES = 64 << 10

Load = Callable[[str], Awaitable[Playbook]]


class RemoteHost:
    """Records the steps of one run on a server, under the run's lease.

    Records are sent with the next call: the lease with the first step, a result with the next step or with the end. A
    step acts only after its own record and all earlier ones are durable.
    """

    def __init__(
        self, run: RunInfo, owner: str, lease_ms: int, client: AsyncTapeClient, blocking: TapeClient, load: Load
    ) -> None:
        self._run = run
        self._owner = owner
        self._lease_ms = lease_ms
        self._client = client
        self._load = load
        self._handle = RunHandle(blocking, run.id, owner, APP, "", run.subscription, run.id)
        self._settled: list[pb.CompleteEffectRequest] = []
        self.has_lease = False

    async def perform(
        self, key: str, step: str, request: Any, act: Act, *, may_wait: bool = False, idempotent: bool = False
    ) -> Any:
        """The recorded result of a step; if there is none, act and record the result."""
        begin = pb.BeginEffectRequest(
            run_id=self._run.id,
            decision_index=-1,
            tool_name=step,
            request_json=to_json(request),
            custom_key=key,
            semantics=pb.EFFECT_SEMANTICS_IDEMPOTENT,
        )
        begun = (await self.advance(begin=begin)).begun
        if begun.status != pb.EFFECT_STATUS_PENDING:
            return _outcome(step, key, begun)
        await acquire_slot()
        try:
            result = _plain(await act())
        except Exception as error:
            if is_interruption(error):
                raise  # an interruption, not a failure: the next worker retries it
            raise await self._failed(step, key, error) from error
        self._settled.append(self._completion(key, pb.EFFECT_STATUS_CONFIRMED, response_json=result))
        if not may_wait or len(result) > DEFERRED_BYTES:
            try:
                await self.advance()
            except PayloadTooLarge as error:
                self._settled = [each for each in self._settled if each.idempotency_key != key]
                raise await self._failed(step, key, error) from error
        return msgspec.json.decode(result)

    async def _failed(self, step: str, key: str, error: Exception) -> StepFailed:
        # The error of a nested playbook names the step that failed.
        kind = error.error_type if isinstance(error, StepFailed) else type(error).__name__
        message = f"{error.step}: {error.error_message}" if isinstance(error, StepFailed) else str(error)
        error_json = json.dumps({"type": kind, "message": message})
        self._settled.append(self._completion(key, pb.EFFECT_STATUS_FAILED, error_json=error_json))
        await self.advance()
        return StepFailed(step, kind, message)

    def _completion(self, key: str, status: int, **texts: str) -> pb.CompleteEffectRequest:
        return pb.CompleteEffectRequest(
            run_id=self._run.id,
            idempotency_key=key,
            status=status,  # type: ignore[arg-type]  # the enum's numbers are ints
            **texts,
        )

    async def advance(self, **parts: Any) -> pb.AdvanceRunResponse:
        """Record pending results and `parts` in one commit."""
        settled, self._settled = self._settled, []
        lease = {} if self.has_lease else {"lease_owner": self._owner, "lease_ttl_ms": self._lease_ms}
        try:
            answer: pb.AdvanceRunResponse = await call_with_retry_async(
                self._client.advance_run, run_id=self._run.id, complete=settled, **lease, **parts
            )
        except BaseException as error:
            self._settled = settled + self._settled
            if isinstance(error, asyncio.CancelledError):
                self.has_lease = True  # the request can have arrived
            if settled and parts and isinstance(error, TapeError | RunInterrupted):
                # The rest was rejected, for example because the run was cancelled; record the completed effects.
                with contextlib.suppress(TapeError, RunInterrupted):
                    await self.advance()
            raise
        self.has_lease = True
        return answer

    async def end(self, status: int, detail_json: str) -> None:
        """End the run."""
        await self.record_end(status, detail_json)

    async def record_end(self, status: int, detail_json: str) -> None:
        """End the run, and keep `detail_json` whatever else is kept of it."""
        await self.advance(end=pb.EndRunRequest(run_id=self._run.id, status=status, detail_json=detail_json))  # type: ignore[arg-type]  # the enum's numbers are ints

    async def release(self) -> None:
        """Record pending results and release the lease, so that the next worker does not wait for its expiry."""
        if self.has_lease:
            if self._settled:
                await self.advance()
            await self._client.resume_run(run_id=self._run.id, lease_owner=self._owner, lease_ttl_ms=1, renew=True)

    async def publish(self, subject: str, payload: Any, key: str) -> None:
        """Append an event to the run's journal, once for a key."""
        draft = Draft(
            subject=subject,
            payload_json=to_json(payload),
            run_id=self._run.id,
            tenant=self._run.tenant or APP,
            session=self._run.subscription,
            **current_trace()._asdict(),
        )
        await self._client.append_many([draft], request_id=key, first_write_wins=True)

    async def load(self, path: str) -> Playbook:
        """A playbook of the catalog, as it is now."""
        return await self._load(name_within(self._run.tenant, path))

    async def start(self, path: str, payload: dict[str, Any], pool: str, key: str) -> str:
        """Start another execution below this one, once for a key; it goes on with this one's trace."""
        trace = current_trace()
        result = await call_with_retry_async(
            self._client.execute,
            path=name_within(self._run.tenant, path),
            payload=payload,
            pool=pool,
            parent_execution_id=int(self._run.id),
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


class SummaryHost(RemoteHost):
    """The host of a run that is kept as a summary: it records only steps that are not idempotent.

    The lease of its task is the run's until the first step is recorded. From then on the run has a row and a lease, and
    its end is recorded there.
    """

    async def perform(
        self, key: str, step: str, request: Any, act: Act, *, may_wait: bool = False, idempotent: bool = False
    ) -> Any:
        """The result of the action; recorded, unless the step is idempotent."""
        if not idempotent:
            return await super().perform(key, step, request, act, may_wait=may_wait)
        if self._settled:
            await self.advance()  # earlier results are durable before a step acts
        await acquire_slot()
        try:
            return msgspec.json.decode(_plain(await act()))
        except Exception as error:
            if is_interruption(error) or isinstance(error, StepFailed):
                raise
            raise StepFailed(step, type(error).__name__, str(error)) from error

    async def end(self, status: int, detail_json: str) -> None:
        """End the run. Its task says that it has ended well, unless the run has a row."""
        if self.has_lease or status != pb.RUN_STATUS_TERMINAL:
            await super().end(status, detail_json)


def _outcome(step: str, key: str, record: Any) -> Any:
    """The recorded outcome of a step, by this worker or another one."""
    if record.status == pb.EFFECT_STATUS_CONFIRMED:
        return msgspec.json.decode(record.response_json or "null")
    if record.status == pb.EFFECT_STATUS_FAILED:
        error = msgspec.json.decode(record.error_json or "{}", type=dict)
        raise StepFailed(step, str(error.get("type", "")), str(error.get("message", "")))
    raise EffectUnknown(f"It is unknown whether the effect {key!r} happened; see: tape effects --unknown")


def _plain(result: Any) -> str:
    """A result as JSON; dataclasses, structs and times become what JSON has for them."""
    try:
        return "null" if result is None else to_json(result)
    except InvalidJson as error:
        raise InvalidInput(f"the result cannot be written as JSON: {error.__cause__ or error}.") from error
