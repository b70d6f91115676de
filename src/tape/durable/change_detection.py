"""Change detection: a resumed run is stopped when its code asks for something else than the run has recorded.

The request of each decision and the arguments of each effect are compared by their digests, and the order of the steps
by their positions: the first step of a run has position 0, the first effect within the effect at position 3 has 3.0.
Only the flow that began the run numbers its steps: tasks and threads beside it may come in any order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from tape.durable.call_site import call_site
from tape.durable.difference import difference, shown
from tape.durable.digest import are_different
from tape.errors import InvalidInput, RunChanged
from tape.proto import tape_pb2 as pb

if TYPE_CHECKING:
    from tape.durable.effect_call import EffectCall

log = logging.getLogger(__name__)

ON_CHANGE = ("stop", "warn", "accept")
# Deeper steps have no position.
MAX_DEPTH = 16

_CHECKS = {"stop": pb.CHANGE_CHECK_STOP, "warn": pb.CHANGE_CHECK_REPORT, "accept": pb.CHANGE_CHECK_UNSPECIFIED}
_REMEDY = (
    "Nothing was done. To go on: run the code that the run was begun with; or keep both ways in the code with"
    ' run.version("name", 2); or take what is recorded with on_change="accept" (or "warn") on the {what} or on'
    " durable_run.{digest} See docs/how-to/change-a-running-agent.md"
)
_DIGEST_REMEDY = " A field that differs each time is left out with digest=[…]."


def check_on_change(value: str, where: str) -> str:
    """`on_change=`, checked; "" stands for that of the run."""
    if value and value not in ON_CHANGE:
        raise InvalidInput(f"on_change {value!r} of {where} is not one of {', '.join(ON_CHANGE)}.")
    return value


class StepCursor:
    """The position of this execution of a run in what is recorded.

    `is_caught_up` is set when a step is new: nothing is recorded after it, and nothing needs to be compared.
    """

    def __init__(self, *, is_resumed: bool) -> None:
        self.is_caught_up = not is_resumed
        # Steps that a fork shares have negative numbers.
        self.last_seq = -(1 << 62)
        self._flow = _current_flow()

    def position_within(self, call: EffectCall) -> str:
        """The position of the next step of a call; "" in a task or thread beside the flow of the run."""
        if self._flow != _current_flow() or (call.parent is not None and not call.position):
            return ""
        position = f"{call.position}.{call.steps}" if call.position else str(call.steps)
        call.steps += 1
        return position if position.count(".") < MAX_DEPTH else ""

    def saw(self, seq: int) -> None:
        """Note a recorded step."""
        self.last_seq = max(self.last_seq, seq)


def _current_flow() -> tuple[int, Any]:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task


def next_position(call: EffectCall) -> str:
    """The position of the next step of a call; "" if the order of its steps is not fixed."""
    cursor = call.run.cursor
    return "" if cursor is None else cursor.position_within(call)


def check_of(call: EffectCall, on_change: str, position: str) -> int:
    """What the server is to compare when a step begins: nothing once the run has caught up with its record."""
    cursor = call.run.cursor
    if cursor is None or cursor.is_caught_up or not position:
        return int(pb.CHANGE_CHECK_UNSPECIFIED)
    return int(_CHECKS[on_change or call.run.on_change])


class StepCheck:
    """The comparison of one step with its record."""

    def __init__(self, call: EffectCall, what: str, *, on_change: str, position: str, digest: str, asked: str) -> None:
        self._call = call
        self._what = what
        self._on_change = on_change or call.run.on_change
        if call.run.is_replayed and self._on_change == "warn":
            self._on_change = "stop"  # what is a warning in production is a finding of a test
        self._position = position
        self._digest = digest
        self._asked = asked

    def is_new(self, displaced: str = "") -> None:
        """The run has not recorded this step; it has recorded the displaced one there."""
        cursor = self._call.run.cursor
        if displaced:
            self.report(
                RunChanged(
                    f"The code of the run {self._call.run_id!r} has changed: it has recorded another step at position"
                    f" {self._position}.",
                    recorded=displaced,
                    asked=self._described(),
                )
            )
        elif cursor is not None and self._position:
            cursor.is_caught_up = True

    def compare(self, *, seq: int, digest: str, position: str, recorded_json: Any) -> None:
        """Compare with the record; `recorded_json()` fetches what was recorded, if it is to be shown."""
        cursor = self._call.run.cursor
        if cursor is not None:
            cursor.saw(seq)
        if self._on_change == "accept":
            return
        if are_different(digest, self._digest):
            recorded = recorded_json()
            self.report(
                RunChanged(
                    f"The code of the run {self._call.run_id!r} has changed: {self._what} was recorded with something"
                    " else.",
                    recorded=shown(recorded) or "no text",
                    asked=shown(self._asked),
                    difference=difference(recorded, self._asked),
                ),
                digest=True,
            )
        elif self._position and position and position != self._position:
            self.report(
                RunChanged(
                    f"The order of the steps of the run {self._call.run_id!r} has changed.",
                    recorded=f"{self._what} at position {position}",
                    asked=f"{self._what} at position {self._position}",
                )
            )

    def refused(self, error: RunChanged) -> RunChanged:
        """The error of a server that has compared the positions, with what this execution asks for."""
        error.asked = self._described()
        error.remedy = _REMEDY.format(what=self._kind, digest="")
        error.file, error.line = call_site()
        return error

    def report(self, change: RunChanged, *, digest: bool = False) -> None:
        """Raise the change, or log it."""
        if self._on_change == "accept":
            return
        change.remedy = _REMEDY.format(what=self._kind, digest=_DIGEST_REMEDY if digest else "")
        change.file, change.line = call_site()
        if self._on_change == "stop":
            raise self._call.run.interrupt(change)
        log.warning("%s", change)

    @property
    def _kind(self) -> str:
        return "decision" if self._what.startswith("the decision") else "effect"

    def _described(self) -> str:
        return f"{self._what} with {shown(self._asked)}" if self._asked else self._what


def locate(change: RunChanged) -> RunChanged:
    """The change with the line of the code that awaits the call: it was noticed on another thread."""
    file, line = call_site()
    if file:
        change.file, change.line = file, line
    return change
