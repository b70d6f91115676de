"""Who undoes an effect and who can tell what became of it, by name: the process that asks may be another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_compensators: dict[str, Callable[..., Any]] = {}
_tool_compensators: dict[str, dict[str, Any]] = {}
_status_checks: dict[str, Callable[..., Any]] = {}


def compensator_ref_of(fn: Callable[..., Any]) -> str:
    """The name that an obligation remembers a compensator by: `module:function`."""
    return f"{getattr(fn, '__module__', '')}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"


def register_compensator(name: str, fn: Callable[..., Any]) -> None:
    """Let obligations that name this compensator find it in this process."""
    _compensators[name] = fn


def get_compensator(name: str) -> Callable[..., Any] | None:
    """The compensator of that name, if this process knows it. Nothing is imported on an obligation's word."""
    return _compensators.get(name)


def register_tool_compensator(
    tool_name: str,
    fn: Callable[..., Any],
    *,
    compensator_ref: str = "",
    max_attempts: int = 0,
    compensation_payload: Callable[..., Any] | None = None,
) -> None:
    """Let `fn` undo what a tool did; for tools that are not declared with `@tape.effect`."""
    ref = compensator_ref or compensator_ref_of(fn)
    register_compensator(ref, fn)
    _tool_compensators[tool_name] = {
        "fn": fn,
        "compensator_ref": ref,
        "max_attempts": max_attempts,
        "compensation_payload": compensation_payload,
    }


def get_tool_compensator(tool_name: str) -> dict[str, Any] | None:
    """`fn`, `compensator_ref`, `max_attempts` and `compensation_payload` of a tool, if it has a compensator."""
    return _tool_compensators.get(tool_name)


def register_status_check(tool_name: str, fn: Callable[..., Any]) -> None:
    """Let `fn` tell what became of a tool's effect whose outcome is not known."""
    _status_checks[tool_name] = fn


def get_status_check(tool_name: str) -> Callable[..., Any] | None:
    """The status check of a tool, if it has one."""
    return _status_checks.get(tool_name)
