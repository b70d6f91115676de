"""The steps of a run: its decisions and effects, each at a position, in the order in which they were recorded."""

from __future__ import annotations

import re

from tape.errors import InvalidInput
from tape.store import Reader, Transaction

# What a message shows of the arguments of a recorded step.
SHOWN_CHARACTERS = 1_000

_POSITION = re.compile(r"\d{1,10}(\.\d{1,10}){0,15}")
_DIGEST = re.compile(r"[!-~]{1,128}")


def check_step(digest: str, position: str) -> None:
    """Raise if a step cannot have this digest or position."""
    if digest and not _DIGEST.fullmatch(digest):
        raise InvalidInput(f"digest {digest[:140]!r} must be 1 to 128 printable ASCII characters without spaces.")
    if position and not _POSITION.fullmatch(position):
        raise InvalidInput(f"position {position[:40]!r} must be numbers separated by dots, at most 16: 3 or 3.0.1")


def describe_at(reader: Reader | Transaction, run_id: str, position: str) -> str:
    """The step that the run has recorded at a position, in words; "" if there is none."""
    return _describe(reader, run_id, "position = ?", position) if position else ""


def describe_after(reader: Reader | Transaction, run_id: str, seq: int) -> str:
    """The first step that the run has recorded after an entry, in words; "" if there is none."""
    return _describe(reader, run_id, "seq > ?", seq)


def _describe(reader: Reader | Transaction, run_id: str, condition: str, value: str | int) -> str:
    effect = reader.one(
        "SELECT seq, tool_name, idempotency_key, request_json FROM tape_effects"
        f" WHERE run_id = ? AND {condition} ORDER BY seq LIMIT 1",
        run_id,
        value,
    )
    decision = reader.one(
        f"SELECT seq, decision_index, request_json FROM tape_decisions WHERE run_id = ? AND {condition}"
        " ORDER BY seq LIMIT 1",
        run_id,
        value,
    )
    if effect is not None and (decision is None or effect[0] < decision[0]):
        arguments = f" with {shorten(str(effect[3]))}" if effect[3] else ""
        return f"the effect {effect[1]!r} ({effect[2]}){arguments}"
    if decision is not None:
        asked = f" for {shorten(str(decision[2]))}" if decision[2] else ""
        return f"the decision {decision[1]}{asked}"
    return ""


def shorten(text: str, longest: int = SHOWN_CHARACTERS) -> str:
    """The beginning of a text."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
