"""Values of options that have their type already, taken without typer's validation.

typer validates with pydantic, which takes longer to import than most commands run. A text for an option of texts, a
default, an option that is not given and the exact name of a choice need no validation. Every other value is left to
typer, with its rules and its messages.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class PlainValues:
    """Takes plain values of a parameter, and builds typer's validation of it for others only."""

    def __init__(self, parameter: Any) -> None:
        self._type = parameter.type_descriptor.annotation
        is_choice = isinstance(self._type, type) and issubclass(self._type, Enum)
        self._choices = {member.value: member for member in self._type} if is_choice else {}
        self._build_validation = parameter.get_runtime_param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the function of the command gets it; what typer calls for every parameter."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is self._type:
            return value
        if isinstance(value, str) and value in self._choices:
            return self._choices[value]
        return self._build_validation().coerce(value, param=param, ctx=ctx)


def take_plain_values(parameter: Any) -> None:
    """Let a parameter take plain values as they are; versions of typer without pydantic do so themselves."""
    if hasattr(parameter, "get_runtime_param"):
        plain = PlainValues(parameter)
        parameter.get_runtime_param = lambda: plain
