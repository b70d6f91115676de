"""CEL over variables of the caller's own: the same parser, checker and compiler, with a value as the result."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from tape.cel.celtypes import DYN
from tape.cel.checker import Checked, Variable, check
from tape.cel.compiler import compile_tree
from tape.cel.entry_view import COMPUTED, EntryView, Run
from tape.cel.failure import EvaluationError
from tape.cel.limits import LIMITS, PredicateLimits
from tape.cel.parser import parse
from tape.cel.times import write_duration, write_timestamp
from tape.cel.values import Duration, Exhausted, Fault, Timestamp, TypeValue, Uint


class VariableView(EntryView):
    """Variables for one expression or many; it belongs to one thread."""

    __slots__ = ()

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.entry = SimpleNamespace(**values)  # compiled code reads its attributes
        for name in COMPUTED & values.keys():
            setattr(self, name, values[name])


class Expression:
    """A CEL text over known names, compiled."""

    __slots__ = ("_checked", "_run", "_steps", "text")

    def __init__(self, text: str, checked: Checked, run: Run, steps: int) -> None:
        self.text = text
        self._checked = checked
        self._run = run
        self._steps = steps

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the text looks at."""
        return frozenset(each.name for each in self._checked.meanings.values() if isinstance(each, Variable))

    def evaluate(self, scope: VariableView) -> Any:
        """The value as JSON has it, or an EvaluationError."""
        scope.steps = self._steps
        try:
            return _plain(scope.reveal(self._run(scope)))
        except (Fault, Exhausted) as error:
            return EvaluationError.in_text(error.reason, self.text, error.at)
        except RecursionError:
            return EvaluationError.in_text("the values are nested too deeply", self.text, 0)


@lru_cache(maxsize=4096)
def _compiled(text: str, names: frozenset[str], limits: PredicateLimits) -> Expression:
    checked = check(parse(text, limits), text, dict.fromkeys(sorted(names), DYN), limits)
    return Expression(text, checked, compile_tree(checked), limits.steps)


def compile_expression(text: str, names: Iterable[str], limits: PredicateLimits = LIMITS) -> Expression:
    """An expression over variables of these names, each of any type. Raises InvalidPredicate."""
    return _compiled(text, frozenset(names), limits)


def _plain(value: Any) -> Any:
    match value:
        case bool() | None | str() | float():
            return value
        case Uint():
            return int(value)
        case int():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case Timestamp():
            return write_timestamp(value)
        case Duration():
            return write_duration(value)
        case TypeValue():
            return value.name
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {_key(key): _plain(item) for key, item in value.items()}
        case _:
            return value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(_plain(key)).lower() if isinstance(key, bool) else str(_plain(key))
