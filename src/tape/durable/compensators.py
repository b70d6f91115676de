"""What a compensator is called with: the arguments and the result's fields by name, and facts about the effect."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tape.durable.callback_arguments import call_offering, finish, name_of, names, unknown_parameters
from tape.durable.registry import compensator_ref_of, get_tool_compensator
from tape.errors import InvalidInput, InvalidJson
from tape.model.payload import to_json

log = logging.getLogger(__name__)

# Offered to every compensator, whatever its tool is.
FACTS = (
    "args",
    "payload",
    "result",
    "idempotency_key",
    "business_key",
    "external_ref",
    "run_id",
    "effect",
    "obligation",
)


def check_compensator(
    fn: Callable[..., Any], tool: Callable[..., Any], arguments: frozenset[str], make_payload: Callable[..., Any] | None
) -> None:
    """Raise InvalidInput if a compensator has a required parameter that it can never get.

    A tool with `**kwargs`, one that is annotated to return a dict, and a `compensation_payload` without a known type
    may bring any name: such a compensator is checked when it is called.
    """
    unknown = unknown_parameters(fn, {*FACTS, *arguments})
    if not unknown or any(each.kind is each.VAR_KEYWORD for each in inspect.signature(tool).parameters.values()):
        return
    of_result = fields_of_result(tool)
    of_payload = frozenset[str]() if make_payload is None else fields_of_result(make_payload, if_silent=None)
    if of_result is None or of_payload is None:
        return
    missing = [name for name in unknown if name not in of_result | of_payload]
    if not missing:
        return
    names = " and ".join(map(repr, missing))
    known = ", ".join(sorted(arguments)) or "none"
    fields = ", ".join(sorted(of_result)) or "none known; annotate what the tool returns, such as -> dict"
    raise InvalidInput(
        f"compensate={name_of(fn)} of {name_of(tool)!r} requires {names}, which it would never get. Offered by name are"
        f" the arguments of the tool ({known}), the fields of its result ({fields}), and {', '.join(FACTS)}. Rename the"
        " parameter, take `result` or `payload` instead, or give it a default."
    )


def fields_of_result(fn: Callable[..., Any], if_silent: frozenset[str] | None = frozenset()) -> frozenset[str] | None:
    """The names of the fields that a function returns; None if they may be any. `if_silent`: without an annotation."""
    if "return" not in getattr(fn, "__annotations__", {}):
        return if_silent
    try:
        return _fields_of(typing.get_type_hints(fn)["return"])
    except (NameError, TypeError, KeyError):  # annotations that only exist while types are checked
        return None


def _fields_of(kind: Any) -> frozenset[str] | None:
    origin = typing.get_origin(kind) or kind
    if origin is typing.Union or isinstance(origin, types.UnionType) or origin is types.UnionType:
        parts = [_fields_of(part) for part in typing.get_args(kind)]
        return None if None in parts else frozenset[str]().union(*(part for part in parts if part is not None))
    if origin is typing.Annotated:
        return _fields_of(typing.get_args(kind)[0])
    if kind in (Any, object):
        return None
    if typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return frozenset(typing.get_type_hints(kind))
    if not isinstance(origin, type):
        return None
    if issubclass(origin, msgspec.Struct):
        return frozenset(origin.__struct_encode_fields__)
    if hasattr(origin, "model_fields"):
        return frozenset(origin.model_fields)
    return None if issubclass(origin, Mapping) else frozenset()


def warn_of_missing(fn: Callable[..., Any], tool_name: str, arguments: Mapping[str, Any], result: Any) -> None:
    """Log that a result lacks what the compensator requires: compensating would fail."""
    try:
        plain = msgspec.to_builtins(result)
    except (TypeError, ValueError):
        plain = None
    fields = plain if isinstance(plain, dict) else {}
    if missing := unknown_parameters(fn, {*FACTS, *arguments, *fields}):
        log.warning(
            "the result of %r lacks %s, which its compensator %s requires: compensating it will fail",
            tool_name,
            " and ".join(map(repr, missing)),
            name_of(fn),
        )


def offered_to_compensator(arguments: Any, payload: Any, result: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a compensator is offered by name; of one name the payload is taken before the argument and the result."""
    fields: dict[str, Any] = {}
    for each in (result, arguments, payload):
        if isinstance(each, dict):
            fields |= each
    return {**fields, "args": arguments, "payload": payload, "result": result, **facts}


NOT_YET = object()


def compensation_of(
    tool_name: str, key: str, arguments: Any, result: Any = NOT_YET, *, use_arguments: bool = False
) -> dict[str, Any] | None:
    """The obligation to register for an effect, if its tool has a compensator in this process.

    None as well if its payload needs the result and there is none yet, or if it was registered without the result.
    With `use_arguments` the payload is the arguments, whatever the tool declares.
    """
    declared = get_tool_compensator(tool_name)
    if declared is None:
        return None
    make_payload = declared["compensation_payload"]
    if (make_payload is not None and names(make_payload, "result")) == (result is NOT_YET):
        return None
    payload = arguments
    if make_payload is not None and not use_arguments:
        fields = arguments if isinstance(arguments, dict) else {}
        offered = {**fields, "args": arguments, "idempotency_key": key, "result": result}
        payload = finish(call_offering(make_payload, offered, arguments))
    fn = declared["fn"]
    try:
        payload_json = to_json(payload)
    except InvalidJson as error:
        reason = error.__cause__ or error
        raise InvalidJson(f"The compensation payload of {tool_name!r} cannot be written as JSON: {reason}.") from error
    return {
        "effect_key": key,
        "kind": getattr(fn, "__name__", "") or compensator_ref_of(fn),
        "payload_json": payload_json,
        "compensator_ref": declared["compensator_ref"],
        "max_attempts": declared["max_attempts"],
    }
