"""Dispatch in lanes: each lane in order, none past a failure of its lane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from tape.model.dispatch_result import RunDispatchResult

T = TypeVar("T")


@runtime_checkable
class LaneDispatch(Protocol):
    """A dispatch that accepts several plans of one lane in one call."""

    async def in_lanes(self, plans: Sequence[Any], lanes: Sequence[Hashable]) -> list[RunDispatchResult]:
        """Start runs, each lane in order; after a failure the rest of its lane is skipped."""


async def in_turns(
    dispatch: Callable[[list[T]], Awaitable[list[RunDispatchResult]]], things: Sequence[T], lanes: Sequence[Hashable]
) -> list[RunDispatchResult]:
    """Dispatch the first item of each lane, then the second of each lane whose first succeeded, and so on."""
    answers = [RunDispatchResult("skipped")] * len(things)
    left = list(range(len(things)))
    stopped: set[Hashable] = set()
    while left:
        heads: dict[Hashable, int] = {}
        for index in left:
            heads.setdefault(lanes[index], index)
        taken = list(heads.values())
        for index, answer in zip(taken, await dispatch([things[index] for index in taken]), strict=True):
            answers[index] = answer
            if not answer.has_run:
                stopped.add(lanes[index])
        done = set(taken)
        left = [index for index in left if index not in done and lanes[index] not in stopped]
    return answers


async def in_batches(
    send: Callable[[list[int]], Awaitable[list[RunDispatchResult]]],
    batches: Iterable[Sequence[int]],
    lanes: Sequence[Hashable],
) -> list[RunDispatchResult]:
    """Send batches of indexes in order, without failed lanes. Stops after a batch that is unavailable as a whole."""
    answers = [RunDispatchResult("skipped")] * len(lanes)
    stopped: set[Hashable] = set()
    for batch in batches:
        left = [index for index in batch if lanes[index] not in stopped]
        sent = await send(left) if left else []
        for index, answer in zip(left, sent, strict=True):
            # What a batch found out about a message stands; that its downstream is unavailable counts once for a lane.
            if answer.has_run or answer.outcome == "rejected" or lanes[index] not in stopped:
                answers[index] = answer
            if not answer.has_run:
                stopped.add(lanes[index])
        if sent and all(answer.outcome == "unavailable" for answer in sent):
            break
    return answers


def named(lanes: Sequence[Hashable]) -> list[str]:
    """A short name for each lane with several items; empty for the others."""
    names: dict[Hashable, str] = {}
    seen: set[Hashable] = set()
    for lane in lanes:
        if lane in seen:
            names.setdefault(lane, str(len(names) + 1))
        seen.add(lane)
    return [names.get(lane, "") for lane in lanes]


def batched(sizes: Sequence[int], most: int, most_bytes: int) -> list[list[int]]:
    """Indexes in batches of at most `most` items and `most_bytes` bytes; a larger item is a batch of its own."""
    batches: list[list[int]] = []
    size = 0
    for index, weight in enumerate(sizes):
        if not batches or len(batches[-1]) >= most or size + weight > most_bytes:
            batches.append([])
            size = 0
        batches[-1].append(index)
        size += weight
    return batches
