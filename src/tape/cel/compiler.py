"""From the checked tree to one Python closure."""

from __future__ import annotations

from typing import Protocol

from tape.cel import calls, comparisons, logic, lookups, macros
from tape.cel.celtypes import NUMBERS, Type
from tape.cel.checker import CallTarget, Checked, LocalSlot, Variable
from tape.cel.entry_view import Constant, EntryView, Run
from tape.cel.syntax import (
    Binary,
    Call,
    Comprehension,
    Conditional,
    Has,
    Index,
    ListOf,
    Literal,
    Logical,
    MapOf,
    Name,
    Node,
    Select,
    Unary,
    walk,
)
from tape.cel.values import Exhausted, Fault, TypeValue


class Observer(Protocol):
    """Wraps the code of every sub-expression, to observe its evaluation."""

    def observe(self, node: Node, run: Run) -> Run:
        """The code to run in place of a node's own."""


def compile_tree(checked: Checked, observer: Observer | None = None) -> Run:
    """Compile a tree to a closure. The caller sets the steps of the entry view before each evaluation.

    With an observer every node keeps its own code; without one, constants are folded and common
    shapes fused.
    """
    run = _Compiler(checked, observer).compile(checked.tree)
    nesting = checked.nesting
    if not nesting:
        return run

    def with_locals(view: EntryView) -> object:
        view.locals = [None] * nesting
        return run(view)

    return with_locals


class _Compiler:
    def __init__(self, checked: Checked, observer: Observer | None) -> None:
        self._checked = checked
        self._meanings = checked.meanings
        self._observer = observer
        self._slots = 0

    def compile(self, node: Node) -> Run:
        run = self._compile(node)
        if self._observer is not None:
            return self._observer.observe(node, run)
        return run

    def _compile(self, node: Node) -> Run:
        match node:
            case Literal():
                return Constant(node.value)
            case Name():
                return self._name(node)
            case Select():
                return self._select(node)
            case Binary():
                return self._binary(node)
            case Logical():
                return self._logical(node)
            case Call():
                return self._call(node)
            case Has():
                operand = self.compile(node.operand)
                return self._folded(lookups.has_field(operand, node.field, node.at), operand)
            case Index():
                container, index = self.compile(node.operand), self.compile(node.index)
                return self._folded(lookups.element(container, index, node.at), container, index)
            case Unary():
                return self._unary(node)
            case Conditional():
                return self._conditional(node)
            case ListOf():
                items = [self.compile(item) for item in node.items]
                return self._folded(lookups.list_literal(items), *items)
            case MapOf():
                keys = [self.compile(key) for key in node.keys]
                values = [self.compile(value) for value in node.values]
                return self._folded(lookups.map_literal(keys, values, node.at), *keys, *values)
            case Comprehension():
                return self._comprehension(node)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def _name(self, node: Name) -> Run:
        meaning = self._meanings[id(node)]
        if isinstance(meaning, Variable):
            return lookups.variable(meaning.name)
        if isinstance(meaning, LocalSlot):
            return lookups.local(meaning.slot)
        return Constant(meaning)

    def _select(self, node: Select) -> Run:
        if isinstance(named := self._meanings.get(id(node)), TypeValue):
            return Constant(named)
        if self._observer is None:
            inner = node.operand
            if self._is_payload(inner):
                return lookups.payload_field(node.field, node.at)
            if isinstance(inner, Select) and self._is_payload(inner.operand):
                return lookups.payload_field_2(inner.field, node.field, inner.at, node.at)
        operand = self.compile(node.operand)
        return self._folded(lookups.field(operand, node.field, node.at), operand)

    def _is_payload(self, node: Node) -> bool:
        return isinstance(node, Name) and self._meanings.get(id(node)) == Variable("payload")

    # ── operators ────────────────────────────────────────────────────────────────────────────────

    def _bool(self, node: Node, operator: str) -> Run:
        run = self.compile(node)
        return run if self._type(node).name == "bool" else logic.as_bool(run, operator, node.at)

    def _logical(self, node: Logical) -> Run:
        is_and = node.operator == "&&"
        operands: list[Run] = []
        for operand in node.operands:
            run = self._bool(operand, node.operator)
            if isinstance(run, Constant) and self._observer is None:
                if run.value is not is_and:
                    return run  # false && …, true || …
                continue
            operands.append(run)
        if not operands:
            return Constant(is_and)
        return logic.chain(logic.both if is_and else logic.either, operands)

    def _conditional(self, node: Conditional) -> Run:
        condition = self._bool(node.condition, "?:")
        then, otherwise = self.compile(node.then), self.compile(node.otherwise)
        if isinstance(condition, Constant):
            return then if condition.value else otherwise
        return logic.conditional(condition, then, otherwise)

    def _unary(self, node: Unary) -> Run:
        if node.operator == "!" and self._type(node.operand).name == "bool":
            operand = self.compile(node.operand)
            return self._folded(logic.negation(operand), operand)
        return self._target(node, f"'{node.operator}'")

    def _binary(self, node: Binary) -> Run:
        symbol = node.operator
        if symbol in ("+", "-", "*", "/", "%"):
            return self._target(node, f"'{symbol}'")
        left, right = self.compile(node.left), self.compile(node.right)
        if symbol == "in":
            return self._folded(comparisons.membership(left, right, node.at), left, right)
        first, second = left, right
        if isinstance(left, Constant) and not isinstance(right, Constant):
            symbol, first, second = comparisons.MIRRORED[symbol], right, left
        if symbol == "==":
            run = comparisons.equality(first, second)
        elif symbol == "!=":
            run = comparisons.inequality(first, second)
        else:
            is_certain = _are_comparable(self._type(node.left), self._type(node.right))
            run = comparisons.ordering(symbol, first, second, node.at, is_certain=is_certain)
        return self._folded(run, left, right)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    def _call(self, node: Call) -> Run:
        return self._target(node, f"{node.function}()")

    def _target(self, node: Call | Binary | Unary, shown: str) -> Run:
        target = self._meanings[id(node)]
        assert isinstance(target, CallTarget)
        operands = [self.compile(operand) for operand in target.operands]
        function, overload = target.function, target.overload
        if function.is_variadic:
            assert overload is not None
            run = calls.variadic(overload.run, operands, node.at)
        elif function.name == "matches":
            run = calls.match(operands[0], operands[1], node.at)
        else:
            run = self._string_test(node, target, operands) or calls.call(
                function, overload.run if overload else None, operands, shown, node.at
            )
        return self._folded(run, *operands)

    def _string_test(self, node: Node, target: CallTarget, operands: list[Run]) -> Run | None:
        wanted = calls.constant_string(operands[1]) if len(operands) == 2 else None
        if wanted is None or not isinstance(node, Call):
            return None
        is_string = self._type(target.operands[0]).name == "string"
        return calls.string_test(target.function.name, operands[0], wanted, node.at, is_string=is_string)

    def _comprehension(self, node: Comprehension) -> Run:
        source = self.compile(node.range)
        slot = self._slots
        self._slots += 1
        macro = f"{node.macro}()"
        condition = self._bool(node.condition, macro) if node.condition else None
        transform = self.compile(node.transform) if node.transform else None
        self._slots -= 1
        cost = sum(1 for part in (node.condition, node.transform) if part for _ in walk(part))
        if node.macro in ("map", "filter"):
            return macros.transformed(source, slot, condition, transform, cost, node.at)
        assert condition is not None
        loop = {"all": macros.every, "exists": macros.some, "exists_one": macros.exactly_one}[node.macro]
        return loop(source, slot, condition, cost, node.at)

    # ── constants ────────────────────────────────────────────────────────────────────────────────

    def _folded(self, run: Run, *operands: Run) -> Run:
        if self._observer is not None or not all(isinstance(operand, Constant) for operand in operands):
            return run
        try:
            return Constant(run(_Folding()))
        except (Fault, Exhausted):
            return run  # an error is one only where it is reached

    def _type(self, node: Node) -> Type:
        return self._checked.type_of(node)


class _Folding(EntryView):
    """What constants are folded in: no entry, and enough steps for what a text can write out."""

    __slots__ = ()

    def __init__(self) -> None:
        self.steps = 100_000


def _are_comparable(left: Type, right: Type) -> bool:
    if "dyn" in (left.name, right.name) or "null" in (left.name, right.name):
        return False
    return left.name == right.name or (left.name in NUMBERS and right.name in NUMBERS)
