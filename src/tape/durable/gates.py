"""Gates: a run parks until its gate is answered, in a second or in a month. No process waits meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tape.durable.effect_call import call_of
from tape.errors import AckLost, RunParked
from tape.model.payload import to_json

__all__ = ["AckLost", "gate", "gate_tool"]


def gate(
    gate_name: str, *, tool_context: Any = None, risk: str = "irreversible", payload: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The answer to a gate of this run; RunParked as long as there is none.

    `tape runs show` displays `risk` and `payload` to the person who decides. A gate is answered once per run; later
    calls return the same answer. An answer that is not a JSON object is returned as `{"value": …}`.
    """
    call = call_of(tool_context)
    run = call.run
    is_asked_again = isinstance(run.interruption, RunParked) and run.parked_at == gate_name
    if not is_asked_again:
        run.check()
    lease = run.lease
    if lease is not None:
        lease.stop()  # a renewal after the run has parked would resume it
    answer = run.settle(
        run.client.await_signal, gate_name=gate_name, payload_json=to_json({"risk": risk, **(payload or {})})
    )
    if not answer.delivered:
        run.parked_at = gate_name
        raise run.interrupt(
            RunParked(
                f"The run {call.run_id!r} waits at the gate {gate_name!r}."
                f" Answer it with: tape signal {gate_name} --run {call.run_id} --resolution '{{\"approved\": true}}'"
            )
        )
    if is_asked_again:
        run.take_lease_again()
    elif lease is not None:
        lease.start()
    return _resolution(answer.resolution_json)


def gate_tool(gate_name: str, *, risk: str = "irreversible") -> Callable[..., dict[str, Any]]:
    """A tool with which an agent asks for approval: it parks the run at a gate and returns the answer."""

    def ask(reason: str = "", tool_context: Any = None) -> dict[str, Any]:
        return gate(gate_name, tool_context=tool_context, risk=risk, payload={"reason": reason} if reason else None)

    ask.__name__ = ask.__qualname__ = gate_name if gate_name.isidentifier() else "ask_for_leave"
    ask.__doc__ = f"Ask for leave at the gate {gate_name!r} (risk: {risk}) and get the answer. Say why in `reason`."
    return ask


def _resolution(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text or "{}")
    except ValueError:  # any text may be sent
        answer = text
    return answer if isinstance(answer, dict) else {"value": answer}
