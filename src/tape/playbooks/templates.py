"""Templates: `{{ … }}` in the texts of a playbook, each a CEL expression over inputs and earlier steps.

A text that is nothing but one template has the value of its expression, of whatever type; otherwise what the
expressions give is put into the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tape.cel import EvaluationError
from tape.cel.expression import Expression, VariableView, compile_expression
from tape.errors import InvalidPredicate, TemplateFailed

_OPEN, _CLOSE = "{{", "}}"

Render = Callable[[VariableView], Any]


def compile_value(value: Any, names: Iterable[str]) -> Render:
    """What renders a value with all the templates in it. Raises InvalidPredicate for one that does not compile."""
    if isinstance(value, str):
        return _compile_text(value, frozenset(names))
    if isinstance(value, list):
        items = [compile_value(item, names) for item in value]
        return lambda scope: [render(scope) for render in items]
    if isinstance(value, Mapping):
        fields = {key: compile_value(item, names) for key, item in value.items()}
        return lambda scope: {key: render(scope) for key, render in fields.items()}
    return lambda _: value


def evaluate(expression: Expression, scope: VariableView) -> Any:
    """The value of an expression. Raises TemplateFailed."""
    found = expression.evaluate(scope)
    if isinstance(found, EvaluationError):
        raise TemplateFailed(f"{expression.text.strip()!r} has no value here: {found.reason}.")
    return found


def expression_of(text: str) -> str:
    """The expression of a text that may stand in braces or without: `items` and `{{ items }}` are the same."""
    stripped = text.strip()
    if stripped.startswith(_OPEN) and stripped.endswith(_CLOSE) and _OPEN not in stripped[2:]:
        return stripped[2:-2].strip()
    return stripped


def is_template(value: Any) -> bool:
    """Whether a value of a document is known only when it is rendered."""
    return isinstance(value, str) and _OPEN in value


def _compile_text(text: str, names: frozenset[str]) -> Render:
    parts = list(_parts(text))
    if all(isinstance(part, str) for part in parts):
        return lambda _: text
    compiled = [part if isinstance(part, str) else compile_expression(part[0], names) for part in parts]
    if len(compiled) == 1 and isinstance(only := compiled[0], Expression):
        return lambda scope: evaluate(only, scope)
    return lambda scope: "".join(
        part if isinstance(part, str) else _as_text(evaluate(part, scope)) for part in compiled
    )


def _parts(text: str) -> Iterator[str | tuple[str]]:
    """Plain parts, and expressions as tuples of one."""
    position = 0
    while (begin := text.find(_OPEN, position)) >= 0:
        if begin > position:
            yield text[position:begin]
        end = _end_of(text, begin + 2)
        yield (text[begin + 2 : end],)
        position = end + 2
    if position < len(text):
        yield text[position:]


def _end_of(text: str, position: int) -> int:
    """Where `}}` ends an expression: not within its quotes, and not the end of a map literal."""
    start, quote, depth = position, "", 0
    while position < len(text):
        character = text[position]
        if quote:
            position += character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "{":
            depth += 1
        elif character == "}" and depth:
            depth -= 1
        elif text.startswith(_CLOSE, position):
            return position
        position += 1
    raise InvalidPredicate("the template is not closed; write }} after the expression", text, start - 2)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
