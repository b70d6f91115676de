"""Calls callbacks with the values that their parameters name."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Container, Mapping
from typing import Any

from tape.errors import InvalidInput


def call_offering(fn: Callable[..., Any], offered: Mapping[str, Any], default: Any = None) -> Any:
    """Call `fn` with the offered values that its parameters name; `**kwargs` receives all of them.

    One required parameter may have another name: it receives `default`.
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    left = dict(offered)
    missing: list[str] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= left
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif parameter.name in left:
            _give(parameter, left.pop(parameter.name), positional, named)
        elif parameter.default is parameter.empty:
            missing.append(parameter.name)
            _give(parameter, default, positional, named)
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(parameter.default)
    if len(missing) > 1:
        known = ", ".join(offered)
        raise InvalidInput(
            f"{name_of(fn)} asks for {' and '.join(missing)}, which are not on offer; there are: {known}."
        )
    return fn(*positional, **named)


def call_naming(fn: Callable[..., Any], offered: Mapping[str, Any], sole: Any) -> Any:
    """`call_offering` for callbacks that must know what they get: an unknown required parameter is an error.

    The only parameter of a function that takes it by position alone (`def undo(payload, /)`) receives `sole`.
    """
    if unknown := unknown_parameters(fn, offered):
        raise InvalidInput(
            f"{name_of(fn)} requires {' and '.join(map(repr, unknown))}, which is not on offer; there are:"
            f" {', '.join(sorted(offered))}."
        )
    return call_offering(fn, offered, sole)


def unknown_parameters(fn: Callable[..., Any], known: Container[str]) -> list[str]:
    """The required parameters of a callback that have none of the known names; a sole positional-only one is fine."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin that does not say
        return []
    required = [
        each
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(required) == 1 and required[0].kind is required[0].POSITIONAL_ONLY:
        return []
    return [each.name for each in required if each.name not in known]


def _give(parameter: inspect.Parameter, value: Any, positional: list[Any], named: dict[str, Any]) -> None:
    if parameter.kind is parameter.KEYWORD_ONLY:
        named[parameter.name] = value
    else:
        positional.append(value)


def names(fn: Callable[..., Any], parameter: str) -> bool:
    """Whether a callback has a parameter of that name."""
    return parameter in inspect.signature(fn).parameters


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function for messages."""
    return getattr(fn, "__qualname__", None) or repr(fn)


def finish(value: Any) -> Any:
    """The result of a callback; a coroutine is run to completion."""
    if not inspect.isawaitable(value):
        return value

    async def waiting() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(waiting())
    # A loop runs on this thread already: run the coroutine on another thread.
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((asyncio.run(waiting()), None))
        except BaseException as error:  # handed to the caller
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="tape-callback")
    thread.start()
    thread.join()
    result, failure = outcome[0]
    if failure is not None:
        raise failure
    return result
