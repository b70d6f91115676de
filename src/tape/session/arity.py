"""How many arguments a user's function takes, so that it is called with as many."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def positional_count(fn: Callable[..., object]) -> int:
    """How many positional arguments it can take; 2 if it takes any number or does not say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 2
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
