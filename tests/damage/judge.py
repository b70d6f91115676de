"""The judge: what each reader got, beside what was acknowledged and what was said to be missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.damage.readers import Answer, Numbers, Path
from tests.damage.truth import Truth

# right: exactly what was acknowledged. named: what differs lies in a range that was named. refused: an error without a
# range, after a right beginning. unproven: entries are missing, and this reader cannot know how many there are, so that
# `verify` must name them. stalled: nothing is wrong so far, and nothing more comes, as in an outage that does not end.
# silent: something differs and nothing named it.
Verdict = Literal["right", "named", "refused", "unproven", "stalled", "silent"]
RANKS: tuple[Verdict, ...] = ("right", "named", "refused", "unproven", "stalled", "silent")
MAX_SHOWN = 5


@dataclass(frozen=True)
class Judgement:
    """The verdict on one reader, and why."""

    reader: str
    verdict: Verdict
    why: str = ""


@dataclass
class VerifyOutcome:
    """What `tape verify` said: its exit code, and the ranges that it named. None if it did not end as it should."""

    is_ok: bool | None
    # Whether it said no more than that the store is damaged.
    is_refused: bool = False
    ranges: list[Numbers] = field(default_factory=list)
    text: str = ""


def judge(answer: Answer, path: Path, truth: Truth, *, has_ends: bool) -> Judgement:
    """The verdict on a reader."""
    expected = {entry.global_seq: path.show(entry) for entry in truth.entries if path.wants(entry)}
    got = answer.seen
    why = _find_untruth(got, expected)
    if answer.strange:
        why = f"entries that were never written: {answer.strange[:MAX_SHOWN]}"
    if not why:
        named = [*answer.gaps, *([answer.ended_at] if answer.ended_at else [])]
        # After an error nothing more is promised; before it nothing may be missing.
        until = truth.head
        if answer.ended_at:
            until = answer.ended_at[1]
        elif answer.error:
            until = got[-1][0] if got else 0
        delivered = {number for number, _ in got}
        missing = [number for number in expected if number not in delivered and number <= until]
        unnamed = [number for number in missing if not any(first <= number <= last for first, last in named)]
        if (
            unnamed
            and path.is_provable
            and not answer.error
            and not answer.is_complete
            and unnamed[0] > (got[-1][0] if got else 0)
        ):
            why = f"nothing comes after {got[-1][0] if got else 0}"
            return Judgement(answer.reader, "stalled", why)
        if unnamed and not path.is_provable:
            why = f"{len(unnamed)} entries are missing in a selection without numbers of its own: {unnamed[:MAX_SHOWN]}"
            return Judgement(answer.reader, "unproven", why)
        if unnamed:
            why = f"{len(unnamed)} entries are missing and not named: {unnamed[:MAX_SHOWN]}"
        elif has_ends and not answer.error and not answer.is_complete:
            if not path.is_provable:  # the newest entry is one of those that the index lacks
                return Judgement(answer.reader, "unproven", "the newest entry is missing in such a selection")
            why = "the stream stands still before the newest entry"
    if why:
        return Judgement(answer.reader, "silent", f"{why} (gaps {answer.gaps[:MAX_SHOWN]}, error {answer.error!r})")
    if answer.error and not answer.ended_at:
        return Judgement(answer.reader, "refused", answer.error)
    if answer.gaps or answer.ended_at:
        return Judgement(answer.reader, "named", f"{answer.gaps[:MAX_SHOWN]} {answer.error}")
    return Judgement(answer.reader, "right")


def worst(judgements: Sequence[Judgement]) -> Judgement:
    """The judgement that counts for a case."""
    return max(judgements, key=lambda one: RANKS.index(one.verdict))


def _find_untruth(got: list[tuple[int, tuple[object, ...]]], expected: dict[int, tuple[object, ...]]) -> str:
    """What is wrong about delivered entries: altered, foreign, repeated, out of order."""
    altered = [number for number, shown in got if number in expected and shown != expected[number]]
    if altered:
        number = altered[0]
        shown = dict(got)[number]
        parts = [f"{a!r:.60} for {b!r:.60}" for a, b in zip(shown, expected[number], strict=False) if a != b]
        return f"{len(altered)} entries are altered: {altered[:MAX_SHOWN]}: {parts[:2]}"
    if foreign := [number for number, _ in got if number not in expected]:
        return f"{len(foreign)} entries do not belong there: {foreign[:MAX_SHOWN]}"
    numbers = [number for number, _ in got]
    if repeated := [number for number, count in Counter(numbers).items() if count > 1]:
        return f"{len(repeated)} entries came twice: {repeated[:MAX_SHOWN]}"
    if numbers != sorted(numbers):
        return "the order is another"
    return ""
