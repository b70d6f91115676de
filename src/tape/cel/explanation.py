"""Evaluation with a trace: every sub-expression with its value or error, and the one that decided."""

from __future__ import annotations

from typing import Any

import msgspec

from tape.cel.checker import Checked
from tape.cel.compiler import compile_tree
from tape.cel.display import plain, shown
from tape.cel.entry_view import EntryView, Run
from tape.cel.failure import EvaluationError
from tape.cel.syntax import Comprehension, Conditional, Has, Literal, Logical, Name, Node, Select, Unary, children
from tape.cel.values import Duration, Exhausted, Fault, Timestamp, TypeValue, Uint, described, revealed, weight_of

# Elements of long lists beyond this many sub-expressions are evaluated but not recorded.
MAX_STEPS = 1_000
# Larger values are not copied into an explanation: values inside, 256 characters counting as one.
MAX_VALUES = 5_000
# All values of an explanation together: an expression may name the same large value many times.
MAX_VALUES_IN_ALL = 20_000
# Values that have no size.
_SINGLE = frozenset((bool, int, float, type(None), Uint, Timestamp, Duration, TypeValue))


class TraceStep(msgspec.Struct):
    """A sub-expression as it was evaluated; `binding` says at which element of a macro."""

    expression: str
    node: Node
    binding: str = ""
    value: Any = None
    error: EvaluationError | None = None
    is_evaluated: bool = True
    is_decisive: bool = False
    steps: list[TraceStep] = msgspec.field(default_factory=list)

    def outcome(self) -> str:
        """The value or the error in a few words."""
        if not self.is_evaluated:
            return "not evaluated"
        return shown(self.value) if self.error is None else f"error: {self.error.reason}"

    def to_json(self) -> dict[str, Any]:
        """The step and those below it, of JSON's types alone."""
        found: dict[str, Any] = {
            "expression": self.expression,
            "start": self.node.start,
            "end": self.node.end,
            "evaluated": self.is_evaluated,
        }
        if self.binding:
            found["element"] = self.binding
        if self.error is not None:
            found["error"] = {
                "reason": self.error.reason,
                "line": self.error.line,
                "column": self.error.column,
            }
        elif self.is_evaluated:
            found["value"] = plain(self.value)
        if self.is_decisive:
            found["decided"] = True
        if self.steps:
            found["steps"] = [step.to_json() for step in self.steps]
        return found


class Explanation(msgspec.Struct):
    """How an expression came to its value."""

    text: str
    root: TraceStep
    decided: TraceStep

    @property
    def value(self) -> Any:
        """The value, or an EvaluationError."""
        return self.root.value if self.root.error is None else self.root.error

    @property
    def matched(self) -> bool:
        """Whether the entry matches."""
        return self.root.error is None and self.root.value is True

    def render(self) -> str:
        """The steps as an indented tree."""
        lines: list[str] = []
        _render(self.root, "", "", lines)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The explanation of JSON's types alone, ready for `json.dumps`."""
        return {
            "text": self.text,
            "matched": self.matched,
            "decided": self.decided.expression,
            "trace": self.root.to_json(),
        }


def explain(checked: Checked, text: str, view: EntryView, steps: int) -> Explanation:
    """Evaluate for one entry and keep what happens."""
    trace = _Trace(checked.tree, text)
    run = compile_tree(checked, trace)
    view.steps = steps
    try:
        run(view)
    except (Fault, Exhausted, RecursionError):
        pass  # the trace has it
    root = trace.root.steps[0]
    decided = _mark_decisive(root)
    _add_untouched(root, text)
    return Explanation(text, root, decided)


class _Trace:
    def __init__(self, tree: Node, text: str) -> None:
        self._text = text
        self.root = TraceStep("", tree)
        self._open = [self.root]
        self._recorded = 0
        self._values_left = MAX_VALUES_IN_ALL
        self._bodies: dict[int, tuple[str, int]] = {}
        self._find_bodies(tree, 0)

    def _find_bodies(self, node: Node, slot: int) -> None:
        for child in children(node):
            is_body = isinstance(node, Comprehension) and child is not node.range
            if is_body:
                assert isinstance(node, Comprehension)
                self._bodies[id(child)] = (node.variable, slot)
            self._find_bodies(child, slot + is_body)

    def observe(self, node: Node, run: Run) -> Run:
        expression = self._text[node.start : node.end]
        body = self._bodies.get(id(node))

        def traced(view: EntryView) -> Any:
            step = TraceStep(expression, node)
            self._recorded += 1
            is_recorded = self._recorded <= MAX_STEPS
            if is_recorded:
                if body:
                    step.binding = f"{body[0]} = {shown(self._copy(view.locals[body[1]]))}"
                self._open[-1].steps.append(step)
            self._open.append(step)
            try:
                value = run(view)
                if is_recorded:
                    step.value = self._copy(value)
                return value
            except (Fault, Exhausted) as error:
                step.error = EvaluationError.in_text(error.reason, self._text, error.at)
                raise
            except RecursionError:
                step.error = EvaluationError.in_text("the values are nested too deeply", self._text, node.at)
                raise
            finally:
                self._open.pop()

        return traced

    def _copy(self, value: Any) -> Any:
        if type(value) in _SINGLE:
            return value
        limit = min(MAX_VALUES, self._values_left)
        if (weight := weight_of(value, limit)) > limit:
            return f"({described(value)} of {len(value)}, too large to show)"
        self._values_left -= weight
        return revealed(value)


def _mark_decisive(step: TraceStep) -> TraceStep:
    """Walk down to the smallest sub-expression that alone gives the whole its result."""
    while True:
        below = _decisive_below(step)
        if below is None:
            step.is_decisive = True
            return step
        step = below


def _decisive_below(step: TraceStep) -> TraceStep | None:
    if step.error is not None:
        return next((below for below in step.steps if below.error is not None), None)
    match step.node:
        case Logical(operator=operator):
            decisive = operator == "||"
            if step.value is decisive:
                return next((below for below in step.steps if below.value is decisive), None)
        case Conditional():
            return step.steps[-1] if len(step.steps) == 2 else None
        case Unary(operator="!"):
            return step.steps[0] if step.steps else None
        case Comprehension(macro="all" | "exists" as macro):
            decisive = macro == "exists"
            if step.value is decisive:
                bodies = (below for below in step.steps if below.binding)
                return next((below for below in bodies if below.value is decisive), None)
    return None


def _add_untouched(step: TraceStep, text: str) -> None:
    """Show the operands that were not needed where they stand; constants say nothing and go."""
    if not isinstance(step.node, Comprehension):
        touched = {id(below.node): below for below in step.steps}
        step.steps = [
            touched.get(id(child)) or TraceStep(text[child.start : child.end], child, is_evaluated=False)
            for child in children(step.node)
            if not _is_plain(child, step.node)
        ]
    for below in step.steps:
        if below.is_evaluated:
            _add_untouched(below, text)


def _is_plain(child: Node, parent: Node) -> bool:
    """Whether a reader learns nothing from seeing the child: a constant, or the whole payload."""
    if isinstance(parent, Logical | Conditional):
        return False
    return isinstance(child, Literal) or (isinstance(child, Name) and isinstance(parent, Select | Has))


def _render(step: TraceStep, first: str, rest: str, lines: list[str]) -> None:
    expression = " ".join(step.expression.split()) or "(empty: everything matches)"
    binding = f"[{step.binding}] " if step.binding else ""
    mark = "   ◄ decided" if step.is_decisive else ""
    lines.append(f"{first}{binding}{expression}  →  {step.outcome()}{mark}")
    for position, below in enumerate(step.steps):
        is_last = position == len(step.steps) - 1
        _render(below, rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  "), lines)
