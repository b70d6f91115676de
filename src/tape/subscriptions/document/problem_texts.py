"""The texts of problems in `kind: Subscription`, which name the field within `spec`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tape.documents.document import Node, nearest
from tape.documents.fields import Shape
from tape.documents.paths import render
from tape.documents.reader import ProblemTexts

# Texts of single fields. `[]` stands for any item of a list.
_MISSING = {
    "source": "subscription spec requires 'source'",
    "mode": "subscription spec requires 'mode' (pull | push)",
    "dispatch": "subscription spec requires a 'dispatch' block",
    "headers.directives[].header": "subscription '{parent}' requires 'header' and 'controls'",
    "headers.directives[].controls": "subscription '{parent}' requires 'header' and 'controls'",
    "ingress.gateway_path": "subscription 'ingress.gateway_path' is required for push",
    "ingress.verify": "subscription 'ingress' requires a 'verify' block (push always verifies)",
    "spool.circuit.downstream[].name": "spool.circuit.downstream[].name is required",
}
_WRONG = {
    "mode": "subscription 'mode' must be 'pull' or 'push', got {value}",
    "dispatch.playbook": "subscription 'dispatch.playbook' is required",
    "ingress.gateway_path": "subscription 'ingress.gateway_path' must be an absolute path starting with '/' whose last"
    " segment has letters, digits and . _ ~ - only, got {value}",
    "spool.circuit.downstream[].name": "spool.circuit.downstream[].name must be non-empty",
}
_ALSO = {"ingress.verify.type": " ('none' is not allowed — push ingress always verifies)"}


class SubscriptionTexts(ProblemTexts):
    """Texts that begin with the field: `subscription 'runtime.batch' must be a positive integer`."""

    text = "must be a non-empty string"
    flag = "must be a boolean"

    def missing(self, node: Node) -> None:
        """Record that a required key is missing."""
        name, parent = _names(node)
        text = _MISSING.get(_general(name), f"subscription '{name}' is required")
        node.document.wrong(node.path, text.replace("{parent}", parent))

    def wrong(self, node: Node, rule: str) -> None:
        """Record that a value breaks a rule."""
        name, _ = _names(node)
        general = _general(name)
        rule, semicolon, hint = rule.partition("; did you mean")
        text = _WRONG.get(general, f"subscription '{name}' {rule}").replace("{value}", _quoted(node.value))
        node.wrong(text + _ALSO.get(general, "") + semicolon + hint)

    def choice(self, node: Node, choices: Sequence[str]) -> str:
        """The rule of a choice."""
        quoted = ", ".join(f'"{choice}"' for choice in choices)
        return f"must be one of [{quoted}], got {_quoted(node.value)}" + nearest(node.value, choices, listed=False)

    def whole(self, node: Node, shape: Shape) -> str:
        """The rule of a whole number."""
        value = node.value
        if shape.most is not None and isinstance(value, int) and not isinstance(value, bool) and value > shape.most:
            return f"must be <= {shape.most} (the server batch cap)"
        return "must be a positive integer" if shape.least == 1 else "must be a whole number of at least 0"

    def pattern(self, node: Node, shape: Shape) -> str:
        """The rule of a text with a pattern."""
        return f"must be {shape.means}, got {_quoted(node.value)}"


def _names(node: Node) -> tuple[str, str]:
    """The path of a node and of its parent, within the spec."""
    path = node.path[1:]
    return render(path), render(path[:-1])


def _general(name: str) -> str:
    return re.sub(r"\[\d+\]", "[]", name)


def _quoted(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)
