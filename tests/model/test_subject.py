"""Subjects and patterns: the grammar, the encoding, and one walk over many patterns."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.errors import InvalidPattern, InvalidSubject
from tape.model import subject
from tape.model.pattern import Pattern, PatternSet, split

keys = st.text(max_size=20)
awkward_keys = st.one_of(
    keys, st.sampled_from(["", "_", "*", "**", "/", "a/b", " ", "%", "%2F", "é", "日本", "\0", "~", "a:b@c+d=e,f"])
)


@given(awkward_keys)
def test_every_key_comes_back_as_it_went_in(key: str) -> None:
    assert subject.decode(subject.encode(key)) == key


@given(st.lists(awkward_keys, max_size=5))
def test_no_key_can_break_the_grammar(dims: list[str]) -> None:
    text = subject.build("value", "changed", *dims)
    assert subject.parse(text) == ("value", "changed", *dims)
    assert text.count("/") == 3 + len(dims)
    assert "*" not in text
    assert subject.normalize(text) == text


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (subject.run("RUNNING", "app", "ann", "s1", "r1"), "/tape/run/running/app/ann/s1/r1"),
        (subject.decision_recorded("r1", 0), "/tape/decision/recorded/r1/0"),
        (subject.effect("pending", "sweep", "r1"), "/tape/effect/pending/sweep/r1"),
        (subject.effect("confirmed", "sweep", "r1"), "/tape/effect/confirmed/sweep/r1"),
        (subject.effect("failed", "sweep", "r1"), "/tape/effect/failed/sweep/r1"),
        (subject.effect("unknown", "sweep", "r1"), "/tape/effect/unknown/sweep/r1"),
        (subject.effect("reconciled", "sweep", "r1"), "/tape/effect/reconciled/sweep/r1"),
        (subject.obligation("registered", "refund", "r1"), "/tape/obligation/registered/refund/r1"),
        (subject.obligation("compensated", "refund", "r1"), "/tape/obligation/compensated/refund/r1"),
        (subject.gate("waiting", "approval", "r1"), "/tape/gate/waiting/approval/r1"),
        (subject.gate("released", "approval", "r1"), "/tape/gate/released/approval/r1"),
        (subject.value_changed("treasury", "fx rate"), "/tape/value/changed/treasury/fx%20rate"),
        (subject.value_deleted("treasury", "user:42"), "/tape/value/deleted/treasury/user:42"),
        (subject.event_appended("app", "", "s1"), "/tape/event/appended/app/_/s1"),
        (subject.policy_denied("sweep", "r1"), "/tape/policy/denied/sweep/r1"),
    ],
)
def test_the_canonical_subjects_are_those_of_the_contract(made: str, expected: str) -> None:
    assert made == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must begin with /tape/"),
        ("order/created", "must begin with /tape/"),
        ("/other/order/created", "must begin with /tape/"),
        ("/tape/Order/created", "'Order'"),
        ("/tape/order/Created", "'Created'"),
        ("/tape/order/created//42", "empty segment"),
        ("/tape/order/created/", "empty segment"),
        ("/tape/order/created/*", "wildcard"),
        ("/tape/order/created/50%", "two hex digits"),
        ("/tape/order/created/%FF", "UTF-8"),
        ("/tape/order/created/" + "x" * 2000, "2000 is the limit"),
    ],
)
def test_a_bad_subject_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidSubject, match=reason.replace("*", r"\*")):
        subject.normalize(text)


def test_a_subject_has_one_spelling() -> None:
    assert subject.normalize("/tape/value/changed/ns/user%3a42") == "/tape/value/changed/ns/user:42"
    assert subject.normalize("/tape/value/changed/ns/é") == "/tape/value/changed/ns/%C3%A9"
    assert subject.normalize("/tape/value/changed/ns/%5f") == "/tape/value/changed/ns/%5F"


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("/tape/value/changed/treasury/**", "/tape/value/changed/treasury/fx", True),
        ("/tape/value/changed/treasury/**", "/tape/value/changed/treasury", True),
        ("/tape/value/changed/treasury/**", "/tape/value/changed/other/fx", False),
        ("/tape/effect/confirmed/execute_sweep/*", "/tape/effect/confirmed/execute_sweep/r1", True),
        ("/tape/effect/confirmed/execute_sweep/*", "/tape/effect/confirmed/execute_sweep", False),
        ("/tape/effect/confirmed/execute_sweep/*", "/tape/effect/confirmed/execute_sweep/r1/x", False),
        ("/tape/effect/**", "/tape/effect/failed/t/r", True),
        ("/tape/decision/recorded/*/0", "/tape/decision/recorded/r1/0", True),
        ("/tape/decision/recorded/*/0", "/tape/decision/recorded/r1/1", False),
        ("", "/tape/anything", True),
        ("**", "/tape/anything", True),
        ("/tape/**", "/tape", True),
        # A client that encodes more than it must still matches.
        ("/tape/value/changed/ns/user%3A42", "/tape/value/changed/ns/user:42", True),
        ("/tape/value/changed/ns/%C3%A9", "/tape/value/changed/ns/é", True),
        # A segment that only begins like one of the pattern is another segment.
        ("/tape/order/**", "/tape/order-line/created", False),
        ("/tape/order/**", "/tape/orders", False),
        # The key `_` and the empty key are spelt differently.
        ("/tape/value/changed/_/**", "/tape/value/changed/_/fx", True),
        ("/tape/value/changed/_/**", "/tape/value/changed/%5F/fx", True),
        # A key that is itself a star is not a wildcard.
        ("/tape/value/changed/ns/%2A", "/tape/value/changed/ns/%2A", True),
        ("/tape/value/changed/ns/%2A", "/tape/value/changed/ns/x", False),
        ("/tape/value/changed/ns/*", "/tape/value/changed/ns/%2A", True),
    ],
)
def test_patterns_match_as_the_contract_says(pattern: str, text: str, fits: bool) -> None:
    assert Pattern(pattern).matches(text) is fits
    assert list(PatternSet([(Pattern(pattern), "hit")]).matching(text)) == (["hit"] if fits else [])


@given(
    st.lists(st.sampled_from(("order", "created", "_", "a b", "*")), max_size=3),
    st.booleans(),
    st.lists(st.sampled_from(("order", "orders", "created", "", "_", "a b")), max_size=4),
)
def test_a_pattern_compares_segments_however_it_is_compared(wanted: list[str], is_open: bool, keys: list[str]) -> None:
    encoded = [key if key == "*" else quote(key) for key in wanted]
    pattern = Pattern("/".join(("/tape", *encoded, *(["**"] if is_open or not encoded else []))))
    text = "/".join(("/tape", *map(subject.encode, keys)))
    assert pattern.matches(text) == pattern.matches_segments(split(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/tape/**/confirmed", "only stand at the end"),
        ("/tape/effect/conf*", "whole segment"),
        ("tape/effect", "begin with '/'"),
        ("/tape//effect", "empty segment"),
        ("/tape/effect/", "empty segment"),
        ("/tape/value/%FF", "UTF-8"),
    ],
)
def test_a_bad_pattern_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidPattern, match=reason):
        Pattern(text)


segments = st.sampled_from(["a", "b", "c", "_", "%2A"])
patterns = st.lists(st.one_of(segments, st.just("*")), max_size=4).flatmap(
    lambda middle: st.booleans().map(lambda rest: "/" + "/".join(["tape", *middle, *(["**"] if rest else [])]))
)
some_subjects = st.lists(segments, max_size=5).map(lambda parts: "/" + "/".join(["tape", *parts]))


@given(st.lists(patterns, max_size=12), st.lists(some_subjects, min_size=1, max_size=8), st.data())
def test_one_walk_finds_exactly_what_naive_matching_finds(
    texts: list[str], subjects: list[str], data: st.DataObject
) -> None:
    together: PatternSet[int] = PatternSet((Pattern(text), number) for number, text in enumerate(texts))
    gone = {number for number in range(len(texts)) if data.draw(st.booleans())}
    for number in gone:
        together.discard(Pattern(texts[number]), number)
    for each in subjects:
        naive = {n for n, text in enumerate(texts) if n not in gone and Pattern(text).matches(each)}
        found = list(together.matching(each))
        assert set(found) == naive
        assert len(found) == len(naive)


@given(patterns, some_subjects)
def test_the_literal_prefix_never_excludes_a_match(text: str, each: str) -> None:
    pattern = Pattern(text)
    if pattern.matches(each):
        if pattern.is_literal:
            assert each == pattern.prefix
        else:
            assert pattern.prefix <= each < pattern.prefix + "0"


def test_a_set_of_patterns_leaves_nothing_behind() -> None:
    together: PatternSet[int] = PatternSet()
    for text in ("/tape/a/*/c", "/tape/a/**", "/tape/b"):
        together.add(Pattern(text), 1)
        together.discard(Pattern(text), 1)
    assert len(together) == 0
    assert together._root.is_empty
