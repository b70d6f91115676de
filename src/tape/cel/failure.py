"""An evaluation error as a value."""

from __future__ import annotations

import msgspec


class EvaluationError(msgspec.Struct, frozen=True):
    """Why an expression has no value for an entry, and where in the text. It is false, never true."""

    reason: str
    text: str
    offset: int
    line: int
    column: int

    @classmethod
    def in_text(cls, reason: str, text: str, offset: int) -> EvaluationError:
        """The error at an offset of a text."""
        offset = max(offset, 0)
        begin = text.rfind("\n", 0, offset) + 1
        return cls(reason, text, offset, text.count("\n", 0, offset) + 1, offset - begin + 1)

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.reason}"
