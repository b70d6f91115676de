"""Finds out what names mean and which types expressions have, and refuses what can only fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NoReturn, TypeAlias

import msgspec

from tape.cel.celtypes import (
    BOOL,
    DYN,
    NUMBERS,
    OF_PYTHON,
    ORDERED_NAMES,
    TYPE,
    Type,
    accepts,
    join_types,
    list_of,
    map_of,
    may_equal,
)
from tape.cel.functions import FUNCTIONS, METHODS, NAMESPACES, OPERATORS, TYPES, Function, Overload
from tape.cel.limits import PredicateLimits
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
)
from tape.cel.values import TypeValue, with_article
from tape.errors import InvalidPredicate


class Variable(msgspec.Struct, frozen=True):
    """A variable of the entry view."""

    name: str


class LocalSlot(msgspec.Struct, frozen=True):
    """The element of a macro; `slot` counts the macros around it."""

    slot: int


class CallTarget(msgspec.Struct, frozen=True):
    """What a call calls: one overload if the types decide it, else whatever the values select."""

    function: Function
    operands: tuple[Node, ...]
    overload: Overload | None


Meaning: TypeAlias = "Variable | LocalSlot | TypeValue | CallTarget"


class Checked(msgspec.Struct, frozen=True):
    """A tree with what the checker found out, by the identity of its nodes."""

    tree: Node
    types: dict[int, Type]
    meanings: dict[int, Meaning]
    nesting: int

    def type_of(self, node: Node) -> Type:
        """The type of a sub-expression."""
        return self.types[id(node)]


def check(tree: Node, text: str, variables: Mapping[str, Type], limits: PredicateLimits) -> Checked:
    """The tree with its types. Raises InvalidPredicate."""
    checker = _Checker(text, variables, limits)
    checker.check(tree)
    return Checked(tree, checker.types, checker.meanings, checker.deepest)


class _Checker:
    def __init__(self, text: str, variables: Mapping[str, Type], limits: PredicateLimits) -> None:
        self._text = text
        self._variables = variables
        self._limits = limits
        self._locals: list[tuple[str, Type]] = []
        self.types: dict[int, Type] = {}
        self.meanings: dict[int, Meaning] = {}
        self.deepest = 0

    def check(self, node: Node) -> Type:
        found = self.types[id(node)] = self._check(node)
        return found

    def _check(self, node: Node) -> Type:
        match node:
            case Literal():
                return OF_PYTHON[type(node.value)]
            case Name():
                return self._name(node)
            case Select():
                return self._select(node)
            case Has():
                self._selected(self.check(node.operand), node.at, node.field)
                return BOOL
            case Binary():
                return self._binary(node)
            case Logical():
                for operand in node.operands:
                    self._expect_bool(operand, node.operator)
                return BOOL
            case Call():
                return self._call(node)
            case Unary():
                return self._resolve(node, OPERATORS[f"{node.operator}_"], (node.operand,), node.operator)
            case Index():
                return self._index(node)
            case Conditional():
                self._expect_bool(node.condition, "?:")
                return join_types([self.check(node.then), self.check(node.otherwise)])
            case ListOf():
                return list_of(join_types([self.check(item) for item in node.items]))
            case MapOf():
                keys = [self.check(key) for key in node.keys]
                return map_of(join_types(keys), join_types([self.check(value) for value in node.values]))
            case Comprehension():
                return self._comprehension(node)

    # ── names ────────────────────────────────────────────────────────────────────────────────────

    def _name(self, node: Name) -> Type:
        if not node.is_rooted:
            for slot in range(len(self._locals) - 1, -1, -1):
                if self._locals[slot][0] == node.name:
                    self.meanings[id(node)] = LocalSlot(slot)
                    return self._locals[slot][1]
        if node.name in self._variables:
            self.meanings[id(node)] = Variable(node.name)
            return self._variables[node.name]
        if node.name in TYPES:
            self.meanings[id(node)] = TYPES[node.name]
            return TYPE
        known = [*self._variables, *(name for name, _ in self._locals)]
        if node.name in FUNCTIONS or node.name in METHODS:
            self._refuse(node.at, f"'{node.name}' is a function; it needs parentheses")
        hint = _suggestion(node.name, known) or f"; the variables are {', '.join(known)}"
        return self._refuse(node.at, f"unknown variable '{node.name}'{hint}")

    def _select(self, node: Select) -> Type:
        if (path := _dotted(node)) in TYPES:
            self.meanings[id(node)] = TYPES[path]
            return TYPE
        return self._selected(self.check(node.operand), node.at, node.field)

    def _selected(self, operand: Type, at: int, field: str) -> Type:
        if operand.name == "dyn":
            return DYN
        if operand.name == "map":
            return operand.parameters[1]
        if field in METHODS:
            self._refuse(at, f"'{field}' is a method; it needs parentheses")
        return self._refuse(at, f"{with_article(str(operand))} has no fields")

    # ── operators ────────────────────────────────────────────────────────────────────────────────

    def _binary(self, node: Binary) -> Type:
        if node.operator not in ("==", "!=", "<", "<=", ">", ">=", "in"):
            return self._resolve(node, OPERATORS[node.operator], (node.left, node.right), node.operator)
        left, right = self.check(node.left), self.check(node.right)
        if node.operator == "in":
            fits = self._may_contain(left, right)
        elif node.operator in ("==", "!="):
            fits = may_equal(left, right)
        else:
            fits = _may_order(left, right)
        if not fits:
            self._refuse(node.at, f"'{node.operator}' does not take {left} and {right}")
        return BOOL

    def _may_contain(self, element: Type, container: Type) -> bool:
        if container.name in ("list", "map"):
            return may_equal(element, container.parameters[0])
        return container.name == "dyn"

    def _index(self, node: Index) -> Type:
        operand, index = self.check(node.operand), self.check(node.index)
        if operand.name == "dyn":
            return DYN
        if operand.name == "map" and may_equal(operand.parameters[0], index):
            return operand.parameters[1]
        if operand.name == "list" and (index.name in NUMBERS or index.name == "dyn"):
            return operand.parameters[0]
        return self._refuse(node.at, f"{with_article(str(operand))} cannot be indexed with {with_article(str(index))}")

    def _expect_bool(self, node: Node, operator: str) -> None:
        found = self.check(node)
        if found.name not in ("bool", "dyn"):
            self._refuse(node.at, f"'{operator}' expects a bool, not {with_article(str(found))}")

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    def _call(self, node: Call) -> Type:
        if node.receiver is None:
            if node.function in FUNCTIONS:
                return self._resolve(node, FUNCTIONS[node.function], node.arguments, f"{node.function}()")
            if node.function in METHODS:
                self._refuse(node.at, f"'{node.function}' is a method: write text.{node.function}(…)")
            hint = _suggestion(node.function, (*FUNCTIONS, "has"))
            self._refuse(node.at, f"unknown function '{node.function}'{hint}")
        namespace = _dotted(node.receiver)
        if namespace in NAMESPACES and not any(name == namespace for name, _ in self._locals):
            name = f"{namespace}.{node.function}"
            if name in FUNCTIONS:
                return self._resolve(node, FUNCTIONS[name], node.arguments, f"{name}()")
            self._refuse(node.at, f"unknown function '{name}'{_suggestion(name, FUNCTIONS)}")
        if node.function in METHODS:
            operands = (node.receiver, *node.arguments)
            return self._resolve(node, METHODS[node.function], operands, f"{node.function}()")
        if node.function in FUNCTIONS:
            self._refuse(node.at, f"'{node.function}' is a function: write {node.function}(…)")
        macros = ("all", "exists", "exists_one", "map", "filter")
        if node.function in macros:
            self._refuse(node.at, f"{node.function}() needs a name and an expression, as in {node.function}(x, x > 1)")
        return self._refuse(
            node.at, f"unknown method '{node.function}'{_suggestion(node.function, (*METHODS, *macros))}"
        )

    def _resolve(self, node: Call | Binary | Unary, function: Function, operands: tuple[Node, ...], shown: str) -> Type:
        types = [self.check(operand) for operand in operands]
        if function.is_variadic:
            return self._variadic(node, function, operands, types)
        candidates = [
            overload
            for overload in function.overloads
            if len(overload.parameters) == len(types) and all(map(accepts, overload.parameters, types))
        ]
        if not candidates:
            self._refuse(node.at, _mismatch(function, types, shown, isinstance(node, Call)))
        decided = candidates[0] if len(candidates) == 1 and _is_certain(candidates[0], types) else None
        self.meanings[id(node)] = CallTarget(function, operands, decided)
        return join_types([overload.result for overload in candidates])

    def _variadic(
        self, node: Call | Binary | Unary, function: Function, operands: tuple[Node, ...], types: list[Type]
    ) -> Type:
        elements = types[0].parameters if len(types) == 1 and types[0].name == "list" else types
        if not types or any(found.name not in NUMBERS and found.name != "dyn" for found in elements):
            self._refuse(node.at, f"{function.name}() takes numbers, or one list of numbers")
        self.meanings[id(node)] = CallTarget(function, operands, function.overloads[0])
        return DYN

    def _comprehension(self, node: Comprehension) -> Type:
        source = self.check(node.range)
        if source.name not in ("list", "map", "dyn"):
            self._refuse(node.at, f"{node.macro}() walks through a list or a map, not {with_article(str(source))}")
        element = source.parameters[0] if source.parameters else DYN
        self._locals.append((node.variable, element))
        self.deepest = max(self.deepest, len(self._locals))
        if len(self._locals) > self._limits.nesting:
            self._refuse(node.at, f"more than {self._limits.nesting} macros inside each other")
        if node.condition is not None:
            self._expect_bool(node.condition, f"{node.macro}()")
        result = BOOL
        if node.transform is not None:
            result = list_of(self.check(node.transform))
        elif node.macro == "filter":
            result = list_of(element)
        self._locals.pop()
        return result

    def _refuse(self, at: int, reason: str) -> NoReturn:
        raise InvalidPredicate(reason, self._text, at)


def _dotted(node: Node) -> str:
    """`a.b.c` if the node is nothing but names, else the empty text."""
    parts: list[str] = []
    while isinstance(node, Select):
        parts.append(node.field)
        node = node.operand
    return ".".join((node.name, *reversed(parts))) if isinstance(node, Name) else ""


def _may_order(left: Type, right: Type) -> bool:
    names = {left.name, right.name} - {"dyn"}
    if not names <= ORDERED_NAMES | {"null"}:
        return False
    return len(names) < 2 or names <= NUMBERS or ("null" in names and bool(names & {"timestamp", "duration"}))


def _is_certain(overload: Overload, types: list[Type]) -> bool:
    return all(
        parameter is DYN or parameter.name == found.name
        for parameter, found in zip(overload.parameters, types, strict=True)
    )


def _mismatch(function: Function, types: list[Type], shown: str, is_call: bool) -> str:
    given = ", ".join(map(str, types)) if is_call else " and ".join(map(str, types))
    reason = f"{shown} does not take ({given})" if is_call else f"'{shown}' does not take {given}"
    if len(function.overloads) <= 4:
        taken = " or ".join(f"({', '.join(map(str, overload.parameters))})" for overload in function.overloads)
        reason = f"{reason}; it takes {taken}"
    return reason


def _suggestion(name: str, known: Iterable[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""
