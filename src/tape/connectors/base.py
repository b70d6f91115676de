"""What a connector is, what it may answer, and the names under which this process knows its connectors."""

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
    """What became of sending an effect.

    - `confirmed`: it happened; `external_ref` is what the other side calls it.
    - `failed`: it did certainly *not* happen. With `retry_at_ms` it is sent again then, otherwise it has
      failed for good.
    - `unknown`: it may have happened. One that is idempotent is sent again, at `retry_at_ms` if that is given; any
      other is not sent again before somebody has found out.
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
    """What looking at the other side showed.

    - `confirmed`: it happened. `duplicate`: it happened more than once, and `external_ref` is the one too many.
    - `absent`: it did not happen, and nothing that is still on its way can make it happen.
    - `failed`: it was tried there and refused. `stuck`: nobody can tell.
    """

    status: ObservationStatus
    external_ref: str = ""
    response: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_status(self, self.status, ObservationStatus)


@dataclass
class CompensationResult:
    """Whether undoing worked; `failed` is tried again later."""

    status: CompensationStatus
    response: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_status(self, self.status, CompensationStatus)


@runtime_checkable
class EffectConnector(Protocol):
    """One system on the other side. Methods may be coroutines; `effect` and `obligation` are records of tape.v1.

    An exception that leaves `dispatch` means `unknown`, one that leaves `observe` means `stuck`.
    """

    def dispatch(self, effect: Any) -> DispatchResult | Awaitable[DispatchResult]:
        """Send an effect. Pass its business key or idempotency key on, so that the other side acts once."""

    def observe(self, effect: Any) -> ObservationResult | Awaitable[ObservationResult]:
        """Find out what became of an effect that may have been sent."""

    def compensate(self, obligation: Any) -> CompensationResult | Awaitable[CompensationResult]:
        """Undo an effect; it may be asked to more than once."""


# ── names ────────────────────────────────────────────────────────────────────────────────────────

_connectors: dict[str, EffectConnector] = {}


def register(connector: EffectConnector, *, name: str = "") -> EffectConnector:
    """Let effects that name this connector be sent by this process. A name that is taken gets the new connector."""
    known_as = name or str(getattr(connector, "name", ""))
    if not known_as:
        raise InvalidConnector(f"{connector!r} has no name; use register(connector, name='bank').")
    missing = [each for each in ("dispatch", "observe", "compensate") if not callable(getattr(connector, each, None))]
    if missing:
        raise InvalidConnector(f"The connector {known_as!r} lacks {' and '.join(missing)}.")
    _connectors[known_as] = connector
    return connector


def get(name: str) -> EffectConnector | None:
    """The connector of that name, if this process knows it."""
    return _connectors.get(name)


def all_registered() -> dict[str, EffectConnector]:
    """The connectors of this process by name."""
    return dict(_connectors)


def clear() -> None:
    """Forget all connectors."""
    _connectors.clear()


# ── calls ────────────────────────────────────────────────────────────────────────────────────────

R = TypeVar("R", DispatchResult, ObservationResult, CompensationResult)


def call_dispatch(connector: EffectConnector, effect: Any) -> DispatchResult:
    """Send an effect; whatever goes wrong inside the connector is `unknown`."""
    return _call(connector.dispatch, effect, DispatchResult, lambda error: DispatchResult("unknown", error=error))


def call_observe(connector: EffectConnector, effect: Any) -> ObservationResult:
    """Look at what became of an effect; whatever goes wrong inside the connector is `stuck`."""
    return _call(
        connector.observe,
        effect,
        ObservationResult,
        lambda error: ObservationResult("stuck", response={"error": error}),
    )


def call_compensate(connector: EffectConnector, obligation: Any) -> CompensationResult:
    """Undo an effect; whatever goes wrong inside the connector is `failed`."""
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
    """What a status check has said, as an observation; the response may bring the `external_ref`."""
    return ObservationResult(status, str(response.get("external_ref") or ""), response)  # type: ignore[arg-type]


def described(error: BaseException) -> dict[str, Any]:
    """An exception as it is put on record."""
    return {"type": type(error).__name__, "message": str(error)}
