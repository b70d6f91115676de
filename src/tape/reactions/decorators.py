"""Decorators that declare handlers for entries. Nothing is sent until a dispatcher runs.

    @tape.on_value_change("treasury", key="fx_rate", debounce_ms=500)
    def reprice_book(envelope): ...

A handler is an ordinary function or an `async def`; it is given an `Envelope`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tape.errors import DuplicateReaction, InvalidReaction
from tape.model.pattern import Pattern
from tape.model.subject import encode

AGENT, TASK, PUBLISH = 1, 2, 3

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class ReactionDef:
    """A reaction as it was declared. `server_reaction_id` is set when it has been registered."""

    subject_pattern: str
    handler: Callable[[Any], Any] | None = None
    handler_kind: int = TASK
    predicate_cel: str = ""
    agent_app: str = ""
    publish_target: str = ""
    max_concurrency: int = 1
    rate_limit_per_s: int = 0
    debounce_ms: int = 0
    retry_max: int = 5
    retry_backoff_ms: int = 1000
    dlq_after_n: int = 5
    num_shards: int = 1
    name: str = ""
    reaction_id: str = ""
    server_reaction_id: str = ""
    from_global_seq: int = field(default=0, kw_only=True)
    backfill: bool = field(default=False, kw_only=True)
    allow_self: bool = field(default=False, kw_only=True)
    strict_order: bool = field(default=False, kw_only=True)
    timeout_s: float = field(default=0.0, kw_only=True)


_registry: list[ReactionDef] = []


def get_registry() -> list[ReactionDef]:
    """Every reaction that has been declared in this process, in order."""
    return _registry


def on(
    subject_pattern: str,
    *,
    predicate: str | None = None,
    agent: str | None = None,
    publish: str | None = None,
    max_concurrency: int = 1,
    rate_limit_per_s: int = 0,
    debounce_ms: int = 0,
    retry_max: int = 5,
    retry_backoff_ms: int = 1000,
    dlq_after_n: int = 5,
    num_shards: int = 1,
    name: str = "",
    reaction_id: str = "",
    from_global_seq: int = 0,
    backfill: bool = False,
    allow_self: bool = False,
    strict_order: bool = False,
    timeout_s: float = 0.0,
) -> Callable[[F], F]:
    """React to entries whose subject fits: call the function, re-invoke an `agent`, or `publish` to a broker.

    `predicate` is CEL over the entry. Without a `reaction_id` the id is made of module, function and pattern, so
    that it stays the same from one start to the next. A new reaction begins at the head of the journal, unless
    `from_global_seq` or `backfill` say otherwise. A call that takes longer than `timeout_s` counts as failed; 0
    is no limit, and the lease of the task is renewed for as long as it runs.
    """
    Pattern(subject_pattern)
    if agent and publish:
        raise InvalidReaction(f"agent {agent!r} and publish {publish!r} exclude each other; declare two reactions.")
    if timeout_s < 0:
        raise InvalidReaction(f"timeout_s {timeout_s} must not be negative; 0 is no limit.")

    def declare(function: F) -> F:
        _add(
            ReactionDef(
                subject_pattern=subject_pattern,
                handler=function,
                handler_kind=AGENT if agent else PUBLISH if publish else TASK,
                predicate_cel=predicate or "",
                agent_app=agent or "",
                publish_target=publish or "",
                max_concurrency=max_concurrency,
                rate_limit_per_s=rate_limit_per_s,
                debounce_ms=debounce_ms,
                retry_max=retry_max,
                retry_backoff_ms=retry_backoff_ms,
                dlq_after_n=dlq_after_n,
                num_shards=num_shards,
                name=name or function.__qualname__,
                reaction_id=reaction_id or stable_id(function, subject_pattern),
                from_global_seq=from_global_seq,
                backfill=backfill,
                allow_self=allow_self,
                strict_order=strict_order,
                timeout_s=timeout_s,
            )
        )
        return function

    return declare


def on_value_change(namespace: str, key: str = "*", **kwargs: Any) -> Callable[[F], F]:
    """React when a value is written: one key, or any (`*`). The rest is as for `on`."""
    return on(_pattern("value", "changed", namespace, key), **kwargs)


def on_value_deleted(namespace: str, key: str = "*", **kwargs: Any) -> Callable[[F], F]:
    """React when a value is deleted."""
    return on(_pattern("value", "deleted", namespace, key), **kwargs)


def on_effect_confirmed(tool: str = "*", **kwargs: Any) -> Callable[[F], F]:
    """React when an effect of a tool, or of any, has happened."""
    return on(_pattern("effect", "confirmed", tool, "*"), **kwargs)


def on_effect_failed(tool: str = "*", **kwargs: Any) -> Callable[[F], F]:
    """React when an effect has failed."""
    return on(_pattern("effect", "failed", tool, "*"), **kwargs)


def on_effect_unknown(tool: str = "*", **kwargs: Any) -> Callable[[F], F]:
    """React when the outcome of an effect is unknown."""
    return on(_pattern("effect", "unknown", tool, "*"), **kwargs)


def on_decision_recorded(**kwargs: Any) -> Callable[[F], F]:
    """React to every decision of every run."""
    return on(_pattern("decision", "recorded", "*", "*"), **kwargs)


def on_gate(gate: str, verb: str = "released", **kwargs: Any) -> Callable[[F], F]:
    """React when a run is `released` from a gate, or begins to be `waiting` at it."""
    return on(_pattern("gate", verb.lower(), gate, "*"), **kwargs)


def on_run(status: str = "terminal", **kwargs: Any) -> Callable[[F], F]:
    """React when a run gets a status: running, terminal, failed, stuck, cancelled, compensating, …."""
    return on(_pattern("run", status.lower(), "*", "*", "*", "*"), **kwargs)


def stable_id(function: Callable[..., Any], subject_pattern: str) -> str:
    """An id that is the same in every process that declares the same function for the same pattern."""
    home, name = module_name(function), function.__qualname__
    digest = hashlib.sha256("\0".join((home, name, subject_pattern)).encode()).hexdigest()[:12]
    return f"{home}.{name}"[:200] + f"-{digest}"


def module_name(function: Callable[..., Any]) -> str:
    """The module of a function as others would import it, also when it is the program that was started."""
    home = function.__module__
    if home != "__main__":
        return home
    program = sys.modules["__main__"]
    spec = getattr(program, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    return Path(getattr(program, "__file__", None) or "__main__").stem


def _pattern(kind: str, verb: str, *keys: str) -> str:
    """A pattern of literal keys and wildcards. A key that is a * itself is written %2A, in a pattern for `on`."""
    return "/".join(("", "tape", kind, verb, *(key if key in ("*", "**") else encode(key) for key in keys)))


def _add(new: ReactionDef) -> None:
    for index, known in enumerate(_registry):
        if known.reaction_id != new.reaction_id:
            continue
        if not _is_newer_edition(new.handler, known.handler):
            raise DuplicateReaction(
                f"The reaction id {new.reaction_id!r} is declared twice, by {_where(known.handler)} and by"
                f" {_where(new.handler)}; give one of them another reaction_id."
            )
        _registry[index] = new
        return
    _registry.append(new)


def _is_newer_edition(new: Callable[..., Any] | None, old: Callable[..., Any] | None) -> bool:
    """Whether a module or a notebook cell was loaded again, rather than two functions declared side by side."""
    a, b = (getattr(function, "__code__", None) for function in (new, old))
    if a is None or b is None or (a.co_qualname, new.__module__) != (b.co_qualname, old.__module__):
        return False
    return bool(a.co_filename != b.co_filename or a.co_firstlineno == b.co_firstlineno)


def _where(function: Callable[..., Any] | None) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})" if code else repr(function)
