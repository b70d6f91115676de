"""The port of a connector, its results, and the registry of connectors of this process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from tape.base.coroutines import run_to_end
from tape.errors import InvalidConnector

log = logging.getLogger(__name__)

DispatchStatus = Literal["confirmed", "failed", "unknown"]
ObservationStatus = Literal["confirmed", "absent", "duplicate", "failed", "stuck"]
CompensationStatus = Literal["compensated", "failed"]


def _check_status(result: object, status: str, known: Any) -> None:
    if status not in get_args(known):
        raise InvalidConnector(
            f"status {status!r} of a {type(result).__name__} is not one of {', '.join(get_args(known))}."
        )


@dataclass
class DispatchResult:
    """The result of dispatching an effect.

    - `confirmed`: it happened; `external_ref` is the id that the target gave it.
    - `failed`: it did certainly *not* happen. With `retry_at_ms` it is sent again then, otherwise it has
      failed for good.
    - `unknown`: it may have happened. One that is idempotent is sent again, at `retry_at_ms` if that is given; any
      other is not sent again before it is reconciled.
    """

    status: DispatchStatus
    external_ref: str = ""
    response: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    retry_at_ms: int = 0

    def __post_init__(self) -> None:
        _check_status(self, self.status, DispatchStatus)


@dataclass
class ObservationResult:
    """The result of observing an effect at its target.

    - `confirmed`: it happened. `duplicate`: it happened more than once, and `external_ref` is the one too many.
    - `absent`: it did not happen, and nothing that is still on its way can make it happen.
    - `failed`: the target has rejected it. `stuck`: the outcome cannot be observed.
    """

    status: ObservationStatus
    external_ref: str = ""
    response: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_status(self, self.status, ObservationStatus)


@dataclass
class CompensationResult:
    """The result of a compensation; `failed` is retried later."""

    status: CompensationStatus
    response: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_status(self, self.status, CompensationStatus)


@runtime_checkable
class EffectConnector(Protocol):
    """The connection to one target system. Methods may be coroutines; `effect` and `obligation` are records of tape.v1.

    An exception that leaves `dispatch` means `unknown`, one that leaves `observe` means `stuck`.
    """

    def dispatch(self, effect: Any) -> DispatchResult | Awaitable[DispatchResult]:
        """Send an effect. Pass its business key or idempotency key on, so that the target acts once."""

    def observe(self, effect: Any) -> ObservationResult | Awaitable[ObservationResult]:
        """Observe the outcome of an effect that may have been sent."""

    def compensate(self, obligation: Any) -> CompensationResult | Awaitable[CompensationResult]:
        """Undo an effect; may be called more than once."""


# ── names ────────────────────────────────────────────────────────────────────────────────────────

_connectors: dict[str, EffectConnector] = {}


def register(connector: EffectConnector, *, name: str = "") -> EffectConnector:
    """Register a connector of this process; effects name it. An earlier one of that name is replaced."""
    known_as = name or str(getattr(connector, "name", ""))
    if not known_as:
        raise InvalidConnector(f"{connector!r} has no name; use register(connector, name='bank').")
    missing = [each for each in ("dispatch", "observe", "compensate") if not callable(getattr(connector, each, None))]
    if missing:
        raise InvalidConnector(f"The connector {known_as!r} lacks {' and '.join(missing)}.")
    _connectors[known_as] = connector
    return connector


def get(name: str) -> EffectConnector | None:
    """The connector of that name, or None."""
    return _connectors.get(name)


def all_registered() -> dict[str, EffectConnector]:
    """The connectors of this process by name."""
    return dict(_connectors)


def clear() -> None:
    """Unregister all connectors."""
    _connectors.clear()


# ── calls ────────────────────────────────────────────────────────────────────────────────────────

R = TypeVar("R", DispatchResult, ObservationResult, CompensationResult)


def call_dispatch(connector: EffectConnector, effect: Any) -> DispatchResult:
    """Dispatch an effect; an exception of the connector is `unknown`."""
    return _call(connector.dispatch, effect, DispatchResult, lambda error: DispatchResult("unknown", error=error))


def call_observe(connector: EffectConnector, effect: Any) -> ObservationResult:
    """Observe an effect; an exception of the connector is `stuck`."""
    return _call(
        connector.observe,
        effect,
        ObservationResult,
        lambda error: ObservationResult("stuck", response={"error": error}),
    )


def call_compensate(connector: EffectConnector, obligation: Any) -> CompensationResult:
    """Compensate an effect; an exception of the connector is `failed`."""
    return _call(
        connector.compensate, obligation, CompensationResult, lambda error: CompensationResult("failed", error=error)
    )


def _call(method: Callable[[Any], Any], subject: Any, kind: type[R], otherwise: Callable[[dict[str, Any]], R]) -> R:
    try:
        result = run_to_end(method(subject))
    except Exception as error:
        what = getattr(subject, "idempotency_key", None) or getattr(subject, "kind", subject)
        log.warning("%s of %s raised", getattr(method, "__qualname__", method), what, exc_info=True)
        return otherwise(described(error))
    if isinstance(result, kind):
        return result
    message = f"{getattr(method, '__qualname__', method)} answered {result!r} instead of a {kind.__name__}."
    return otherwise({"type": "InvalidConnector", "message": message})


def observation_of(status: str, response: dict[str, Any]) -> ObservationResult:
    """The result of a status check as an observation; the response may have the `external_ref`."""
    return ObservationResult(status, str(response.get("external_ref") or ""), response)  # type: ignore[arg-type]


def described(error: BaseException) -> dict[str, Any]:
    """An exception as it is recorded."""
    return {"type": type(error).__name__, "message": str(error)}
