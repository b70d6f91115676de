"""From tokens to the syntax tree: CEL's grammar by recursive descent, with precedence climbing."""

from __future__ import annotations

from typing import NoReturn

from tape.cel.limits import PredicateLimits
from tape.cel.literals import integer, string_or_bytes
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
    depth_of,
)
from tape.cel.tokens import Token, tokens_of
from tape.errors import InvalidPredicate

_PRECEDENCE = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "in"), 1),
    **dict.fromkeys(("+", "-"), 2),
    **dict.fromkeys(("*", "/", "%"), 3),
}
_CONSTANTS = {"true": True, "false": False, "null": None}
_KEYWORDS = {*_CONSTANTS, "in"}
_RESERVED = {
    *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"),
    *("package", "namespace", "return", "var", "void", "while"),
}
_MACROS = {"all": (2,), "exists": (2,), "exists_one": (2,), "map": (2, 3), "filter": (2,)}


def parse(text: str, limits: PredicateLimits) -> Node:
    """Parse a text. Raises InvalidPredicate with the position and what was expected there."""
    if len(text) > limits.length:
        raise InvalidPredicate(
            f"the text has {len(text)} characters; {limits.length} are allowed",
            text[: limits.length],
            limits.length,
        )
    tree = _Parser(text, limits).whole()
    # Chains such as a + b + c + … stand above each other without having been nested in the text.
    if (depth := depth_of(tree)) > limits.depth:
        raise InvalidPredicate(f"the expression is {depth} levels deep; {limits.depth} are allowed", text, tree.at)
    return tree


class _Parser:
    def __init__(self, text: str, limits: PredicateLimits) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._position = 0
        self._limits = limits
        self._depth = 0

    def whole(self) -> Node:
        node = self._expression()
        if self._peek.text == "{":
            raise InvalidPredicate(
                "messages cannot be made here; write a map {…}, or timestamp(…) or duration(…)",
                self._text,
                self._peek.start,
            )
        if self._peek.kind != "end":
            self._refuse("an operator or the end of the text")
        return node

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────

    @property
    def _peek(self) -> Token:
        return self._tokens[self._position]

    def _next(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _take(self, symbol: str) -> Token | None:
        token = self._tokens[self._position]
        if token.text == symbol and token.kind == "symbol":
            self._position += 1
            return token
        return None

    def _expect(self, symbol: str, alternative: str = "") -> Token:
        return self._take(symbol) or self._refuse(f"{alternative}'{symbol}'")

    def _refuse(self, expected: str, token: Token | None = None) -> NoReturn:
        token = token or self._peek
        found = "the end of the text" if token.kind == "end" else f"'{token.text[:40]}'"
        raise InvalidPredicate(f"expected {expected}, found {found}", self._text, token.start)

    # ── operators ────────────────────────────────────────────────────────────────────────────────

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > self._limits.depth:
            raise InvalidPredicate(f"more than {self._limits.depth} levels of nesting", self._text, self._peek.start)
        condition = self._logical("||")
        if mark := self._take("?"):
            then = self._logical("||")
            self._expect(":", "an operator or ")
            otherwise = self._expression()
            condition = Conditional(condition.start, otherwise.end, mark.start, condition, then, otherwise)
        self._depth -= 1
        return condition

    def _logical(self, operator: str) -> Node:
        first = self._logical("&&") if operator == "||" else self._binary(self._unary(), 1)
        mark = self._take(operator)
        if mark is None:
            return first
        operands = [first]
        following: Token | None = mark
        while following:
            operands.append(self._logical("&&") if operator == "||" else self._binary(self._unary(), 1))
            following = self._take(operator)
        return Logical(first.start, operands[-1].end, mark.start, operator, tuple(operands))

    def _binary(self, left: Node, least: int) -> Node:
        precedences, tokens = _PRECEDENCE, self._tokens
        while True:
            token = tokens[self._position]
            precedence = precedences.get(token.text, 0)
            if precedence < least or token.kind not in ("symbol", "name"):
                return left
            self._position += 1
            right = self._unary()
            while precedences.get(tokens[self._position].text, 0) > precedence:
                right = self._binary(right, precedence + 1)
            left = Binary(left.start, right.end, token.start, token.text, left, right)

    def _unary(self) -> Node:
        token = self._peek
        if token.kind != "symbol" or token.text not in "!-":
            return self._member(self._primary())
        signs = [self._next()]
        while following := self._take(token.text):
            signs.append(following)
        if token.text == "-" and self._peek.kind in ("integer", "float"):
            node = self._member(self._number(signs.pop()))
        else:
            node = self._member(self._primary())
        for sign in reversed(signs):
            node = Unary(sign.start, node.end, sign.text, node)
        return node

    # ── operands ─────────────────────────────────────────────────────────────────────────────────

    def _member(self, node: Node) -> Node:
        while True:
            if dot := self._take("."):
                name = self._next()
                if name.kind == "quoted":
                    node = Select(node.start, name.end, dot.start, node, name.text[1:-1])
                    continue
                if name.kind != "name" or name.text in _KEYWORDS:
                    self._refuse("a field name", name)
                if self._peek.text == "(" and self._peek.kind == "symbol":
                    node = self._call(node, name)
                else:
                    node = Select(node.start, name.end, dot.start, node, name.text)
            elif bracket := self._take("["):
                index = self._expression()
                end = self._expect("]", "an operator or ").end
                node = Index(node.start, end, bracket.start, node, index)
            else:
                return node

    def _primary(self) -> Node:
        token = self._next()
        match token.kind:
            case "name":
                return self._named(token, token.start)
            case "integer" | "float":
                self._position -= 1
                return self._number(None)
            case "string":
                value = string_or_bytes(token.text, self._text, token.start)
                return Literal(token.start, token.end, value)
        match token.text:
            case "(":
                node = self._expression()
                self._expect(")", "an operator or ")
                return node
            case "[":
                items, end = self._items("]")
                return ListOf(token.start, end, items)
            case "{":
                return self._map(token)
            case ".":
                name = self._next()
                if name.kind != "name" or name.text in _KEYWORDS:
                    self._refuse("a name", name)
                return self._named(name, token.start, is_rooted=True)
        return self._refuse("an expression", token)

    def _number(self, sign: Token | None) -> Node:
        token = self._next()
        start = sign.start if sign else token.start
        if token.kind == "float":
            return Literal(start, token.end, float(token.text) * (-1.0 if sign else 1.0))
        value = integer(token.text, self._text, start, is_negative=sign is not None)
        if sign and token.text[-1] in "uU":
            raise InvalidPredicate("a uint has no sign", self._text, start)
        return Literal(start, token.end, value)

    def _named(self, token: Token, start: int, *, is_rooted: bool = False) -> Node:
        if not is_rooted and token.text in _CONSTANTS:
            return Literal(token.start, token.end, _CONSTANTS[token.text])
        if token.text in _RESERVED:
            raise InvalidPredicate(f"'{token.text}' is a reserved word of CEL", self._text, token.start)
        if token.text == "in":
            self._refuse("an expression", token)
        if self._peek.text == "(" and self._peek.kind == "symbol":
            return self._call(None, token, start)
        return Name(start, token.end, token.text, is_rooted)

    def _call(self, receiver: Node | None, name: Token, start: int = 0) -> Node:
        self._next()
        arguments, end = self._items(")", allows_trailing_comma=False)
        start = start if receiver is None else receiver.start
        if receiver is None and name.text == "has" and len(arguments) == 1:
            (selection,) = arguments
            if not isinstance(selection, Select):
                raise InvalidPredicate("expected a field, as in has(payload.amount)", self._text, selection.start)
            return Has(start, end, name.start, selection.operand, selection.field)
        if receiver is not None and len(arguments) in _MACROS.get(name.text, ()):
            return self._comprehension(receiver, name, arguments, end)
        return Call(start, end, name.start, name.text, receiver, arguments)

    def _comprehension(self, subject: Node, name: Token, arguments: tuple[Node, ...], end: int) -> Node:
        variable = arguments[0]
        if not isinstance(variable, Name) or variable.is_rooted:
            raise InvalidPredicate(
                f"expected a name for the element, as in {name.text}(x, …)", self._text, variable.start
            )
        is_map = name.text == "map"
        condition = arguments[1] if not is_map or len(arguments) == 3 else None
        transform = arguments[-1] if is_map else None
        return Comprehension(subject.start, end, name.start, name.text, subject, variable.name, condition, transform)

    def _items(self, closing: str, *, allows_trailing_comma: bool = True) -> tuple[tuple[Node, ...], int]:
        items: list[Node] = []
        if allows_trailing_comma and self._take(","):
            return (), self._expect(closing).end
        if end := self._take(closing):
            return (), end.end
        while True:
            items.append(self._expression())
            if self._take(","):
                if allows_trailing_comma and (end := self._take(closing)):
                    return tuple(items), end.end
            else:
                return tuple(items), self._expect(closing, "an operator, ',' or ").end

    def _map(self, opening: Token) -> Node:
        keys: list[Node] = []
        values: list[Node] = []
        if not self._take(","):
            while self._peek.text != "}" or self._peek.kind != "symbol":
                keys.append(self._expression())
                self._expect(":", "an operator or ")
                values.append(self._expression())
                if not self._take(","):
                    break
        end = self._expect("}", "an operator, ',' or " if keys else "").end
        return MapOf(opening.start, end, tuple(keys), tuple(values))
