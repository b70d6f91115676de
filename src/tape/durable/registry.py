"""Compensators and status checks by name, so that another process can find those of an effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_compensators: dict[str, Callable[..., Any]] = {}
_tool_compensators: dict[str, dict[str, Any]] = {}
_status_checks: dict[str, Callable[..., Any]] = {}


def compensator_ref_of(fn: Callable[..., Any]) -> str:
    """The reference that an obligation keeps of a compensator: `module:function`."""
    return f"{getattr(fn, '__module__', '')}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"


def register_compensator(name: str, fn: Callable[..., Any]) -> None:
    """Let obligations that name this compensator find it in this process."""
    _compensators[name] = fn


def get_compensator(name: str) -> Callable[..., Any] | None:
    """The compensator of that name, if this process registered it. An obligation never makes a process import code."""
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
    """Let `fn` find out whether a tool's effect with unknown outcome happened."""
    _status_checks[tool_name] = fn


def get_status_check(tool_name: str) -> Callable[..., Any] | None:
    """The status check of a tool, if it has one."""
    return _status_checks.get(tool_name)
