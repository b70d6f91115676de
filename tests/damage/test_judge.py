"""The judge of the damage suite: what it calls right, named and silent."""

from __future__ import annotations

import pytest

from tape.model.entry import Entry
from tests.damage.judge import Verdict, judge
from tests.damage.readers import Answer, Path, paths
from tests.damage.truth import Truth


def entry(number: int, payload: str = "{}") -> Entry:
    return Entry(number, "run-0", number, "order", "/tape/order/paid/0", payload, 1, "", "", "", 5, "", "", "", b"")


TRUTH = Truth([entry(number) for number in range(1, 6)])
FOLLOW = paths(is_sample=False)[0]


def answer(*numbers: int, **facts: object) -> Answer:
    seen = [(number, FOLLOW.show(entry(number))) for number in numbers]
    return Answer("follow", seen, **({"is_complete": True} | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (answer(1, 2, 3, 4, 5), "right"),
        (answer(1, 2, 4, 5), "silent"),
        (answer(1, 2, 4, 5, gaps=[(3, 3)]), "named"),
        (answer(1, 2, 4, 5, gaps=[(2, 2)]), "silent"),
        (answer(1, 2, error="EntryDamaged", names_damage=True, ended_at=(3, 3)), "named"),
        (answer(1, error="EntryDamaged", names_damage=True, ended_at=(3, 3)), "silent"),
        (answer(1, 2, error="StoreDamaged", names_damage=True), "refused"),
        (answer(1, 3, error="StoreDamaged", names_damage=True), "silent"),
        (answer(error="StoreDamaged", names_damage=True), "refused"),
        (answer(1, 2, 3, 4), "silent"),
        (answer(1, 2, 2, 3, 4, 5), "silent"),
        (answer(1, 3, 2, 4, 5), "silent"),
        (answer(1, 2, 3, 4, 5, strange=[7]), "silent"),
        (answer(1, 2, 3, 4, 5, is_complete=False), "silent"),
        (answer(1, 2, is_complete=False), "stalled"),
        (answer(1, 3, is_complete=False), "silent"),
    ],
)
def test_what_a_reader_got_is_judged_by_what_was_acknowledged(given: Answer, verdict: Verdict) -> None:
    assert judge(given, FOLLOW, TRUTH, has_ends=True).verdict == verdict


def test_an_altered_entry_is_silent_even_if_its_number_is_named() -> None:
    given = answer(1, 2, gaps=[(3, 3)])
    given.seen.append((3, FOLLOW.show(entry(3, '{"n": 1}'))))
    assert judge(given, FOLLOW, TRUTH, has_ends=False).verdict == "silent"


def test_an_entry_of_another_selection_is_silent() -> None:
    run = Path("run", lambda one: one.global_seq != 3, FOLLOW.show, FOLLOW.read)
    assert judge(answer(1, 2, 3, 4, 5), run, TRUTH, has_ends=False).verdict == "silent"
