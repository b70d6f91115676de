"""Functions that make one call on a connection shared by the process: values, signals, timers, and a tool's run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tape.client.channel import DEFAULT_URL
from tape.durable.effect_call import call_of
from tape.durable.lease import DEFAULT_TTL_MS
from tape.durable.recorded_client import recorded_or_shared as shared_client
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb


def set_value(
    namespace: str, key: str, value: Any, *, if_version: int = -1, writer: str = "", url: str = DEFAULT_URL
) -> pb.ValueRecord:
    """Write a JSON value; with `if_version` >= 0 only if that is its current version (0: it does not exist)."""
    return shared_client(url).write_value(
        namespace=namespace, key=key, value_json=_to_json(value), if_version=if_version, writer=writer
    )


def get_value(namespace: str, key: str, *, url: str = DEFAULT_URL) -> pb.GetValueResponse:
    """A value with its version, and whether it exists."""
    return shared_client(url).get_value(namespace=namespace, key=key)


def delete_value(namespace: str, key: str, *, url: str = DEFAULT_URL) -> pb.DeleteValueResponse:
    """Delete a value."""
    return shared_client(url).delete_value(namespace=namespace, key=key)


def watch_value(namespace: str, key: str, *, from_version: int = 0, url: str = DEFAULT_URL) -> Iterator[pb.ValueEvent]:
    """Every version above `from_version`, in order, then each new one, without end."""
    return shared_client(url).watch_value(namespace=namespace, key=key, from_version=from_version)


def send_signal(
    gate_name: str,
    *,
    run_id: str = "",
    app_name: str = "",
    user_id: str = "",
    session_id: str = "",
    resolution: Any = None,
    url: str = DEFAULT_URL,
) -> pb.SendSignalResponse:
    """Answer a gate of a run, or of a session's newest run. Raises GateAnswered if it has another answer."""
    return shared_client(url).send_signal(
        run_id=run_id,
        app_name=app_name,
        user_id=user_id,
        session_id=session_id,
        gate_name=gate_name,
        resolution_json=to_json(resolution),
    )


def set_timer(
    *, run_id: str, fire_at_ms: int, kind: str, timer_id: str = "", payload: Any = None, url: str = DEFAULT_URL
) -> pb.TimerRecord:
    """Set a timer of a run, or replace it."""
    return shared_client(url).set_timer(
        run_id=run_id, fire_at_ms=fire_at_ms, kind=kind, timer_id=timer_id, payload_json=to_json(payload)
    )


def cancel_timer(*, run_id: str, timer_id: str, url: str = DEFAULT_URL) -> pb.CancelTimerResponse:
    """Remove a timer."""
    return shared_client(url).cancel_timer(run_id=run_id, timer_id=timer_id)


def cancel_run(run_id: str, *, reason: str = "", url: str = DEFAULT_URL) -> pb.EndRunResponse:
    """Cancel a run: it begins no further effect, and recovery workers compensate its effects."""
    detail = json.dumps({"reason": reason}) if reason else ""
    return shared_client(url).end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED, detail_json=detail)


def is_cancelled(tool_context: Any, *, url: str = DEFAULT_URL) -> bool:
    """Whether the run that a tool is called in was cancelled: ask now and then in long work."""
    call = call_of(tool_context)
    run = (call.run.client or shared_client(url)).get_run(call.run_id)
    # A cancelled run is COMPENSATING while its effects are compensated.
    return pb.RUN_STATUS_CANCELLED in (run.status, run.former_status)


def heartbeat(tool_context: Any, *, lease_ttl_ms: int = DEFAULT_TTL_MS, url: str = DEFAULT_URL) -> pb.ResumeRunResponse:
    """Renew the lease of the run that a tool is called in. `durable_run` does so in the background."""
    call = call_of(tool_context)
    client = call.run.client or shared_client(url)
    answer: pb.ResumeRunResponse = client.resume_run(
        run_id=call.run_id, lease_owner=call.run.lease_owner, lease_ttl_ms=lease_ttl_ms
    )
    return answer


def policy_is(tool_context: Any, version: str) -> bool:
    """Whether the decision behind this call was made under that version of the policy."""
    call = call_of(tool_context)
    found = call.run.client.get_decision(run_id=call.run_id, decision_index=call.decision_index)
    return bool(found.found and found.decision.policy_version == version)


def _to_json(value: Any) -> str:
    return "null" if value is None else to_json(value)
