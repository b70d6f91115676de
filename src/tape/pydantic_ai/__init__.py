"""Durable agents of Pydantic AI: `TapeAgent(agent)`.

Needs the extra: `pip install 'tape[pydantic-ai]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.errors import MissingExtra

if TYPE_CHECKING:
    from tape.pydantic_ai.agent import TapeAgent

__all__ = ["TapeAgent"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tape.pydantic_ai' has no attribute {name!r}")
    try:
        from tape.pydantic_ai import agent
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pydantic_ai"):
            raise
        raise MissingExtra(f"tape.pydantic_ai.{name}", "pydantic-ai") from error
    return getattr(agent, name)
