"""How fast the patterns that a subject matches are found, and what it would cost to try each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import cycle

from bench.options import Options
from bench.table import Table, count, ratio
from tape.model.pattern import Pattern, PatternSet

TITLE = "Subjects: finding all matching patterns"

PATTERNS = (10, 1_000, 10_000)
# More than any cache of split subjects holds: keys are rarely seen twice.
SUBJECTS = 50_000
KINDS = 20
SORTS = 4
VERBS = ("created", "paid", "shipped", "returned")
CHUNK = 20


def run(options: Options) -> list[Table]:
    """Matches per second through the trie and one by one."""
    seconds = options.scaled(3.0, 0.1)
    rows = []
    for size in PATTERNS:
        options.report(f"{TITLE}: {size:,} patterns")
        subjects = [subject(number, size) for number in range(SUBJECTS)]
        patterns = [Pattern(pattern_text(number)) for number in range(size)]
        trie = PatternSet(zip(patterns, range(size), strict=True))

        def walk(text: str, trie: PatternSet[int] = trie) -> Iterable[object]:
            return list(trie.matching(text))

        def try_each(text: str, patterns: list[Pattern] = patterns) -> Iterable[object]:
            return [pattern for pattern in patterns if pattern.matches(text)]

        found = sum(len(list(trie.matching(text))) for text in subjects) / len(subjects)
        with_trie, one_by_one = per_second(walk, subjects, seconds), per_second(try_each, subjects, seconds)
        rows.append([count(size), f"{found:.2f}", count(with_trie), count(one_by_one), ratio(with_trie, one_by_one)])
    columns = ["patterns", "of them match", "trie, subjects/s", "each pattern, subjects/s", "trie ÷ each"]
    return [
        Table(
            TITLE,
            columns,
            rows,
            [f"{SUBJECTS:,} different subjects; a quarter of the patterns is literal, half has *, a quarter **"],
        )
    ]


def subject(number: int, patterns: int) -> str:
    """One of many subjects; every one is about something that is subscribed to."""
    thing = number % (patterns // SORTS)
    return f"/tape/kind{thing % KINDS}/{VERBS[thing % len(VERBS)]}/key-{thing}/line-{number}"


def pattern_text(number: int) -> str:
    """Subscriptions as users have them: to one line of a thing, or to all of them, said in three ways."""
    sort, thing = number % SORTS, number // SORTS
    kind, verb = f"kind{thing % KINDS}", VERBS[thing % len(VERBS)]
    return (
        f"/tape/{kind}/{verb}/key-{thing}/line-{thing}",
        f"/tape/{kind}/*/key-{thing}/*",
        f"/tape/*/{verb}/key-{thing}/*",
        f"/tape/{kind}/{verb}/key-{thing}/**",
    )[sort]


def per_second(find: Callable[[str], object], subjects: list[str], seconds: float) -> float:
    """How many subjects a second are looked up."""
    endless = cycle(subjects)
    done = 0
    began = now = time.perf_counter()
    while now - began < seconds:
        for _ in range(CHUNK):
            find(next(endless))
        done += CHUNK
        now = time.perf_counter()
    return done / (now - began)
