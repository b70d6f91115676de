"""Texts that do not compile are rejected with the position and what was expected there."""

from __future__ import annotations

import pickle

import pytest

from tape.cel import compile_predicate
from tape.errors import InvalidInput, InvalidPredicate


def refused(text: str) -> InvalidPredicate:
    with pytest.raises(InvalidPredicate) as caught:
        compile_predicate(text)
    return caught.value


def test_the_message_has_line_column_and_a_caret_under_the_position() -> None:
    error = refused('kind == "effect"\n  && amount > 3')

    assert (error.line, error.column) == (2, 6)
    assert str(error).splitlines()[1:] == ["    && amount > 3", "       ^"]
    assert (error.code, error.status) == ("TAPE-1006", "INVALID_ARGUMENT")
    assert isinstance(error, InvalidInput)


def test_an_unknown_variable_is_an_error_with_a_suggestion() -> None:
    assert refused('subjct == "a"').reason == "unknown variable 'subjct'; did you mean 'subject'?"


def test_an_unknown_variable_like_none_other_lists_what_there_is() -> None:
    assert "the variables are global_seq, run_id, seq, kind" in refused("zzzzzz").reason


def test_an_element_of_a_macro_is_known_only_inside_it() -> None:
    assert "unknown variable 'x'" in refused("payload.l.all(x, x > 1) && x == 1").reason


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("kind ==", 8, "expected an expression, found the end of the text"),
        ("kind == 'a", 9, "this string is not closed"),
        ("(kind", 6, "expected an operator or ')', found the end of the text"),
        ("[1, 2", 6, "expected an operator, ',' or ']'"),
        ("kind kind", 6, "expected an operator or the end of the text, found 'kind'"),
        ("kind = 'a'", 6, "CEL compares with =="),
        ("kind & true", 6, "CEL's logical and is written &&"),
        ("kind | true", 6, "CEL's logical or is written ||"),
        ("payload.", 9, "expected a field name, found the end of the text"),
        ("payload.in", 9, "expected a field name, found 'in'"),
        ("kind ? 1", 9, "expected an operator or ':'"),
        ("let", 1, "'let' is a reserved word"),
        ('"\\q"', 2, "\\q is no escape"),
        ('"\\ud800"', 2, "is no Unicode character"),
        ('b"\\u0041"', 3, "cannot stand in bytes"),
        ("9223372036854775808", 1, "does not fit into an int"),
        ("18446744073709551616u", 1, "does not fit into a uint"),
        ("-1u", 1, "a uint has no sign"),
        ("has(kind)", 5, "expected a field, as in has(payload.amount)"),
        ("payload.l.all(1, true)", 15, "expected a name for the element, as in all(x, …)"),
        ("payload.l.all(x)", 11, "all() needs a name and an expression"),
        ("kind.startswith('a')", 6, "did you mean 'startsWith'?"),
        ("startsWith(kind, 'a')", 1, "'startsWith' is a method"),
        ("kind.int()", 6, "'int' is a function"),
        ("kind.size", 5, "'size' is a method; it needs parentheses"),
        ("size", 1, "'size' is a function; it needs parentheses"),
        ("math.bitand(1, 2)", 6, "did you mean 'math.bitAnd'?"),
        ("kind == 5", 6, "'==' does not take string and int"),
        ("kind + 5", 6, "'+' does not take string and int"),
        ("kind < 5", 6, "'<' does not take string and int"),
        ("kind in 'effect'", 6, "'in' does not take string and string"),
        ("kind && true", 1, "'&&' expects a bool, not a string"),
        ("kind.startsWith(1)", 6, "startsWith() does not take (string, int); it takes (string, string)"),
        ("kind.all(x, true)", 6, "all() walks through a list or a map, not a string"),
        ("kind[0]", 5, "a string cannot be indexed with an int"),
        ("seq.field", 4, "an int has no fields"),
        ("google.protobuf.Duration{seconds: 1}", 25, "messages cannot be made here"),
        ("kind == $", 9, "unexpected character '$'"),
        ("payload.`", 9, "a quoted field name"),
    ],
)
def test_a_mistake_is_named_where_it_is(text: str, column: int, reason: str) -> None:
    error = refused(text)

    assert reason in error.reason
    assert error.column == column


def test_a_long_line_is_cut_to_what_is_near_the_mistake() -> None:
    error = refused("kind == 'a' && " * 100 + "nope" + " && kind == 'a'" * 100)
    line, caret = str(error).splitlines()[1:]

    assert len(line) < 120
    assert line[caret.index("^") :].startswith("nope")


def test_a_compile_error_survives_pickling() -> None:
    error = refused("kind ==")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)
