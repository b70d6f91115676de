"""Child runs: begun inside of a run, found again when the run is resumed, and awaited without a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.base.owner import new_owner
from tape.durable.declaration import EffectMeta
from tape.durable.effect_call import EffectCall, within
from tape.durable.effect_execution import perform
from tape.durable.gates import gate
from tape.durable.results import ENDED, result_of
from tape.errors import InvalidInput, RunParked
from tape.proto import tape_pb2 as pb

if TYPE_CHECKING:
    from tape.durable.runs import DurableRun

_POLICIES = {"cancel": pb.CHILD_POLICY_CANCEL, "leave": pb.CHILD_POLICY_LEAVE}
_RESULT = EffectMeta("child_result", semantics="observe_only", on_change="accept")


def begin_child(
    parent: EffectCall,
    app_name: str,
    *,
    invocation_id: str,
    on_parent_cancel: str,
    adopted: str,
    options: dict[str, Any],
) -> DurableRun:
    """A run below the parent; without an invocation id, the number of the child identifies it."""
    from tape.durable.runs import durable_run  # here, because runs begin children

    if on_parent_cancel not in _POLICIES:
        raise InvalidInput(f"on_parent_cancel {on_parent_cancel!r} is not one of {', '.join(_POLICIES)}.")
    run = parent.run
    run.check()
    number = parent.number_of("child run")
    owner = adopted or new_owner()
    child = durable_run(
        app_name or run.app_name,
        **{"user_id": run.user_id, "session_id": run.session_id, "lease_owner": owner} | options,
        invocation_id=invocation_id or f"{run.invocation_id}/child-{number}",
        client=run.client.with_lease_owner(owner),
    )
    child.set_parent(run.run_id, _POLICIES[on_parent_cancel])
    return child


def await_child(parent: EffectCall, run_id: str) -> Any:
    """The result of a child, recorded in the parent; the parent parks as long as the child has not ended."""

    def observe(call: EffectCall) -> dict[str, Any]:
        state = _ended_state(call, run_id)
        return {
            "run_id": run_id,
            "status": int(state.status),
            "former_status": int(state.former_status),
            "result_json": state.result_json,
            "error_type": state.error_type,
            "error_message": state.error_message,
        }

    seen = perform(_RESULT, parent, {"run_id": run_id}, observe)
    return result_of(pb.RunState(**seen))


def _ended_state(call: EffectCall, run_id: str) -> pb.RunState:
    """The state of a child that has ended; RunParked as long as it has not."""
    run = call.run
    state: pb.RunState = run.client.get_run(run_id)
    if state.status not in ENDED:
        try:
            with within(call):
                gate(f"child:{run_id}", risk="", payload={"child": run_id})
        except RunParked:
            state = run.client.get_run(run_id)
            if state.status not in ENDED:
                raise
            run.take_lease_again()  # it ended before the parent waited
        else:
            state = run.client.get_run(run_id)
    return state
