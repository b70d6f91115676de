"""Declaration of effects: what a tool changes outside of the process, and how it is made safe to retry."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tape.base.retry import RetryPolicy
from tape.durable.callback_arguments import call_offering, name_of
from tape.durable.change_detection import check_on_change
from tape.durable.compensators import check_compensator
from tape.durable.digest import DigestOption, check_option
from tape.durable.effect_call import EffectCall, find_call
from tape.durable.effect_execution import attempt, attempt_async, is_begun, perform, perform_async
from tape.durable.recorded_client import current_recording
from tape.durable.registry import register_status_check, register_tool_compensator
from tape.errors import InvalidInput

SEMANTICS = ("idempotent", "non_idempotent", "observe_only")
DISPATCH = ("inline", "outbox")

# The parameter in which a tool gets its context; it is not an argument of the tool.
CONTEXT = "tool_context"
_NOT_ARGUMENTS = (CONTEXT, "self", "cls")
_META = "__tape_effect__"


@dataclass(frozen=True)
class EffectMeta:
    """The declaration of a tool."""

    name: str
    semantics: str = "idempotent"
    dispatch: str = "inline"
    connector: str = ""
    business_key: Any = None
    scope: str = ""
    key_from: Callable[..., Any] | None = None
    compensate: Callable[..., Any] | None = None
    compensation_payload: Callable[..., Any] | None = None
    status_check: Callable[..., Any] | None = None
    retry: RetryPolicy | None = None
    max_attempts: int = 0
    allow_unsafe: bool = False
    result_type: Any = Any
    on_change: str = ""
    digest: Any = None

    def __post_init__(self) -> None:
        _check(self)

    def business_key_for(self, arguments: dict[str, Any]) -> str:
        """The business key of one call: what the callable says, or the text with its `{argument}`s filled in."""
        if self.business_key is None:
            return ""
        if callable(self.business_key):
            return str(call_offering(self.business_key, {**arguments, "args": arguments}, arguments))
        try:
            return str(self.business_key).format_map(arguments)
        except KeyError as error:
            raise InvalidInput(
                f"business_key {self.business_key!r} of {self.name!r} names {error.args[0]!r},"
                f" which is no argument of it; there are: {', '.join(arguments) or 'none'}."
            ) from None


def _check(meta: EffectMeta) -> None:
    check_on_change(meta.on_change, repr(meta.name))
    for field, known in (("semantics", SEMANTICS), ("dispatch", DISPATCH)):
        if getattr(meta, field) not in known:
            raise InvalidInput(f"{field} {getattr(meta, field)!r} of {meta.name!r} is not one of {', '.join(known)}.")
    if meta.dispatch == "outbox" and not meta.connector:
        raise InvalidInput(f"{meta.name!r} is dispatched by the outbox: name the connector that sends it.")
    if meta.business_key is not None and not meta.connector:
        raise InvalidInput(f"business_key of {meta.name!r} requires connector: the key is unique for a connector.")
    if meta.semantics == "non_idempotent" and meta.dispatch == "outbox" and not meta.scope:
        raise InvalidInput(
            f"{meta.name!r} is non_idempotent and has no scope, which every run that uses it must have been granted."
            f" Name one, for example scope={meta.connector!r}, and begin runs with scopes=[{meta.connector!r}]."
        )
    if meta.semantics != "non_idempotent" or meta.allow_unsafe:
        return
    if meta.dispatch == "inline":
        raise InvalidInput(
            f"{meta.name!r} is non_idempotent and inline: after a crash it is not known whether it happened."
            " Use dispatch='outbox' with a connector, or allow_unsafe=True: it is then never repeated,"
            " and becomes UNKNOWN when its process dies."
        )
    if meta.business_key is None:
        raise InvalidInput(
            f"{meta.name!r} is non_idempotent and has no business_key by which the other side could be asked"
            " whether it happened. Give one, for example business_key='{invoice_id}', or allow_unsafe=True."
        )


def effect(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    compensate: Callable[..., Any] | None = None,
    status_check: Callable[..., Any] | None = None,
    key_from: Callable[..., Any] | None = None,
    compensation_payload: Callable[..., Any] | None = None,
    retry: RetryPolicy | None = None,
    max_attempts: int = 0,
    semantics: str = "idempotent",
    dispatch: str = "inline",
    connector: str = "",
    business_key: Any = None,
    scope: str = "",
    allow_unsafe: bool = False,
    on_change: str = "",
    digest: DigestOption = None,
) -> Callable[..., Any]:
    """Declare that a function changes something outside of the process, so that a run does so once.

    Within a run the effect is recorded as pending before the function is called and settled after it. A resumed run
    gets the recorded result and does not call the function again; if the process died in between, the function is
    called again with the same `idempotency_key(tool_context)`. Outside of a run nothing is recorded.

    `compensate` undoes it if the run fails, with at most `max_attempts` attempts (0 means 5);
    `status_check` finds out whether an effect with unknown outcome happened; `key_from` makes the idempotency key;
    `retry` repeats failed attempts. Callbacks get what their parameters name: the arguments of the function,
    `args`, `result`, `payload`, `idempotency_key`, `run_id`, `effect`; a compensator also the fields of the result.
    A compensator that requires anything else is rejected here.

    A resumed run compares the arguments with the record: `on_change` is `stop`, `warn` or `accept` (default: that of
    the run), and `digest` names the arguments that are not compared, or is a function of them.

    With `dispatch="outbox"` the function only prepares the request, and a dispatcher sends it through `connector`.
    Effects that are `non_idempotent` need it, and a `scope`: only runs that were granted it may begin them.
    """

    def declare(tool: Callable[..., Any]) -> Callable[..., Any]:
        meta = EffectMeta(
            name=getattr(tool, "__name__", "") or name_of(tool),
            semantics=semantics,
            dispatch=dispatch,
            connector=connector,
            business_key=business_key,
            scope=scope,
            key_from=key_from,
            compensate=compensate,
            compensation_payload=compensation_payload,
            status_check=status_check,
            retry=retry,
            max_attempts=max_attempts,
            allow_unsafe=allow_unsafe,
            result_type=_result_type(tool),
            on_change=on_change,
            digest=check_option(digest, name_of(tool)),
        )
        if compensate is not None:
            check_compensator(compensate, tool, _argument_names(tool), compensation_payload)
            register_tool_compensator(
                meta.name, compensate, max_attempts=max_attempts, compensation_payload=compensation_payload
            )
        if status_check is not None:
            register_status_check(meta.name, status_check)
        return _wrapped(tool, meta)

    return declare if fn is None else declare(fn)


def outbox_tool(
    *,
    connector: str,
    semantics: str = "non_idempotent",
    business_key: Any = None,
    compensate: Callable[..., Any] | None = None,
    status_check: Callable[..., Any] | None = None,
    max_attempts: int = 0,
    allow_unsafe: bool = False,
    scope: str = "",
    on_change: str = "",
    digest: DigestOption = None,
) -> Callable[..., Any]:
    """Declare a function whose request is sent by the outbox dispatcher, through a connector.

    The function prepares the request: what it returns is what the connector gets; None means its arguments.
    It is called again when the run is resumed, so it must not act itself. The run needs the scope, by default one
    with the connector's name.
    """
    return effect(
        connector=connector,
        semantics=semantics,
        business_key=business_key,
        compensate=compensate,
        status_check=status_check,
        max_attempts=max_attempts,
        allow_unsafe=allow_unsafe,
        # A run may send through a connector only if it was granted that.
        scope=scope or (connector if semantics == "non_idempotent" else ""),
        dispatch="outbox",
        on_change=on_change,
        digest=digest,
    )


def meta_of(tool: Any) -> EffectMeta | None:
    """The declaration of a function, or of a framework's tool around it; None if it has none."""
    for candidate in (tool, getattr(tool, "func", None), getattr(tool, "fn", None)):
        meta = getattr(candidate, _META, None)
        if isinstance(meta, EffectMeta):
            return meta
    return None


def effect_meta_of(tool: Any) -> dict[str, Any] | None:
    """The declaration of a function or tool as a dict; None if it has none."""
    meta = meta_of(tool)
    if meta is None:
        return None
    return asdict(meta) | {"retry": meta.retry}  # a policy stays one


def tool_name_of(tool: Any) -> str:
    """The name that a function's or tool's effects have on the journal."""
    meta = meta_of(tool)
    return meta.name if meta else str(getattr(tool, "name", "") or getattr(tool, "__name__", "") or name_of(tool))


def _result_type(tool: Callable[..., Any]) -> Any:
    """What the function returns, so that a recorded result comes back as that; Any if it does not say."""
    try:
        return typing.get_type_hints(tool).get("return", Any)
    except (NameError, TypeError):  # annotations that only exist while types are checked
        return Any


def _argument_names(tool: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(tool).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return frozenset(each.name for each in parameters if each.kind not in variadic and each.name not in _NOT_ARGUMENTS)


def _wrapped(tool: Callable[..., Any], meta: EffectMeta) -> Callable[..., Any]:
    signature = inspect.signature(tool)

    def prepared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[EffectCall | None, dict[str, Any], Any]:
        """The call it is made from, the tool's arguments, and the context that was passed."""
        bound = signature.bind_partial(*args, **kwargs)
        context = bound.arguments.get(CONTEXT)
        return find_call(context), _arguments(bound), context

    def body(args: tuple[Any, ...], kwargs: dict[str, Any], context: Any, call: EffectCall) -> Any:
        if CONTEXT not in signature.parameters:
            return tool(*args, **kwargs)
        given = signature.bind_partial(*args, **kwargs)
        if context is None:
            given.arguments[CONTEXT] = call
        return tool(*given.args, **given.kwargs)

    if inspect.iscoroutinefunction(tool):

        @functools.wraps(tool)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            parent, arguments, context = prepared(args, kwargs)
            if parent is None:
                _refuse_under_replay(meta)
                return await attempt_async(meta, lambda: tool(*args, **kwargs))
            if is_begun(parent, meta):
                return await attempt_async(meta, lambda: body(args, kwargs, context, parent))
            return await perform_async(meta, parent, arguments, lambda call: body(args, kwargs, context, call))

    else:

        @functools.wraps(tool)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            parent, arguments, context = prepared(args, kwargs)
            if parent is None:
                _refuse_under_replay(meta)
                return attempt(meta, lambda: tool(*args, **kwargs))
            if is_begun(parent, meta):
                return attempt(meta, lambda: body(args, kwargs, context, parent))
            return perform(meta, parent, arguments, lambda call: body(args, kwargs, context, call))

    setattr(wrapper, _META, meta)
    return wrapper


def _refuse_under_replay(meta: EffectMeta) -> None:
    """Reject a call outside of a run while a run is replayed: it would be performed."""
    if (recorded := current_recording.get()) is not None:
        recorded.refuse_effect(meta.name)


def _arguments(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments of a tool by name, without `tool_context`, `self` and `cls`."""
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if name in _NOT_ARGUMENTS:
            continue
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
            found[name] = value
    return found
