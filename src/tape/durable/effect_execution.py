"""Execution of one effect: recorded as pending before the call, settled after it, performed once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape.base.coroutines import finish_in_thread
from tape.base.retry import retry, retry_async
from tape.durable.callback_arguments import call_offering
from tape.durable.change_detection import StepCheck, check_of, locate, next_position
from tape.durable.compensators import NOT_YET, compensation_of, warn_of_missing
from tape.durable.digest import digest_of
from tape.durable.effect_call import EffectCall, within
from tape.durable.observation import observe_unknown
from tape.durable.registry import get_tool_compensator
from tape.durable.server_retry import call_with_retry
from tape.errors import (
    AckLost,
    EffectFailed,
    EffectUnknown,
    InvalidJson,
    ResultNotRecorded,
    RunChanged,
    RunInterrupted,
    ScopeDenied,
    TapeError,
)
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

if TYPE_CHECKING:
    from tape.durable.declaration import EffectMeta

_SEMANTICS = {
    "idempotent": pb.EFFECT_SEMANTICS_IDEMPOTENT,
    "non_idempotent": pb.EFFECT_SEMANTICS_NON_IDEMPOTENT,
    "observe_only": pb.EFFECT_SEMANTICS_OBSERVE_ONLY,
}
_DISPATCH = {"inline": pb.EFFECT_DISPATCH_MODE_INLINE, "outbox": pb.EFFECT_DISPATCH_MODE_OUTBOX}


class BegunEffect:
    """An effect that is recorded: it is to be performed now, or its outcome is known."""

    def __init__(self, meta: EffectMeta, call: EffectCall, arguments: dict[str, Any], begun: pb.BeginEffectResponse):
        self.meta = meta
        self.call = call
        self.arguments = arguments
        self._status = begun.status
        self._response_json = begun.response_json
        self._error_json = begun.error_json

    @classmethod
    def begin(
        cls,
        meta: EffectMeta,
        parent: EffectCall,
        arguments: dict[str, Any],
        *,
        call_index: int | None = None,
        step: StepRef | None = None,
    ) -> BegunEffect:
        """Record an effect as pending, or find the recorded one.

        `call_index` is the number of the call among the calls of this tool that one decision asks for, if the caller
        knows it; `step` is where the effect stands in the run, if that was determined before.
        """
        request_json = _to_json(arguments, f"The arguments of {meta.name!r}")
        return cls._begin(meta, parent, arguments, request_json, step or _step_ref(meta, parent, arguments, call_index))

    @classmethod
    def _begin(
        cls, meta: EffectMeta, parent: EffectCall, arguments: dict[str, Any], request_json: str, step: StepRef
    ) -> BegunEffect:
        business_key = meta.business_key_for(arguments)
        call = EffectCall(
            parent.run,
            decision_index=parent.decision_index,
            tool_name=meta.name,
            idempotency_key=step.key,
            semantics=meta.semantics,
            business_key=business_key,
            parent=parent,
            position=step.position,
        )
        digest = digest_of(arguments, meta.digest)
        check = StepCheck(
            parent,
            f"the effect {meta.name!r}",
            on_change=meta.on_change,
            position=step.position,
            digest=digest,
            asked=_to_json(arguments, f"The arguments of {meta.name!r}") if meta.dispatch == "outbox" else request_json,
        )
        parent.run.check()
        if meta.dispatch == "outbox":
            _register_compensation(call, arguments)  # a dispatcher may send it as soon as it is recorded
        # The server rejects inline effects that are non-idempotent; with `allow_unsafe` they are never repeated.
        is_unsafe = meta.semantics == "non_idempotent" and meta.dispatch == "inline"
        try:
            begun = parent.run.call(
                parent.run.client.begin_effect,
                decision_index=parent.decision_index,
                tool_name=meta.name,
                request_json=request_json,
                custom_key=call.idempotency_key,
                semantics=_SEMANTICS["idempotent" if is_unsafe else meta.semantics],
                dispatch_mode=_DISPATCH[meta.dispatch],
                business_key=business_key,
                connector=meta.connector,
                scope=meta.scope,
                digest=digest,
                position=step.position,
                change_check=check_of(parent, meta.on_change, step.position),
            )
        except RunChanged as error:
            _drop_compensation(call, "the effect was refused")
            raise check.refused(error) from None
        except ScopeDenied as error:
            _drop_compensation(call, "the effect was refused")
            raise ScopeDenied(str(error), scope=meta.scope, tool=meta.name) from error
        except RunInterrupted:
            _drop_compensation(call, "the run was interrupted before the effect")
            raise
        if not begun.existing:
            check.is_new(begun.displaced)
        elif begun.run_id == parent.run_id and _is_replayed(meta, step, begun):
            check.compare(
                seq=begun.seq,
                digest=begun.digest,
                position=begun.position,
                recorded_json=lambda: _recorded_request(call),
            )
        if parent.run.is_replayed:
            try:
                parent.run.client.check_settled(meta.name, begun.status, meta.dispatch == "outbox")
            except RunInterrupted as ended:
                raise parent.run.interrupt(ended) from None
        begun_effect = cls(meta, call, arguments, begun)
        if begun.idempotency_key != call.idempotency_key:
            begun_effect._leave_to_other_run(begun.idempotency_key)
        elif begun_effect._status == pb.EFFECT_STATUS_UNKNOWN or (is_unsafe and begun.existing):
            begun_effect._look()
        if begun_effect.is_to_be_performed:
            parent.run.refuse_new(f"the outcome of the effect {call.idempotency_key!r}")
            _register_compensation(call, arguments)
        return begun_effect

    @property
    def is_to_be_performed(self) -> bool:
        """Whether this process is to perform the effect now."""
        return bool(self._status == pb.EFFECT_STATUS_PENDING) and self.meta.dispatch == "inline"

    def outcome(self) -> Any:
        """The recorded result; raises EffectFailed or EffectUnknown if that is the recorded outcome."""
        if self._status == pb.EFFECT_STATUS_CONFIRMED:
            return _from_json(self._response_json, self.meta.result_type)
        if self._status == pb.EFFECT_STATUS_FAILED:
            raise _failure(self.meta.name, self._error_json)
        if self._status == pb.EFFECT_STATUS_PENDING:  # the dispatcher has it
            return {
                "status": "pending",
                "idempotency_key": self.call.idempotency_key,
                "business_key": self.call.business_key,
            }
        raise EffectUnknown(
            f"It is not known whether the effect {self.call.idempotency_key!r} happened; it is not repeated."
            " A status check lets a recovery worker find out; see also: tape effects --unknown"
        )

    def confirm(self, result: Any) -> Any:
        """Record that it happened; returns the recorded result, which a resumed run gets too."""
        _register_compensation(self.call, self.arguments, result=result)
        declared = get_tool_compensator(self.meta.name)
        if declared is not None and declared["compensation_payload"] is None:
            warn_of_missing(declared["fn"], self.meta.name, self.arguments, result)
        try:
            response_json = "null" if result is None else _to_json(result, f"The result of {self.meta.name!r}")
        except InvalidJson as error:
            # It did happen: record that, even if its result is not JSON.
            self._complete(pb.EFFECT_STATUS_CONFIRMED, response_json=json.dumps({"unrecorded": repr(result)}))
            raise ResultNotRecorded(f"{error} The effect is confirmed; let it return a JSON value.") from error
        self._complete(pb.EFFECT_STATUS_CONFIRMED, response_json=response_json)
        return self.outcome()

    def fail(self, error: BaseException) -> BaseException:
        """Record the failure; returns the exception to raise instead."""
        if isinstance(error, RunInterrupted) or (isinstance(error, TapeError) and error.retryable):
            return error  # the run was interrupted: the effect stays as it is
        error_json = json.dumps({"type": type(error).__name__, "message": str(error)})
        if isinstance(error, (AckLost, TimeoutError)):
            self._complete(pb.EFFECT_STATUS_UNKNOWN, error_json=error_json)
            return EffectUnknown(
                f"The effect {self.call.idempotency_key!r} may have happened: {type(error).__name__}: {error}"
            )
        self._complete(pb.EFFECT_STATUS_FAILED, error_json=error_json)
        _drop_compensation(self.call, "the effect failed")
        return _failure(self.meta.name, self._error_json)

    def _complete(self, status: int, *, response_json: str = "", error_json: str = "") -> None:
        record = self.call.run.settle(
            self.call.run.client.complete_effect,
            idempotency_key=self.call.idempotency_key,
            status=status,
            response_json=response_json,
            error_json=error_json,
        )
        self._take(record)

    def _take(self, record: pb.EffectRecord) -> None:
        """Adopt the recorded outcome, also if another process recorded it first."""
        self._status = record.status
        self._response_json = record.response_json
        self._error_json = record.error_json

    def _look(self) -> None:
        """Run the status check for an effect that an earlier execution left open."""
        client = self.call.run.client
        found = call_with_retry(client.get_effect, run_id=self.call.run_id, idempotency_key=self.call.idempotency_key)
        self._take(found.effect)
        record = observe_unknown(client, found.effect, self.meta.status_check)
        if record is not None:
            self._take(record)
        elif self._status == pb.EFFECT_STATUS_PENDING:
            self._complete(pb.EFFECT_STATUS_UNKNOWN, error_json=json.dumps({"message": "its process died"}))

    def _leave_to_other_run(self, key: str) -> None:
        """Another run has the effect with this business key: adopt its outcome, do not perform it again."""
        _drop_compensation(self.call, "another run has the effect")
        self.call.idempotency_key = key
        if self.is_to_be_performed:
            raise EffectUnknown(
                f"Another run performs {self.meta.name!r} for business key {self.call.business_key!r}"
                f" (effect {key!r}); its outcome is not known yet."
            )


class StepRef(NamedTuple):
    """Where an effect stands in a run: its idempotency key, and its position among the steps."""

    key: str
    position: str


def _step_ref(
    meta: EffectMeta, parent: EffectCall, arguments: dict[str, Any], call_index: int | None = None
) -> StepRef:
    return StepRef(_key(meta, parent, arguments, call_index), next_position(parent))


def _is_replayed(meta: EffectMeta, step: StepRef, begun: pb.BeginEffectResponse) -> bool:
    """Whether an effect is the recorded one of this call; keys of the user's own may be used again in a run."""
    if begun.idempotency_key != step.key:
        return False
    return meta.key_from is None or not (step.position and begun.position) or step.position == begun.position


def _recorded_request(call: EffectCall) -> str:
    found = call_with_retry(call.run.client.get_effect, run_id=call.run_id, idempotency_key=call.idempotency_key)
    return str(found.effect.request_json)


def _key(meta: EffectMeta, parent: EffectCall, arguments: dict[str, Any], call_index: int | None = None) -> str:
    """The idempotency key: from `key_from`, or from the position of the call in the run, as the server builds it."""
    if meta.key_from is not None:
        return str(call_offering(meta.key_from, {**arguments, "args": arguments}, arguments))
    if parent.idempotency_key:
        return parent.inner_key(meta.name)
    decision = f"decision-{parent.decision_index}" if parent.decision_index >= 0 else "no-decision"
    number = parent.number_of(meta.name) if call_index is None else call_index
    return f"{parent.run_id}/{decision}/{meta.name}/{number}"


# ── compensation ─────────────────────────────────────────────────────────────────────────────────


def _register_compensation(call: EffectCall, arguments: dict[str, Any], result: Any = NOT_YET) -> None:
    """Register the compensation of an effect: before the call, so that no crash can lose it; if its payload depends on
    the result, between the call and the confirmation."""
    wanted = compensation_of(call.tool_name, call.idempotency_key, arguments, result)
    if wanted is not None:
        call.run.settle(call.run.client.register_compensation, **wanted)


def _drop_compensation(call: EffectCall, reason: str) -> None:
    """Settle the compensation of an effect that did not happen."""
    if get_tool_compensator(call.tool_name) is None:
        return
    client = call.run.client
    for obligation in call_with_retry(client.list_obligations, run_id=call.run_id).obligations:
        if obligation.effect_key == call.idempotency_key:
            call_with_retry(
                client.resolve_obligation,
                run_id=call.run_id,
                obligation_seq=obligation.seq,
                status=pb.OBLIGATION_STATUS_COMPENSATED,
                result_json=json.dumps({"skipped": reason}),
            )


# ── calling a tool ──────────────────────────────────────────────────────────

Body = Callable[[EffectCall], Any]


def is_begun(call: EffectCall, meta: EffectMeta) -> bool:
    """Whether a plugin has recorded this effect and will settle it; true once per call."""
    if call.is_entered or call.tool_name != meta.name or meta.dispatch == "outbox":
        return False
    call.is_entered = True
    return True


def perform(meta: EffectMeta, parent: EffectCall, arguments: dict[str, Any], body: Body) -> Any:
    """Perform an effect within a run."""
    if meta.dispatch == "outbox":
        step = _step_ref(meta, parent, arguments)
        with within(parent):
            return _send(meta, parent, arguments, body(parent), step)
    begun_effect = BegunEffect.begin(meta, parent, arguments)
    if not begun_effect.is_to_be_performed:
        return begun_effect.outcome()
    begun_effect.call.is_entered = True
    with within(begun_effect.call):
        try:
            result = attempt(meta, lambda: body(begun_effect.call))
        except (Exception, RunInterrupted) as error:
            if (failure := begun_effect.fail(error)) is error:
                raise
            raise failure from error
    return begun_effect.confirm(result)


async def perform_async(meta: EffectMeta, parent: EffectCall, arguments: dict[str, Any], body: Body) -> Any:
    """`perform` for a coroutine function."""
    # Concurrent calls are numbered in the order in which they were made, also when the run is resumed.
    step = _step_ref(meta, parent, arguments)
    try:
        if meta.dispatch == "outbox":
            with within(parent):
                request = await body(parent)
            return await asyncio.to_thread(_send, meta, parent, arguments, request, step)
        begun_effect = await asyncio.to_thread(BegunEffect.begin, meta, parent, arguments, step=step)
    except RunChanged as change:
        raise locate(change) from None
    if not begun_effect.is_to_be_performed:
        return begun_effect.outcome()
    begun_effect.call.is_entered = True
    with within(begun_effect.call):
        try:
            result = await attempt_async(meta, lambda: body(begun_effect.call))
        except (Exception, RunInterrupted) as error:
            if (failure := await finish_in_thread(begun_effect.fail, error)) is error:
                raise
            raise failure from error
    return await finish_in_thread(begun_effect.confirm, result)


def _send(meta: EffectMeta, parent: EffectCall, arguments: dict[str, Any], request: Any, step: StepRef) -> Any:
    """Put a prepared request into the outbox; returns its outcome if there is one already."""
    request_json = _to_json(arguments if request is None else request, f"The request of {meta.name!r}")
    return BegunEffect._begin(meta, parent, arguments, request_json, step).outcome()


def attempt(meta: EffectMeta, act: Callable[[], Any]) -> Any:
    """Call `act`, and retry it as the effect's policy allows."""
    return act() if meta.retry is None else retry(act, meta.retry, can_retry=_can_retry)


async def attempt_async(meta: EffectMeta, act: Callable[[], Awaitable[Any]]) -> Any:
    """`attempt` for a coroutine function."""
    return await (act() if meta.retry is None else retry_async(act, meta.retry, can_retry=_can_retry))


def _can_retry(error: Exception) -> bool:
    return not isinstance(error, RunInterrupted)


# ── JSON ───────────────────────────────────────────────────────────────────────


def _to_json(value: Any, what: str) -> str:
    try:
        return to_json(value)
    except InvalidJson as error:
        raise InvalidJson(f"{what} cannot be written as JSON: {error.__cause__ or error}.") from error


def _from_json(text: str, kind: Any) -> Any:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (TypeError, msgspec.ValidationError):
        # The return type cannot be rebuilt from JSON: callers get the plain form.
        return msgspec.json.decode(text)


def _failure(tool: str, error_json: str) -> EffectFailed:
    try:
        error = json.loads(error_json or "{}")
    except ValueError:
        error = {"message": error_json}
    if not isinstance(error, dict):
        error = {"message": error}
    return EffectFailed(tool, str(error.get("type", "")), str(error.get("message", "")))
