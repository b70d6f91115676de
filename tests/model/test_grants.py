"""Grants: which subjects patterns include, and which patterns lie within others."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.errors import InvalidPattern, SubjectNotGranted
from tape.model.grants import MAX_PATTERNS, Grants, compile_grants
from tape.model.pattern import Pattern
from tape.model.principal import Principal

# Two texts that patterns name, one that none does: with these, all subjects of up to five segments tell what is true.
WORDS = ("a", "b", "c")
SUBJECTS = ["/".join(("/tape", *words)) for length in range(1, 5) for words in product(WORDS, repeat=length)]


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    """Patterns over two of the three texts, of up to three segments after the root."""
    segments = draw(st.lists(st.sampled_from(("a", "b", "*")), max_size=3))
    rest = draw(st.booleans())
    if not segments and not rest:
        return Pattern(draw(st.sampled_from(("", "**", "/**", "/*/a"))))
    return Pattern("/".join(("/tape", *segments, *(["**"] if rest else []))))


def subjects_of(pattern: Pattern | Grants) -> set[str]:
    return {subject for subject in SUBJECTS if pattern.matches(subject)}


@given(patterns(), patterns())
def test_a_pattern_covers_another_exactly_if_every_subject_of_it_fits(one: Pattern, other: Pattern) -> None:
    assert one.covers(other) == (subjects_of(other) <= subjects_of(one))


@given(patterns(), patterns())
def test_two_patterns_overlap_exactly_if_a_subject_fits_both(one: Pattern, other: Pattern) -> None:
    assert one.overlaps(other) == bool(subjects_of(one) & subjects_of(other))
    assert one.overlaps(other) == other.overlaps(one)


@given(st.lists(patterns(), max_size=4), patterns())
def test_grants_cover_a_pattern_exactly_if_every_subject_of_it_fits_one_of_them(
    granted: list[Pattern], pattern: Pattern
) -> None:
    grants = Grants(granted)
    assert grants.covers(pattern) == (subjects_of(pattern) <= subjects_of(grants))
    assert subjects_of(grants) == set().union(*map(subjects_of, granted))


@given(st.lists(patterns(), max_size=4), patterns())
def test_a_narrowed_pattern_selects_what_fits_it_and_is_granted(granted: list[Pattern], pattern: Pattern) -> None:
    grants = Grants(granted)
    wanted = subjects_of(pattern) & subjects_of(grants)
    try:
        narrowed, beside = grants.narrow(pattern)
    except SubjectNotGranted:
        assert not wanted
        return
    assert {each for each in subjects_of(narrowed) if beside is None or beside.matches(each)} == wanted


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("/tape/order/**", "/tape/order"),
        ("/tape/order/**", "/tape/order/paid/*"),
        ("/tape/*/**", "**"),
        ("**", "/tape/order/paid/42"),
        ("/tape/order/paid/%2A", "/tape/order/paid/%2a"),
    ],
)
def test_a_wide_pattern_covers_a_narrow_one_and_not_the_reverse(wide: str, narrow: str) -> None:
    assert Pattern(wide).covers(Pattern(narrow))
    if Pattern(narrow) != Pattern(wide) and wide != "/tape/*/**":
        assert not Pattern(narrow).covers(Pattern(wide))


def test_a_literal_star_is_not_a_wildcard() -> None:
    assert not Pattern("/tape/order/paid/%2A").covers(Pattern("/tape/order/paid/*"))
    assert not Pattern("/tape/order/paid/%2A").overlaps(Pattern("/tape/order/paid/42"))
    assert not compile_grants(("/tape/order/paid/%2A%2A",)).matches("/tape/order/paid/42")


def test_several_grants_together_cover_what_none_of_them_covers_alone() -> None:
    assert compile_grants(("/tape/order", "/tape/order/*/**")).covers(Pattern("/tape/order/**"))
    assert not compile_grants(("/tape/order", "/tape/order/*/*/**")).covers(Pattern("/tape/order/**"))


def test_empty_grants_include_nothing_and_absent_ones_everything() -> None:
    nothing, everything = Principal(read=(), write=()), Principal()
    assert not nothing.may_read("/tape/order/paid/1")
    assert not nothing.may_write("/tape/order/paid/1")
    assert everything.may_read("/tape/order/paid/1")
    assert everything.may_write("/tape/order/paid/1")
    with pytest.raises(SubjectNotGranted, match="outside of the read grants, which are empty"):
        compile_grants(()).narrow(Pattern(""))


def test_the_number_and_the_length_of_patterns_are_bounded() -> None:
    compile_grants(tuple(f"/tape/order/paid/{number}" for number in range(MAX_PATTERNS)))
    with pytest.raises(InvalidPattern, match="65 patterns; 64 is the limit"):
        compile_grants(tuple(f"/tape/order/paid/{number}" for number in range(MAX_PATTERNS + 1)))
    with pytest.raises(InvalidPattern, match="65 segments; 64 is the limit"):
        compile_grants(("/tape" + "/a" * 64,))
    with pytest.raises(InvalidPattern, match="must begin with"):
        compile_grants(("order/**",))
    with pytest.raises(InvalidPattern, match="fits no subject"):
        compile_grants(("/order/**",))


def test_an_error_shows_a_few_of_many_grants() -> None:
    grants = compile_grants(tuple(f"/tape/order/{'x' * 500}{number}" for number in range(MAX_PATTERNS)))
    assert str(grants).endswith("and 56 more")
    assert len(str(grants)) < 1_000
