"""Translates CEL predicates to Spark columns; what has no translation is evaluated in Python on the executors.

In a column, null is an evaluation error: SQL's `AND`, `OR` and `NOT` treat null exactly as CEL's `&&`, `||` and `!`
treat an error, and an error is not a match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.cel import VARIABLES, compile_predicate
from tape.cel.syntax import Binary, Call, Conditional, Has, Index, ListOf, Literal, Logical, Name, Node, Select, Unary
from tape.errors import PipelineInput
from tape.pipeline.selection import BatchFilter, conjuncts

# Doubles are exact below this: a comparison with a smaller number gives the same for int, uint and double.
_EXACT = 1 << 53
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMERIC = re.compile(r"^(BIGINT|DOUBLE|FLOAT|DECIMAL\(.*)$").pattern
_STRINGS = {name for name, of in VARIABLES.items() if of.name == "string"}
_INTS = {name for name, of in VARIABLES.items() if of.name == "int"}
_ORDER = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
# The columns that a variable of a predicate is computed from.
SOURCES = {"payload": ("payload_json",), "prev_value_json": ("payload_json",), "type": ("kind", "subject")}


class NotAColumn(Exception):
    """An expression that has no translation to a column."""


def matching(frame: DataFrame, text: str) -> DataFrame:
    """Return the rows that a CEL predicate matches; Spark itself filters by what translates to columns."""
    predicate = compile_predicate(text)
    needed = {column for name in predicate.variables for column in SOURCES.get(name, (name,))}
    if missing := sorted(needed - set(frame.columns)):
        raise PipelineInput(f"The predicate {text!r} needs the columns {', '.join(missing)}; the frame lacks them.")
    is_complete = True
    for node in conjuncts(predicate.tree):
        try:
            frame = frame.where(F.coalesce(_condition(node), F.lit(False)))
        except NotAColumn:
            is_complete = False
    if is_complete:
        return frame

    def test(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = BatchFilter(None, compile_predicate(text))
        return (kept.keep(batch) for batch in batches)

    return frame.mapInArrow(test, frame.schema)


def column_of(text: str) -> Column:
    """Translate a CEL predicate to a column that is true where it matches, else false. Raises NotAColumn."""
    return F.coalesce(_condition(compile_predicate(text).tree), F.lit(False))


def _condition(node: Node) -> Column:
    """Translate a node to a column of true, false, and null for an error."""
    match node:
        case Literal(value=bool(value)):
            return F.lit(value)
        case Logical(operator=operator, operands=operands):
            parts = [_condition(operand) for operand in operands]
            return reduce((lambda a, b: a & b) if operator == "&&" else (lambda a, b: a | b), parts)
        case Unary(operator="!", operand=operand):
            return ~_condition(operand)
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            decided = _condition(condition)
            return F.when(decided, _condition(then)).when(~decided, _condition(otherwise))
        case Binary(operator="in", left=left, right=ListOf(items=items)) if items:
            return reduce(lambda a, b: a | b, [_equality(left, item) for item in items])
        case Binary(operator="==", left=left, right=right):
            return _equality(left, right)
        case Binary(operator="!=", left=left, right=right):
            return ~_equality(left, right)
        case Binary(operator=symbol, left=left, right=right) if symbol in _ORDER:
            return _ordering(symbol, left, right)
        case Call(function="startsWith" | "endsWith" | "contains", receiver=receiver, arguments=(argument,)):
            return _string_test(node, receiver, argument)
        case Has(operand=operand, field=field):
            return _has(operand, field)
        case Select() | Index():
            path = _path(node)
            return F.when(_type(path) == "BOOLEAN", _read(path, "boolean"))
    raise NotAColumn


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def _payload() -> Column:
    return F.try_parse_json(F.col("payload_json"))


def _path(node: Node) -> str:
    """Return the path in the payload that a node reads, in Spark's syntax."""
    match node:
        case Name(name="payload"):
            return "$"
        case Select(operand=operand, field=field):
            return _path(operand) + _step(field)
        case Index(operand=operand, index=Literal(value=str(field))):
            return _path(operand) + _step(field)
        case Index(operand=operand, index=Literal(value=int(position))) if type(position) is int and position >= 0:
            return f"{_path(operand)}[{position}]"
    raise NotAColumn


def _step(field: str) -> str:
    if _FIELD.fullmatch(field):
        return f".{field}"
    if "'" in field or "]" in field or "\\" in field or not field:
        raise NotAColumn
    return f"['{field}']"


def _read(path: str, kind: str) -> Column:
    return F.try_variant_get(_payload(), path, kind)


def _type(path: str) -> Column:
    """The type of the payload's value at a path; null if there is none, which is an error."""
    return F.schema_of_variant(_read(path, "variant"))


def _has(operand: Node, field: str) -> Column:
    inner, outer = _path(operand) + _step(field), _path(operand)
    found = _read(inner, "variant")
    return F.when(found.isNotNull(), True).when(_type(outer).startswith("OBJECT"), False)


# ── comparing ────────────────────────────────────────────────────────────────────────────────────


def _variable(node: Node) -> str:
    return node.name if isinstance(node, Name) and node.name in _STRINGS | _INTS else ""


def _equality(left: Node, right: Node) -> Column:
    if isinstance(left, Literal):
        left, right = right, left
    name = _variable(left)
    if name and (other := _variable(right)) and (name in _STRINGS) == (other in _STRINGS):
        return F.col(name) == F.col(other)
    if not isinstance(right, Literal):
        raise NotAColumn
    if name:
        return F.col(name) == F.lit(_bound(name, right.value))
    path = _path(left)
    kind, value = _type(path), right.value
    if value is None:
        return kind == "VOID"
    if type(value) is bool:
        return F.when(kind == "BOOLEAN", _read(path, "boolean") == value).when(kind.isNotNull(), False)
    if type(value) is str:
        return F.when(kind == "STRING", _read(path, "string") == value).when(kind.isNotNull(), False)
    number = _number(value)
    return F.when(kind.rlike(_NUMERIC), _read(path, "double") == number).when(kind.isNotNull(), False)


def _ordering(symbol: str, left: Node, right: Node) -> Column:
    if isinstance(left, Literal):
        left, right, symbol = right, left, _MIRRORED[symbol]
    name = _variable(left)
    if name and (other := _variable(right)) and (name in _STRINGS) == (other in _STRINGS):
        return _compared(symbol, F.col(name), F.col(other))
    if not isinstance(right, Literal):
        raise NotAColumn
    if name:
        return _compared(symbol, F.col(name), F.lit(_bound(name, right.value)))
    path = _path(left)
    if type(right.value) is str:
        return F.when(_type(path) == "STRING", _compared(symbol, _read(path, "string"), F.lit(right.value)))
    number = F.lit(_number(right.value))
    return F.when(_type(path).rlike(_NUMERIC), _compared(symbol, _read(path, "double"), number))


def _compared(symbol: str, left: Column, right: Column) -> Column:
    compared: Column = getattr(left, _ORDER[symbol])(right)
    return compared


def _bound(name: str, value: Any) -> Any:
    """Return a literal whose type is that of the variable. Raises NotAColumn otherwise."""
    if type(value) is (str if name in _STRINGS else int):
        return value
    raise NotAColumn


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -_EXACT < value < _EXACT:
        raise NotAColumn
    return float(value)


def _string_test(node: Call, receiver: Node | None, argument: Node) -> Column:
    if receiver is None or not isinstance(argument, Literal) or type(argument.value) is not str:
        raise NotAColumn
    method = {"startsWith": "startswith", "endsWith": "endswith", "contains": "contains"}[node.function]
    if (name := _variable(receiver)) in _STRINGS:
        tested: Column = getattr(F.col(name), method)(argument.value)
        return tested
    path = _path(receiver)
    return F.when(_type(path) == "STRING", getattr(_read(path, "string"), method)(argument.value))
