"""Random expressions and payloads: mostly well typed, sometimes wrong on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

INTS = ("0", "1", "2", "-1", "3", "7", "-9", "100", "9223372036854775807", "-9223372036854775808", "0x1F")
UINTS = ("0u", "1u", "2u", "7u", "100u", "18446744073709551615u")
DOUBLES = ("0.0", "1.0", "1.5", "-2.5", "100.0", "1e300", "-1e-7", "0.1", "3.0")
STRINGS = (
    '""',
    '"a"',
    '"abc"',
    '"hé😀"',
    "'b'",
    '"effect"',
    '"ABC"',
    'r"\\d"',
    '"1"',
    '"1.5"',
    '"true"',
    '"a,b,c"',
    '"\\n"',
)
BYTES = ('b""', 'b"a"', 'b"\\xff"', 'b"abc"')
PATTERNS = ('"a"', '"^a"', '"[a-c]+$"', '"(?i)ABC"', '"^$"', '"."', '"("', '"é"', '"\\\\d+"', '"a{2,3}|b*"')
MOMENTS = (
    '"2024-02-29T12:34:56Z"',
    '"1969-12-31T23:59:59.5Z"',
    '"9999-12-31T23:59:59Z"',
    '"0001-01-01T00:00:00Z"',
    '"2024-07-01T00:00:00.123456+02:00"',
    '"nonsense"',
)
SPANS = ('"1h"', '"90m"', '"-1.5s"', '"0s"', '"100ms"', '"1h2m3.25s"', '"nonsense"')
ZONES = ('"UTC"', '"Europe/Vienna"', '"America/New_York"', '"+02:30"', '"-08:00"', '"Nowhere"')
KINDS = ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "timestamp", "duration", "null")
TYPES = ("int", "string", "double", "list", "map", "bool")
PATHS = ("payload.i", "payload.d", "payload.s", "payload.n", "payload.m.k", "payload.l[0]")
PARTS = ("getHours", "getMinutes", "getSeconds", "getMilliseconds")
ROUNDINGS = ("ceil", "floor", "round", "trunc", "abs", "sign", "sqrt")
CLAUSES = ("%s", "%d", "%f", "%.2f", "%e", "%b", "%o", "%x", "%X", "%%", "%q", "%s-%s")
SHOWABLE = ("int", "uint", "double", "bool", "string", "bytes", "timestamp", "duration")
SOURCES = (
    ("payload.l", "dyn"),
    ("[1, 2, 3]", "int"),
    ('["a", "b"]', "string"),
    ("[0.5, 2.0]", "double"),
    ("payload.m", "dyn"),
)
# How the oracle formats timestamps is listed in docs/predicates.md; bytes need not be text.
FORMATTED = ("int", "double", "string", "bool", "uint", "list", "duration")
ORDERED = ("int", "uint", "double", "string", "bytes", "bool", "timestamp", "duration")
ACCESSORS = (
    "getFullYear",
    "getMonth",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
)


class Generator:
    """Makes expressions from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names: list[tuple[str, str]] = []
        self._makers: dict[str, Callable[[int], str]] = {kind: getattr(self, f"_{kind}") for kind in KINDS}

    def expression(self) -> str:
        """An expression, a bool three times out of four."""
        kind = "bool" if self._random.random() < 0.75 else self._random.choice(KINDS)
        return self._of(kind, self._random.choice((1, 2, 3, 3, 4)))

    def payload(self) -> dict[str, Any]:
        """A payload with the fields that expressions look at; some may be missing or of another type."""
        pick = self._random.choice
        payload: dict[str, Any] = {
            "i": pick((0, 1, -5, 42, 9007199254740993, -(2**63))),
            "d": pick((0.0, 1.5, -2.25, 100.5, 1e300)),
            "s": pick(("", "abc", "hé😀", "a,b", "42", "1.5", "effect")),
            "t": pick((True, False)),
            "l": pick(([], [1, 2, 3], [1, 2.5, "a"], [5], ["a", "b"])),
            "m": pick(({}, {"k": "v"}, {"k": 1, "j": [1]}, {"k": {"k": 2}})),
            "n": None,
        }
        if self._random.random() < 0.15:
            del payload[pick(tuple(payload))]
        if self._random.random() < 0.15:
            payload[pick(("i", "d", "s", "l", "m"))] = pick((1, "x", None, [1], {"k": 1}, 2.5))
        return payload

    # ── making ───────────────────────────────────────────────────────────────────────────────────

    def _of(self, kind: str, depth: int) -> str:
        # Conversions of leaves get what they can take: what they refuse is asked by the table of cases.
        if depth > 0 and self._random.random() < 0.03:
            kind = self._random.choice(KINDS)
        if self._names and self._random.random() < 0.25:
            fitting = [name for name, of in self._names if of in (kind, "dyn")]
            if fitting:
                return self._random.choice(fitting)
        if depth > 1 and self._random.random() < 0.06:
            return f"({self._of('bool', depth - 1)} ? {self._of(kind, depth - 1)} : {self._of(kind, depth - 1)})"
        if depth > 0 and self._random.random() < 0.03:
            return f"dyn({self._of(kind, depth - 1)})"
        return self._makers[kind](depth)

    def _pick(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _operand(self, kind: str, depth: int) -> str:
        made = self._of(kind, depth - 1)
        return made if made.replace(".", "").replace("_", "").isalnum() else f"({made})"

    def _binary(self, kind: str, operator: str, depth: int) -> str:
        return f"{self._operand(kind, depth)} {operator} {self._operand(kind, depth)}"

    def _bool(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(
                "true", "false", "payload.t", "has(payload.i)", "has(payload.m.k)", "has(payload.zz)", "payload.zz"
            )
        form = self._random.randrange(11)
        if form <= 1:
            return self._pick(" && ", " || ").join(
                self._operand("bool", depth) for _ in range(self._random.randint(2, 3))
            )
        if form == 2:
            return f"!{self._operand('bool', depth)}"
        if form == 3:
            kind = self._pick(*KINDS)
            other = kind if self._random.random() < 0.85 else self._pick(*KINDS)
            return f"{self._operand(kind, depth)} {self._pick('==', '!=')} {self._operand(other, depth)}"
        if form == 4:
            kind = self._pick(*ORDERED)
            numbers = ("int", "uint", "double")
            other = self._pick(*numbers) if kind in numbers else kind
            return f"{self._operand(kind, depth)} {self._pick('<', '<=', '>', '>=')} {self._operand(other, depth)}"
        if form == 5:
            method = self._pick("startsWith", "endsWith", "contains")
            return f"{self._operand('string', depth)}.{method}({self._of('string', depth - 1)})"
        if form == 6:
            return f"{self._operand('string', depth)}.matches({self._pick(*PATTERNS)})"
        if form == 7:
            kind = self._pick("int", "string", "double", "bool", "uint")
            items = ", ".join(self._of(kind, 0) for _ in range(self._random.randint(0, 3)))
            container = self._pick(f"[{items}]", "payload.l", "payload.m", "payload")
            return f"{self._operand(kind, depth)} in {container}"
        if form == 8:
            macro = self._pick("all", "exists", "exists_one")
            return self._macro(macro, "bool", depth)
        if form == 9:
            return self._pick(
                f"math.isNaN({self._of('double', depth - 1)})",
                f"math.isInf({self._of('double', depth - 1)})",
                f"bool({self._of('string', depth - 1)})",
                f"type({self._of(self._pick(*KINDS), depth - 1)}) == {self._pick(*TYPES)}",
            )
        wanted = self._of(self._pick("int", "double", "string"), 0)
        return f"{self._pick(*PATHS)} {self._pick('==', '<', '>=', '!=')} {wanted}"

    def _macro(self, macro: str, result: str, depth: int) -> str:
        # The order of a map's keys is not defined, so what depends on it is not asked.
        is_ordered = macro in ("map", "filter")
        source, element = self._random.choice(SOURCES[: len(SOURCES) - is_ordered])
        name = f"x{len(self._names)}"
        self._names.append((name, element))
        body = self._of(result, depth - 1)
        condition = f"{self._of('bool', depth - 1)}, " if macro == "map" and self._random.random() < 0.3 else ""
        self._names.pop()
        return f"{source}.{macro}({name}, {condition}{body})"

    def _int(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(*INTS, "payload.i", "payload.l[0]", "payload.l[1]", "global_seq", "seq", "ts_ms")
        form = self._random.randrange(9)
        if form <= 2:
            return self._binary("int", self._pick("+", "-", "*", "/", "%"), depth)
        if form == 3:
            return f"-{self._operand('int', depth)}"
        if form == 4:
            return f"size({self._of(self._pick('string', 'bytes', 'list', 'map'), depth - 1)})"
        if form == 5:
            return f"int({self._of(self._pick('int', 'uint', 'double', 'string', 'timestamp'), 0)})"
        if form == 6:
            zone = self._pick("", *ZONES)
            return f"{self._operand('timestamp', depth)}.{self._pick(*ACCESSORS)}({zone})"
        if form == 7:
            return self._pick(
                f"{self._operand('duration', depth)}.{self._pick(*PARTS)}()",
                f"{self._operand('string', depth)}.indexOf({self._of('string', 0)})",
                f"{self._operand('string', depth)}.indexOf({self._of('string', 0)}, {self._pick('0', '1', '3', '9')})",
                f"{self._operand('string', depth)}.lastIndexOf({self._of('string', 0)})",
                f"{self._operand('string', depth)}.lastIndexOf({self._of('string', 0)}, {self._pick('0', '1', '3')})",
            )
        first, second = self._of("int", depth - 1), self._of("int", depth - 1)
        other = self._of(self._pick("int", "double", "uint"), depth - 1)
        return self._pick(
            f"math.{self._pick('greatest', 'least')}({first}, {other})",
            f"math.{self._pick('bitAnd', 'bitOr', 'bitXor')}({first}, {second})",
            f"math.{self._pick('bitShiftLeft', 'bitShiftRight')}({first}, {self._pick('0', '1', '63', '64', '-1')})",
            f"math.{self._pick('abs', 'sign', 'bitNot')}({first})",
        )

    def _uint(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(*UINTS)
        form = self._random.randrange(5)
        if form <= 2:
            return self._binary("uint", self._pick("+", "-", "*", "/", "%"), depth)
        if form == 3:
            return f"uint({self._of(self._pick('int', 'uint', 'double', 'string'), 0)})"
        return f"math.{self._pick('abs', 'bitNot')}({self._of('uint', depth - 1)})"

    def _double(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(*DOUBLES, "payload.d")
        form = self._random.randrange(6)
        if form <= 2:
            return self._binary("double", self._pick("+", "-", "*", "/"), depth)
        if form == 3:
            return f"-{self._operand('double', depth)}"
        if form == 4:
            return f"double({self._of(self._pick('double', 'string'), 0)})"
        return f"math.{self._pick(*ROUNDINGS)}({self._of('double', depth - 1)})"

    def _string(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(*STRINGS, "payload.s", "kind", "subject", "payload.m.k")
        form = self._random.randrange(8)
        if form <= 1:
            return self._binary("string", "+", depth)
        if form == 2:
            return f"string({self._of(self._pick(*SHOWABLE), 0)})"
        operand = self._operand("string", depth)
        if form == 3:
            return f"{operand}.{self._pick('lowerAscii', 'upperAscii', 'trim', 'reverse')}()"
        if form == 4:
            old, new = self._of("string", 0), self._of("string", 0)
            return f"{operand}.replace({old}, {new}{self._pick('', ', 1', ', -1', ', 0')})"
        if form == 5:
            # The oracle refuses a substring that ends where the string ends, so only its beginning is given.
            return self._pick(
                f"{operand}.substring({self._pick('0', '1', '5')})",
                f"{operand}.charAt({self._pick('0', '1', '5', '-1')})",
            )
        if form == 6:
            return self._pick(
                f"{self._operand('list', depth)}.join({self._of('string', 0)})",
                f"strings.quote({self._of('string', depth - 1)})",
            )
        clause = self._pick(*CLAUSES)
        shown = self._of(self._pick(*FORMATTED), 0)
        return f'"<{clause}>".format([{shown}])'

    def _bytes(self, depth: int) -> str:
        if depth <= 0:
            return self._pick(*BYTES)
        return self._pick(self._binary("bytes", "+", depth), f"bytes({self._of('string', depth - 1)})")

    def _list(self, depth: int) -> str:
        if depth <= 0:
            return self._pick("[]", "payload.l", "[1, 2]", '["a"]', "[1.5, 2.5]", "payload.m.j")
        form = self._random.randrange(5)
        if form == 0:
            return f"[{', '.join(self._of(self._pick(*KINDS), depth - 1) for _ in range(self._random.randint(0, 3)))}]"
        if form == 1:
            return self._binary("list", "+", depth)
        if form == 2:
            return self._macro("map", self._pick("int", "string", "bool"), depth)
        if form == 3:
            return self._macro("filter", "bool", depth)
        return f"{self._operand('string', depth)}.split({self._of('string', 0)}{self._pick('', ', 2', ', 0')})"

    def _map(self, depth: int) -> str:
        if depth <= 0:
            return self._pick("{}", "payload.m", '{"k": 1}', "payload")
        kinds = self._pick("string", "int")
        keys = ('"k"', '"j"') if kinds == "string" else ("1", "2")
        pairs = [f"{key}: {self._of(self._pick(*KINDS), depth - 1)}" for key in keys[: self._random.randint(0, 2)]]
        return f"{{{', '.join(pairs)}}}"

    def _timestamp(self, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.5:
            return f"timestamp({self._pick(*MOMENTS, '0', '1700000000', '-1')})"
        return self._pick(
            f"{self._operand('timestamp', depth)} {self._pick('+', '-')} {self._operand('duration', depth)}",
            f"{self._operand('duration', depth)} + {self._operand('timestamp', depth)}",
        )

    def _duration(self, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.5:
            return f"duration({self._pick(*SPANS)})"
        return self._pick(self._binary("duration", self._pick("+", "-"), depth), self._binary("timestamp", "-", depth))

    def _null(self, _: int) -> str:
        return self._pick("null", "payload.n")
