"""The conditions that an index over predicates can use: sound, and found where they are."""

from __future__ import annotations

from typing import Any

import pytest

from tape.cel import MISSING, IndexKey, compile_predicate, read_path
from tape.errors import InvalidPredicate
from tests.cel.generator import Generator
from tests.cel.samples import envelope


def keys(text: str) -> list[tuple[tuple[str, ...], set[Any]]]:
    return [(key.path, set(key.values)) for key in compile_predicate(text).index_keys]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('payload.status == "failed"', [(("payload", "status"), {"failed"})]),
        ('"failed" == payload.status', [(("payload", "status"), {"failed"})]),
        ('kind in ["effect", "run"]', [(("kind",), {"effect", "run"})]),
        ('payload["status"] == "failed"', [(("payload", "status"), {"failed"})]),
        ('payload.order["status"].code == 7', [(("payload", "order", "status", "code"), {7})]),
        ('kind == "run" && payload.n > 3', [(("kind",), {"run"})]),
        ('kind == "run" && payload.s == "a"', [(("kind",), {"run"}), (("payload", "s"), {"a"})]),
        ('kind == "run" || kind == "effect"', [(("kind",), {"run", "effect"})]),
        ('(kind == "run" || kind in ["a"]) && seq == 1', [(("kind",), {"run", "a"}), (("seq",), {1})]),
        (
            '(kind == "run" && seq == 1) && payload.s == "a"',
            [(("kind",), {"run"}), (("seq",), {1}), (("payload", "s"), {"a"})],
        ),
        ('kind == "a" && payload.x || kind == "b"', [(("kind",), {"a", "b"})]),
        ("payload.n == null", [(("payload", "n"), {None})]),
        ('type == "effect.confirmed"', [(("type",), {"effect.confirmed"})]),
        ('kind == "run" || seq == 1', []),
        ('!(kind == "run")', []),
        ('kind != "run"', []),
        ("payload.a == payload.b", []),
        ("kind in payload.kinds", []),
        ("payload.l.exists(kind, kind == 1)", []),
        ("payload.l[0] == 1", []),
        ("kind in []", []),
        ("", []),
        ("payload.a > 1", []),
        ("payload.t ? kind == 'a' : kind == 'b'", []),
    ],
)
def test_equality_and_membership_on_a_path_are_index_keys(
    text: str, expected: list[tuple[tuple[str, ...], set[Any]]]
) -> None:
    assert keys(text) == expected


def test_an_index_key_reads_what_the_entry_has_at_its_path() -> None:
    seen = envelope({"status": "failed", "deep": {"n": 1.0}, "yes": True, "list": [1]})

    assert read_path(seen, ("payload", "status")) == "failed"
    assert read_path(seen, ("payload", "nope")) is MISSING
    assert read_path(seen, ("payload", "status", "nope")) is MISSING
    assert read_path(seen, ("payload", "list")) is MISSING
    assert read_path(seen, ("kind",)) == "effect"
    assert read_path(envelope("broken"), ("payload", "status")) is MISSING


@pytest.mark.parametrize(
    ("text", "payload", "holds"),
    [
        ("payload.x == 1", {"x": 1.0}, True),
        ("payload.x == 1u", {"x": 1}, True),
        ("payload.x == 1", {"x": True}, False),
        ("payload.x == true", {"x": True}, True),
        ("payload.x == true", {"x": 1}, False),
        ("payload.x in [0, false]", {"x": 0.0}, True),
        ("payload.x == null", {"x": None}, True),
        ("payload.x == null", {}, False),
        ('payload.x == "a"', {"x": ["a"]}, False),
    ],
)
def test_a_key_holds_exactly_where_the_condition_does(text: str, payload: dict[str, Any], holds: bool) -> None:
    predicate = compile_predicate(text)
    (key,) = predicate.index_keys

    assert key.holds(envelope(payload)) is holds
    assert predicate.matches(envelope(payload)) is holds


def test_whatever_matches_satisfies_every_key() -> None:
    generator = Generator(7)
    asked = 0
    for _ in range(4_000):
        text = (
            f"{generator.expression()} && payload.i == {generator._pick('0', '1', '42')} && ({generator.expression()})"
        )
        try:
            predicate = compile_predicate(text)
        except InvalidPredicate:
            continue
        seen = envelope(generator.payload())
        if predicate.matches(seen):
            asked += 1
            assert all(key.holds(seen) for key in predicate.index_keys), text
    assert asked > 20


def test_an_index_key_is_hashable_so_that_equal_ones_meet() -> None:
    one, other = (compile_predicate(text).index_keys[0] for text in ('kind == "a"', '"a" == kind'))

    assert one == other
    assert len({one, other}) == 1
    assert isinstance(one, IndexKey)
