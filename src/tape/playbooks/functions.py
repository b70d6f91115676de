"""Python in playbooks: `@tape.playbook` declares a playbook, `@tape.function` a function that steps can call."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from tape.errors import InvalidInput, InvalidPayload
from tape.playbooks.host import RunInfo
from tape.playbooks.inputs import Input
from tape.playbooks.pools import POOL_RULE, is_pool

__all__ = ["function", "playbook"]

F = TypeVar("F", bound=Callable[..., Any])

# Reserved parameters: the whole payload, the execution, and the context of effects.
PAYLOAD, RUN, CONTEXT = "payload", "run", "tool_context"
_GIVEN = frozenset({PAYLOAD, RUN, CONTEXT})
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}


class PythonPlaybook(msgspec.Struct, frozen=True):
    """A function that is a playbook."""

    path: str
    function: Callable[..., Any]
    pool: str = ""
    description: str = ""
    idempotent: bool = False

    @property
    def import_path(self) -> str:
        """`module:function`, as in the catalog."""
        return f"{self.function.__module__}:{self.function.__qualname__.replace('<locals>.', '')}"

    @property
    def document(self) -> str:
        """Its document for the catalog, as JSON, which is valid YAML."""
        metadata = {"path": self.path} | ({"description": self.description} if self.description else {})
        document: dict[str, Any] = {"kind": "Playbook", "metadata": metadata, "python": self.import_path}
        if inputs := inputs_of(self.function):
            document["inputs"] = {each.name: _shown(each) for each in inputs}
        if self.pool:
            document["pool"] = self.pool
        if self.idempotent:
            document["idempotent"] = True
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


_playbooks: dict[str, PythonPlaybook] = {}
_functions: dict[str, Callable[..., Any]] = {}


def playbook(path: str, *, pool: str = "", description: str = "", idempotent: bool = False) -> Callable[[F], F]:
    """Make a function, `def` or `async def`, the playbook of that path.

    Its parameters are the playbook's inputs, converted to their annotated types. `payload` is the whole payload, `run`
    describes the execution. The return value is the output. Workers that import the module register it in the catalog;
    `pool` is the default pool of its runs. Use `@tape.effect` for side effects: a worker that resumes the run calls the
    function again and skips completed effects. With `idempotent` a run that is kept as a summary (`record: summary`)
    needs no lease and no row until the function has an effect.
    """
    if pool and not is_pool(pool):
        raise InvalidInput(f"pool {pool!r} {POOL_RULE}.")

    def declare(function: F) -> F:
        known = _playbooks.get(path)
        if known is not None and known.import_path != _import_path(function):
            raise InvalidInput(
                f"two functions are declared as the playbook {path!r}:"
                f" {known.import_path} and {_import_path(function)}."
            )
        text = description or inspect.getdoc(function) or ""
        _playbooks[path] = PythonPlaybook(path, function, pool, text.split("\n\n")[0].replace("\n", " "), idempotent)
        return function

    return declare


def function(name: str | F = "") -> Any:
    """Let steps call a function: `tool: {kind: python, function: NAME}`. Its name is the function's, unless given."""

    def declare(function: F) -> F:
        wanted = name if isinstance(name, str) and name else function.__name__
        known = _functions.get(wanted)
        if known is not None and _import_path(known) != _import_path(function):
            raise InvalidInput(
                f"two functions are declared as {wanted!r}: {_import_path(known)} and {_import_path(function)}."
            )
        _functions[wanted] = function
        return function

    return declare if isinstance(name, str) else declare(name)


def declared_playbooks() -> dict[str, PythonPlaybook]:
    """The playbooks that modules of this process have declared, by path."""
    return dict(_playbooks)


def declared_functions() -> dict[str, Callable[..., Any]]:
    """The functions that steps can call, by name."""
    return dict(_functions)


def forget_declarations() -> None:
    """Remove all declarations; for tests."""
    _playbooks.clear()
    _functions.clear()


def inputs_of(function: Callable[..., Any]) -> tuple[Input, ...]:
    """The inputs of a function: its parameters."""
    hints = _hints(function)
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _GIVEN or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        kind, is_optional = _json_type(hints.get(parameter.name, Any))
        has_default = parameter.default is not parameter.empty
        default = parameter.default if has_default and _is_json(parameter.default) else None
        found.append(Input(parameter.name, kind, not has_default and not is_optional, default))
    return tuple(found)


def bind(function: Callable[..., Any], sent: Mapping[str, Any], run: RunInfo, context: Any = None) -> dict[str, Any]:
    """The arguments of a function from a payload, by name, converted to the annotated types."""
    hints = _hints(function)
    arguments: dict[str, Any] = {}
    problems = []
    parameters = inspect.signature(function).parameters
    given = {PAYLOAD: dict(sent), RUN: run, CONTEXT: context}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name in given:
            arguments[name] = given[name]
        elif name in sent:
            try:
                arguments[name] = msgspec.convert(sent[name], hints.get(name, Any))
            except msgspec.ValidationError as error:
                problems.append(f"{name}: {str(error)[:1].lower()}{str(error)[1:]}")
            except TypeError:  # msgspec cannot convert the type: pass the value unchanged
                arguments[name] = sent[name]
        elif parameter.default is parameter.empty:
            if _json_type(hints.get(name, Any))[1]:
                arguments[name] = None
            else:
                problems.append(f"{name} is missing")
    if problems:
        raise InvalidPayload(f"{_import_path(function)} cannot be called: {'; '.join(problems)}.")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        arguments |= {name: value for name, value in sent.items() if name not in arguments}
    return arguments


async def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function: a coroutine function on the loop, another on a thread, in the same context."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    context = contextvars.copy_context()
    result = await asyncio.get_running_loop().run_in_executor(None, lambda: context.run(function, **arguments))
    return await result if inspect.isawaitable(result) else result


def _import_path(function: Callable[..., Any]) -> str:
    return PythonPlaybook("", function).import_path


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):  # annotations that only exist while types are checked
        return {}


def _json_type(hint: Any) -> tuple[str, bool]:
    """The input type of an annotation, and whether it is optional."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        is_optional = len(others) < len(typing.get_args(hint))
        return (_json_type(others[0])[0] if len(others) == 1 else "any"), is_optional
    origin = typing.get_origin(hint) or hint
    if origin in _TYPES:
        return _TYPES[origin], False
    if isinstance(origin, type) and (issubclass(origin, Mapping | msgspec.Struct) or dataclasses.is_dataclass(origin)):
        return "object", False
    if isinstance(origin, type) and issubclass(origin, tuple | set | frozenset):
        return "array", False
    return "any", False


def _is_json(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | dict | list)


def _shown(each: Input) -> Any:
    if each.required:
        return each.type
    return {"type": each.type, "required": False} | ({"default": each.default} if each.default is not None else {})
