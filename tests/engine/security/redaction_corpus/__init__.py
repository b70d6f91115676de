"""Payloads that redaction is measured with: secrets to hide, and harmless payloads to leave as they are.

The kinds of secrets are those that the rules of gitleaks and detect-secrets list. All values are made up: vendor
formats are joined from parts when the tests run. Every third case is held out: rules are written without looking at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A payload; `secrets` must not survive redaction. A case without secrets must come out byte for byte."""

    name: str
    payload: Any
    secrets: tuple[str, ...]
    is_held_out: bool


def number_cases(rows: Sequence[tuple[str, Any, tuple[str, ...]]]) -> Iterator[Case]:
    """Make cases of rows; every third one is held out."""
    for index, (name, payload, secrets) in enumerate(rows):
        yield Case(f"{index}-{name}", payload, secrets, index % 3 == 2)
