"""The schema as data: what the declarations in `spec` say about each field."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Kind: TypeAlias = Literal["text", "choice", "whole", "flag", "block", "list", "table", "size", "commas"]


class Shape(NamedTuple):
    """What a value must be. `block` declares the fields of a mapping, `item` is the shape of a list's or a table's."""

    kind: Kind
    choices: tuple[str, ...] = ()
    more: Callable[[], tuple[str, ...]] = tuple  # further choices of this process
    least: int | None = None
    most: int | None = None
    pattern: str = ""
    means: str = ""
    block: type[msgspec.Struct] | None = None
    item: Shape | None = None


class Field(NamedTuple):
    """A key of a mapping: its shape, what it has when it is not given, and what it is for."""

    name: str
    shape: Shape
    description: str
    is_required: bool
    default: Any
    alias: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it may be written."""
        return (self.name, self.alias) if self.alias else (self.name,)


@cache
def fields_of(block: type[msgspec.Struct]) -> Mapping[str, Field]:
    """The fields of a declaration, in its order."""
    hints = get_type_hints(block, include_extras=True)
    found = {}
    for declared in msgspec.structs.fields(block):
        hint = hints[declared.name]
        meta = _meta(hint)
        default = declared.default
        if declared.default_factory is not msgspec.NODEFAULT:
            default = declared.default_factory()
        found[declared.name] = Field(
            name=declared.name,
            shape=_shape(hint, {}),
            description=meta.get("description", ""),
            is_required=declared.required,
            default=None if declared.required else default,
            alias=meta.get("alias", ""),
        )
    return found


def _meta(hint: Any) -> dict[str, Any]:
    """What is said beside a type, the outer words last."""
    found: dict[str, Any] = {}
    for meta in hint.__metadata__ if get_origin(hint) is Annotated else ():
        assert isinstance(meta, Meta)
        said = {name: getattr(meta, name) for name in ("description", "pattern", "ge", "le", "min_length")}
        found |= {name: value for name, value in said.items() if value is not None} | (meta.extra or {})
    return found


def _shape(hint: Any, said: dict[str, Any]) -> Shape:
    if get_origin(hint) is Annotated:
        return _shape(get_args(hint)[0], _meta(hint) | said)
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(each for each in get_args(hint) if each is not type(None))
        return _shape(inner, said)
    if get_origin(hint) is Literal:
        return Shape("choice", choices=get_args(hint), more=said.get("more", tuple))
    if said.get("form") == "size":
        return Shape("size", least=1)
    if get_origin(hint) is tuple:
        return Shape("commas" if said.get("form") == "commas" else "list", item=_shape(get_args(hint)[0], {}))
    if get_origin(hint) is dict:
        return Shape("table", item=_shape(get_args(hint)[1], {}))
    if hint is bool:
        return Shape("flag")
    if hint is int:
        return Shape("whole", least=said.get("ge"), most=said.get("le"))
    if hint is str:
        return Shape("text", pattern=said.get("pattern", ""), means=said.get("means", ""))
    assert issubclass(hint, msgspec.Struct), hint
    return Shape("block", block=hint)
