"""Field declarations: what a block of a document may contain, read from the annotations of a msgspec struct.

A declaration is a struct whose fields are annotated with `Meta`. The reader, the JSON Schema and the reference tables
of the docs are made from it. `Meta(extra=...)` may have: `alias` (a second name), `means` (the pattern in words),
`more` (a function that returns further choices), `form` (`size`, `commas` or `expression`) and `schema` (a JSON Schema,
or a function that returns one, instead of the derived schema).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Kind: TypeAlias = Literal[
    "any",
    "block",
    "choice",
    "commas",
    "either",
    "expression",
    "flag",
    "list",
    "number",
    "size",
    "table",
    "text",
    "whole",
]
Schema: TypeAlias = dict[str, Any]


class Shape(NamedTuple):
    """What a value must be.

    `block` declares the fields of a mapping, `item` the items of a list or the values of a table, `options` the
    alternatives of `either`. `least` and `most` are bounds of a number; for a list `least` is its minimum length.
    """

    kind: Kind
    choices: tuple[str, ...] = ()
    more: Callable[[], tuple[str, ...]] = tuple  # further choices of this process
    least: float | None = None
    most: float | None = None
    pattern: str = ""
    means: str = ""
    block: type[msgspec.Struct] | None = None
    item: Shape | None = None
    options: tuple[Shape, ...] = ()
    schema: Schema | Callable[[], Schema] | None = None


class Field(NamedTuple):
    """A key of a mapping: its shape, its default, and its description. `attribute` is its name in the struct."""

    name: str
    shape: Shape
    description: str
    is_required: bool
    default: Any
    alias: str = ""
    attribute: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it may be written."""
        return (self.name, self.alias) if self.alias else (self.name,)


@cache
def fields_of(block: type[msgspec.Struct]) -> Mapping[str, Field]:
    """The fields of a declaration by name, in its order."""
    hints = get_type_hints(block, include_extras=True)
    found = {}
    for declared in msgspec.structs.fields(block):
        hint = hints[declared.name]
        meta = _meta(hint)
        default = declared.default
        if declared.default_factory is not msgspec.NODEFAULT:
            default = declared.default_factory()
        found[declared.encode_name] = Field(
            name=declared.encode_name,
            shape=_shape(hint, {}),
            description=meta.get("description", ""),
            is_required=declared.required,
            default=None if declared.required else default,
            alias=meta.get("alias", ""),
            attribute=declared.name,
        )
    return found


def _meta(hint: Any) -> dict[str, Any]:
    """The metadata of an annotated type; outer metadata overrides inner metadata."""
    found: dict[str, Any] = {}
    for meta in hint.__metadata__ if get_origin(hint) is Annotated else ():
        assert isinstance(meta, Meta)
        said = {name: getattr(meta, name) for name in ("description", "pattern", "ge", "le", "min_length")}
        found |= {name: value for name, value in said.items() if value is not None} | (meta.extra or {})
    return found


def _shape(hint: Any, said: dict[str, Any]) -> Shape:
    if get_origin(hint) is Annotated:
        return _shape(get_args(hint)[0], _meta(hint) | said)
    return _plain_shape(hint, said)._replace(schema=said.get("schema"))


def _plain_shape(hint: Any, said: dict[str, Any]) -> Shape:
    form = said.get("form")
    if form == "expression":
        return Shape("expression")
    if form == "size":
        return Shape("size", least=1)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        options = [each for each in arguments if each is not type(None)]
        if len(options) > 1:
            return Shape("either", options=tuple(_shape(each, {}) for each in options))
        return _shape(options[0], {name: value for name, value in said.items() if name != "schema"})
    if origin is Literal:
        return Shape("choice", choices=arguments, more=said.get("more", tuple))
    if origin is tuple:
        item = _shape(arguments[0], {})
        return Shape("commas" if form == "commas" else "list", item=item, least=said.get("min_length"))
    if origin is dict:
        return Shape("table", item=_shape(arguments[1], {}))
    if hint is bool:
        return Shape("flag")
    if hint is int or hint is float:
        return Shape("whole" if hint is int else "number", least=said.get("ge"), most=said.get("le"))
    if hint is str:
        return Shape("text", pattern=said.get("pattern", ""), means=said.get("means", ""))
    if hint is Any:
        return Shape("any")
    assert issubclass(hint, msgspec.Struct), hint
    return Shape("block", block=hint)
