"""The steps of a verification, recorded for `tape ingress test`. A server records none."""

from __future__ import annotations

from typing import NamedTuple


class VerificationStep(NamedTuple):
    """One check: its name, whether it passed, and what was found. Never a secret."""

    check: str
    passed: bool
    found: str


class VerificationTrace:
    """Collects steps in their order."""

    def __init__(self) -> None:
        self.steps: list[VerificationStep] = []

    def add(self, check: str, passed: bool, found: str) -> None:
        """Record a step."""
        self.steps.append(VerificationStep(check, passed, found))


class _NoTrace(VerificationTrace):
    def add(self, check: str, passed: bool, found: str) -> None:
        pass


NO_TRACE: VerificationTrace = _NoTrace()


def shorten(text: str) -> str:
    """A signature as people may see it: its first 8 and last 4 characters."""
    return text if len(text) <= 16 else f"{text[:8]}…{text[-4:]} ({len(text)} characters)"
