"""One execution of an agent's run: the index of its next decision, and the position of each tool call.

A resumed invocation continues from the events of its session, so every event that shows a decision carries the
decision's index, and counting begins after the highest one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tape.durable.budgets import Budget
from tape.durable.decision_index import first_index
from tape.durable.effect_call import RunHandle

# Where an event carries the index of the decision that it shows (in its custom_metadata).
MARK = "tape.decision"
# What an event carries beside it if the model's answer was streamed.
STREAMED = "tape.streamed"


@dataclass(frozen=True)
class CallPosition:
    """The position of a tool call: its decision, and its number among that decision's calls of the same tool."""

    decision_index: int
    call_index: int


@dataclass(eq=False)
class Drive:
    """State of an invocation while it runs."""

    run: RunHandle
    session: Any  # google-adk's; it is the same object for the whole invocation
    is_replaying: bool  # an earlier execution may have recorded decisions
    budget: Budget | None = None
    within: str = ""  # the effect that this invocation belongs to: an agent called as a tool of another agent
    looked_at: float = field(default_factory=time.monotonic)  # when it was last seen not to be cancelled
    has_raised: bool = False
    _next: dict[str, int] = field(default_factory=dict)
    _fresh: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _unmarked: dict[str, int] = field(default_factory=dict)
    _positions: dict[str, CallPosition] = field(default_factory=dict)
    _broken: set[str] = field(default_factory=set)
    _entered: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.earlier_events = list(self.session.events)  # those of the session when this execution began

    # ── decisions ────────────────────────────────────────────────────────────────────────────────

    def next_index(self, branch: str | None) -> int:
        """The index of the decision that a branch is about to make."""
        return self._next.get(branch or "", self._first(branch or ""))

    def may_be_recorded(self, branch: str | None) -> bool:
        """Whether an earlier execution may have recorded that decision."""
        return self.is_replaying and (branch or "") not in self._fresh

    def ask(self, branch: str | None) -> None:
        """Note that the model is asked: from here on the branch makes new decisions."""
        self._fresh.add(branch or "")
        self._asked.add(branch or "")

    def decided(self, branch: str | None) -> None:
        """Note that a decision was made; the next event of the branch shows it."""
        branch = branch or ""
        index = self.next_index(branch)
        self._asked.discard(branch)
        self._unmarked[branch] = index
        self._next[branch] = index + 1

    def is_asked(self, branch: str | None) -> bool:
        """Whether the model has not begun to answer yet."""
        return (branch or "") in self._asked

    def _first(self, branch: str) -> int:
        return first_index("\n".join(filter(None, (self.within, branch))))

    def is_first_entry(self, agent: str, branch: str | None) -> bool:
        """Whether an agent is entered for the first time in this execution; true once."""
        entry = (agent, branch or "")
        is_first = entry not in self._entered
        self._entered.add(entry)
        return is_first

    # ── events ───────────────────────────────────────────────────────────────────────────────────

    def learn(self, events: Iterable[Any]) -> None:
        """Read the decisions of events that an earlier execution added to the session."""
        for event in events:
            index = (event.custom_metadata or {}).get(MARK)
            if index is not None:
                branch = event.branch or ""
                self._next[branch] = max(index + 1, self.next_index(branch))
                self._know_calls(event, index)

    def mark(self, event: Any, *, is_streamed: bool) -> None:
        """Mark an event with the index of its decision, if no event has shown that decision yet."""
        if event.author == "user" or not event.content or event.get_function_responses():
            return
        index = self._unmarked.pop(event.branch or "", None)
        if index is not None:
            streamed = {STREAMED: True} if is_streamed else {}
            event.custom_metadata = {**(event.custom_metadata or {}), MARK: index, **streamed}
            self._know_calls(event, index)

    def _know_calls(self, event: Any, index: int) -> None:
        counts: Counter[str] = Counter()
        for call in event.get_function_calls():
            self._positions[call.id] = CallPosition(index, counts[call.name])
            counts[call.name] += 1

    # ── tool calls ───────────────────────────────────────────────────────────────────────────────

    def position_of(self, call_id: str | None) -> CallPosition:
        """The position of a call; its decision is -1 if no recorded decision asked for it."""
        return self._positions.get(call_id or "", CallPosition(-1, 0))

    def broke(self, call_id: str | None) -> None:
        """Note that a call raised: without an answer to it the agent does not get past this decision."""
        self._broken.add(call_id or "")

    def is_cut_short(self, event: Any) -> bool:
        """Whether an event has the answers to some calls of a decision of which another one raised.

        In the session it would look as if all calls of the decision were done.
        """
        answered = {answer.id for answer in event.get_function_responses()}
        decisions = {self._positions[call].decision_index for call in answered if call in self._positions}
        return any(
            call not in answered and call in self._positions and self._positions[call].decision_index in decisions
            for call in self._broken
        )
