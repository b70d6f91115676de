"""RE2 patterns, compiled when they are first used: there are eighty, and a payload without secrets meets one."""

from __future__ import annotations

from functools import cache
from typing import Any

import re2  # type: ignore[import-untyped]  # google-re2 ships no types


@cache
def compiled(pattern: str) -> Any:
    """The pattern for texts in UTF-8."""
    return re2.compile(pattern.encode())


def escape(text: str) -> str:
    """The pattern that matches a text and nothing else."""
    return str(re2.escape(text))
