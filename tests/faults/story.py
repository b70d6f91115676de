"""What happened, read from the journal; and what should have, reckoned from what was sent alone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tape import TapeClient

KEYS = 5


def key_of(number: int) -> str:
    """The lane of a message."""
    return str(number % KEYS)


@dataclass
class Sent:
    """What a sender knows of one message: how often it was sent, in which lane it belongs."""

    number: int
    key: str
    times: int = 0


class Received(NamedTuple):
    """A request that the downstream answered with success: its idempotency key, and the number of the message."""

    key: str
    number: int


@dataclass
class Story:
    """What the journal tells: the messages of runs, in the order of their beginning, and events of the subscription."""

    runs: list[int] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # what was sent as which message
    redelivered: set[int] = field(default_factory=set)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def refs(self, *verbs: str) -> set[str]:
        """The places in the spool that events of some kinds name."""
        return {context["spool_ref"] for verb, context in self.events if verb in verbs and context.get("spool_ref")}

    def messages(self, *verbs: str) -> set[str]:
        """The ids of messages that events of some kinds name."""
        return {context["message_id"] for verb, context in self.events if verb in verbs and "message_id" in context}


def read_story(url: str) -> Story:
    """The journal from its beginning to its end."""
    story = Story()
    with TapeClient(url) as client:
        head = client.head().global_seq
        for batch in client.follow_batches(subject_pattern="/tape/**"):
            for entry in batch.entries:
                kind, verb = entry.subject.split("/")[2:4]
                payload = json.loads(entry.payload_json or "{}")
                if kind == "command":
                    number = payload["payload"]["n"]
                    message = payload["payload"]["message"]
                    story.runs.append(number)
                    story.numbers[message["id"]] = number
                    if message["metadata"].get("delivered", 1) > 1:
                        story.redelivered.add(number)
                elif kind == "subscription":
                    story.events.append((verb, payload))
            if batch.position >= head:
                return story
    raise AssertionError("the journal ended before its head")


@dataclass
class Promise:
    """What a subscription says that it does."""

    ordering: str
    dedup: bool
    is_strict: bool
    readers_died: bool = False  # somebody was killed between fetching and acknowledging: the source may deliver again


def complaints(
    sent: Iterable[Sent],
    story: Story,
    promise: Promise,
    left: Mapping[str, Iterable[int]],
    totals: Mapping[str, int],
    received: Sequence[Received],
) -> list[str]:
    """Everything that is not as promised. `left` are the messages that still are in the spool, by part; `totals` is
    what `tape subscriptions outage` says; `received` what the downstream has."""
    messages = {each.number: each for each in sent}
    return [
        *judge_receipts(messages, received, promise, left),
        *_lost(messages, story, left),
        *_doubled(messages, story, promise),
        *_overtaken(messages, story, promise),
        *_replayed_out_of_turn(story, promise),
        *_missing_events(story, left, totals),
    ]


def judge_receipts(
    messages: Mapping[int, Sent], received: Sequence[Received], promise: Promise, left: Mapping[str, Iterable[int]]
) -> list[str]:
    """What the downstream received and should not have, or did not receive and should have.

    A request that is repeated with its idempotency key is one: a service that is sent it twice acts once.
    """
    first = list(dict.fromkeys(received))
    numbers = [each.number for each in first]
    kept = {number for part, some in left.items() if part != "spool" for number in some}
    missing, strange = sorted(set(messages) - set(numbers) - kept), sorted(set(numbers) - set(messages))
    found = [f"the downstream never received: {missing}"] * bool(missing)
    found += [f"the downstream received what was never sent: {strange}"] * bool(strange)
    twice = {number: times for number, times in Counter(numbers).items() if times > 1}
    found += [f"the downstream received several runs of: {twice}"] * (promise.dedup and bool(twice))
    if promise.ordering != "none" and promise.is_strict:
        found += [f"the downstream received {each}" for each in _inversions(messages, numbers, promise)]
    return found


def _inversions(messages: Mapping[int, Sent], numbers: Iterable[int], promise: Promise) -> list[str]:
    lanes: defaultdict[str, list[int]] = defaultdict(list)
    for number in dict.fromkeys(numbers):  # a repetition overtakes no other
        lanes["" if promise.ordering == "global" else messages[number].key].append(number)
    found = []
    for lane, some in lanes.items():
        late = [after for before, after in pairwise(some) if after < before]
        found += [f"{late} late in lane {lane!r}: {some}"] * bool(late)
    return found


def _lost(messages: dict[int, Sent], story: Story, left: Mapping[str, Iterable[int]]) -> list[str]:
    there = set(story.runs) | {number for numbers in left.values() for number in numbers}
    missing, strange = sorted(set(messages) - there), sorted(there - set(messages))
    return [f"lost: {missing}"] * bool(missing) + [f"never sent: {strange}"] * bool(strange)


def _doubled(messages: dict[int, Sent], story: Story, promise: Promise) -> list[str]:
    twice = {number: times for number, times in Counter(story.runs).items() if times > 1}
    if promise.dedup:
        return [f"more than one run: {twice}"] * bool(twice)
    spooled = {story.numbers.get(each, -1) for each in story.messages("message.spooled")}
    explained = story.redelivered | spooled | {each.number for each in messages.values() if each.times > 1}
    puzzling = {number: times for number, times in twice.items() if number not in explained}
    return [f"twice without a redelivery: {puzzling}"] * (bool(puzzling) and not promise.readers_died)


def _overtaken(messages: dict[int, Sent], story: Story, promise: Promise) -> list[str]:
    if promise.ordering == "none" or not promise.is_strict:
        return []
    return [f"overtaken: {each}" for each in _inversions(messages, story.runs, promise)]


def _replayed_out_of_turn(story: Story, promise: Promise) -> list[str]:
    """What waited leaves in the order of its receipt: all of it, or that of one key."""
    if promise.ordering == "none":
        return []
    begun = {number: position for position, number in reversed(list(enumerate(story.runs)))}
    lanes: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    # What had begun before it was spooled, though nobody heard of it, has no turn among those that waited.
    seen = {context["dedup_key"] for verb, context in story.events if verb == "message.deduplicated"}
    for verb, context in story.events:
        # A run that waited for its downstream was not spooled.
        if verb == "message.replayed" and context.get("spool_ref") and context["message_id"] not in seen:
            seen.add(context["message_id"])
            number = story.numbers.get(context["message_id"], -1)
            lane = "" if promise.ordering == "global" else key_of(number)
            lanes[lane].append((context["recv_seq"], begun.get(number, -1)))
    found = []
    for lane, positions in lanes.items():
        turns = [begin for _, begin in sorted(positions)]
        found += [f"replayed out of turn in lane {lane!r}: {positions}"] * (turns != sorted(turns))
    return found


def _missing_events(story: Story, left: Mapping[str, Iterable[int]], totals: Mapping[str, int]) -> list[str]:
    came, replayed = story.refs("message.spooled"), story.refs("message.replayed")
    dead, damaged = story.refs("message.dead_lettered"), story.refs("spool.quarantined")
    gone = replayed | dead | damaged
    found = [f"left without having come: {sorted(gone - came)}"] * bool(gone - came)
    waiting = len(came - gone)
    if waiting != len(list(left.get("spool", ()))):
        found.append(f"{waiting} wait by the journal, {list(left.get('spool', ()))} are in the spool")
    reported = {"spooled": came, "replayed": replayed, "dead_lettered": dead, "quarantined": damaged}
    for name, refs in reported.items():
        if totals.get(name, 0) != len(refs):
            found.append(f"{totals.get(name, 0)} {name} by `tape subscriptions outage`, {len(refs)} by the journal")
    return found
