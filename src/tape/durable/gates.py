"""Gates: a run parks until its gate is answered, in a second or in a month. No process waits meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tape.base.durations import Duration, parse_duration_ms
from tape.durable.effect_call import call_of
from tape.errors import AckLost, InvalidInput, RunParked
from tape.model.payload import to_json

__all__ = ["AckLost", "gate", "gate_async", "gate_tool"]

REJECT = "reject"
_REJECTED = {"approved": False, "timed_out": True}


def gate(
    gate_name: str,
    *,
    tool_context: Any = None,
    risk: str = "irreversible",
    payload: dict[str, Any] | None = None,
    timeout: Duration | None = None,
    on_timeout: Any = REJECT,
    remind_after: Duration | None = None,
    escalate_after: Duration | None = None,
) -> dict[str, Any]:
    """The answer to a gate of this run; RunParked as long as there is none.

    `tape inbox` and `tape runs show` display `risk` and `payload` to the person who decides. A gate is answered once
    per run; later calls return the same answer. An answer that is not a JSON object is returned as `{"value": …}`.

    After `timeout` ("2h", seconds or a timedelta) the server answers with `on_timeout`: "reject" is
    `{"approved": False, "timed_out": True}`, any other value is the answer itself. `remind_after` and `escalate_after`
    write entries `/tape/gate/reminded/…` and `/tape/gate/escalated/…`, which reactions can act on. The first call sets
    all of these for the gate; they do not change when the run is resumed.
    """
    call = call_of(tool_context)
    terms = _terms(timeout, on_timeout, remind_after, escalate_after)
    run = call.run
    is_asked_again = isinstance(run.interruption, RunParked) and run.parked_at == gate_name
    if not is_asked_again:
        run.check()
    lease = run.lease
    if lease is not None:
        lease.stop()  # a renewal after the run has parked would resume it
    answer = run.settle(
        run.client.await_signal,
        gate_name=gate_name,
        payload_json=to_json({"risk": risk, **(payload or {})}),
        risk=risk,
        **terms,
    )
    if not answer.delivered:
        run.parked_at = gate_name
        raise run.interrupt(
            RunParked(
                f"The run {call.run_id!r} waits at the gate {gate_name!r}. Answer it with:"
                f" tape inbox answer {call.run_id} {gate_name} --approve (or --reject, or --answer JSON)"
            )
        )
    if is_asked_again:
        run.take_lease_again()
    elif lease is not None:
        lease.start()
    return _resolution(answer.resolution_json)


async def gate_async(gate_name: str, **options: Any) -> dict[str, Any]:
    """`gate` for coroutines, with the same options: the event loop goes on while the server is asked."""
    return await asyncio.to_thread(gate, gate_name, **options)


def gate_tool(
    gate_name: str,
    *,
    risk: str = "irreversible",
    timeout: Duration | None = None,
    on_timeout: Any = REJECT,
    remind_after: Duration | None = None,
    escalate_after: Duration | None = None,
) -> Callable[..., dict[str, Any]]:
    """A tool with which an agent asks for approval: it parks the run at a gate and returns the answer."""
    _terms(timeout, on_timeout, remind_after, escalate_after)  # a wrong one is reported here, not in the run

    def ask(reason: str = "", tool_context: Any = None) -> dict[str, Any]:
        return gate(
            gate_name,
            tool_context=tool_context,
            risk=risk,
            payload={"reason": reason} if reason else None,
            timeout=timeout,
            on_timeout=on_timeout,
            remind_after=remind_after,
            escalate_after=escalate_after,
        )

    ask.__name__ = ask.__qualname__ = gate_name if gate_name.isidentifier() else "ask_for_leave"
    ask.__doc__ = f"Ask for leave at the gate {gate_name!r} (risk: {risk}) and get the answer. Say why in `reason`."
    return ask


def _terms(
    timeout: Duration | None, on_timeout: Any, remind_after: Duration | None, escalate_after: Duration | None
) -> dict[str, Any]:
    """The times of a gate as the call takes them; what is not asked for is left out."""
    terms: dict[str, Any] = {}
    if timeout is not None:
        terms["timeout_ms"] = parse_duration_ms("timeout", timeout)
        terms["on_timeout_json"] = json.dumps(None) if on_timeout is None else to_json(_on_timeout(on_timeout))
    elif on_timeout != REJECT:
        raise InvalidInput(f"on_timeout {on_timeout!r} needs a timeout, such as timeout='2h'.")
    for name, wait in (("remind_after", remind_after), ("escalate_after", escalate_after)):
        if wait is not None:
            terms[f"{name}_ms"] = parse_duration_ms(name, wait)
            if 0 < terms.get("timeout_ms", 0) <= terms[f"{name}_ms"]:
                raise InvalidInput(f"{name} {wait!r} must be less than timeout {timeout!r}: it would never come.")
    return terms


def _on_timeout(value: Any) -> Any:
    return _REJECTED if isinstance(value, str) and value == REJECT else value


def _resolution(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text or "{}")
    except ValueError:  # any text may be sent
        answer = text
    return answer if isinstance(answer, dict) else {"value": answer}
