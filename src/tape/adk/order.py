"""Orders the events of a resumed invocation so that each agent finds its open tool calls."""

from __future__ import annotations

from collections.abc import Iterable

from google.adk.events.event import Event


class CallsLast(list[Event]):
    """Events of a session in which an unanswered call stays the last event of its branch.

    google-adk executes the open calls of a resumed agent only if they are the last event of its branch. A workflow
    adds progress events to the same branch, sometimes before the agent reads it: without this order the call would
    not be executed, and the agent would count as done.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__()
        self.extend(events)

    def append(self, event: Event) -> None:
        """Add an event at the end, or a progress event of another author before the open call that it would hide."""
        position = len(self)
        if event.author != "user" and event.content is None:
            latest = next((number for number in range(len(self) - 1, -1, -1) if _share(self[number], event)), None)
            if latest is not None and self[latest].author != event.author and self[latest].get_function_calls():
                position = latest
        self.insert(position, event)

    def extend(self, events: Iterable[Event]) -> None:
        """Append each of them."""
        for event in events:
            self.append(event)


def _share(one: Event, other: Event) -> bool:
    return one.invocation_id == other.invocation_id and one.branch == other.branch
