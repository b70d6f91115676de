"""Effects as calls of functions of this process, for client libraries and tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tape.connectors.base import CompensationResult, DispatchResult, ObservationResult, observation_of
from tape.connectors.templates import content_of, fields_of
from tape.durable.callback_arguments import call_offering
from tape.durable.observation import check_status


@dataclass
class LocalConnector:
    """Calls functions, each with the fields of the request and of the record that its parameters name.

    `send` may answer a `DispatchResult`, a dict (confirmed, with that response; an `external_ref` in it is the
    reference) or None (confirmed); an exception means `unknown`. `look` answers what a status check may. `undo` may
    answer a `CompensationResult`, a dict or None. A function with one parameter of another name gets the request, the
    idempotency key, or the payload. Coroutine functions are run to their end.
    """

    name: str
    send: Callable[..., Any]
    look: Callable[..., Any] | None = None
    undo: Callable[..., Any] | None = None

    def dispatch(self, effect: Any) -> Any:
        """Call `send`."""
        request = content_of(effect.request_json)
        answer = call_offering(self.send, {"effect": effect, "request": request, **fields_of(effect)}, request)
        return _later(answer, _dispatched)

    def observe(self, effect: Any) -> ObservationResult:
        """Call `look`; without one the outcome is `stuck`."""
        seen = check_status(self.look, effect) if self.look is not None else None
        if seen is None:
            return ObservationResult("stuck", response={"error": {"message": f"{self.name!r} has no look function."}})
        return observation_of(*seen)

    def compensate(self, obligation: Any) -> Any:
        """Call `undo`; without one the compensation fails."""
        if self.undo is None:
            return CompensationResult("failed", error={"message": f"{self.name!r} has no undo function."})
        payload = content_of(obligation.payload_json)
        offered = {"obligation": obligation, "payload": payload, **fields_of(obligation)}
        return _later(call_offering(self.undo, offered, payload), _compensated)


def _later(answer: Any, shape: Callable[[Any], Any]) -> Any:
    """The converted answer, also of a coroutine."""
    if not isinstance(answer, Awaitable):
        return shape(answer)

    async def waiting() -> Any:
        return shape(await answer)

    return waiting()


def _dispatched(answer: Any) -> Any:
    if answer is None or isinstance(answer, dict):
        answer = answer or {}
        return DispatchResult("confirmed", external_ref=str(answer.get("external_ref", "")), response=answer)
    return answer  # the caller reports anything else that is not a DispatchResult


def _compensated(answer: Any) -> Any:
    if answer is None or isinstance(answer, dict):
        return CompensationResult("compensated", response=answer or {})
    return answer
