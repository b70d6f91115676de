"""The events of a resumed invocation, in an order that lets each agent see what it was about to do."""

from __future__ import annotations

from collections.abc import Iterable

from google.adk.events.event import Event


class CallsLast(list[Event]):
    """Events of a session in which a call that nobody answered yet stays the last event of its branch.

    google-adk carries out the calls of a resumed agent only if they are the very last that its branch has. The
    notes that a workflow makes of its own progress share the branch, and whether one of them is there before the
    agent looks is a matter of luck: behind such a note the call was never made, and the agent taken to be done.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__()
        self.extend(events)

    def append(self, event: Event) -> None:
        """Put an event last, or a note of somebody else's before the call that it would hide."""
        place = len(self)
        if event.author != "user" and event.content is None:
            latest = next((number for number in range(len(self) - 1, -1, -1) if _share(self[number], event)), None)
            if latest is not None and self[latest].author != event.author and self[latest].get_function_calls():
                place = latest
        self.insert(place, event)

    def extend(self, events: Iterable[Event]) -> None:
        """Append each of them."""
        for event in events:
            self.append(event)


def _share(one: Event, other: Event) -> bool:
    return one.invocation_id == other.invocation_id and one.branch == other.branch
