"""YAML 1.2: what plain words mean, where values stand, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tape.documents.paths import render
from tape.documents.yaml import load
from tape.errors import InvalidDocument


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("2026-01-31", "2026-01-31"),
        ("12:30:45", "12:30:45"),
        ("0o17", 15),
        ("017", 17),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("-3", -3),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("true", True),
        ("~", None),
        ("", None),
        ("'true'", "true"),
        ('"5"', "5"),
        ("!!str 5", "5"),
        ("|\n  a\n  b\n", "a\nb\n"),
    ],
)
def test_plain_words_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    found, _ = load(f"key: {text}")
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_every_value_knows_its_line() -> None:
    value, lines = load("a: 1\nb:\n  - x\n  - c: {d: 2}\n")
    assert value == {"a": 1, "b": ["x", {"c": {"d": 2}}]}
    assert {render(path): line for path, line in lines.items() if path} == {
        "a": 1,
        "b": 2,
        "b[0]": 3,
        "b[1]": 4,
        "b[1].c": 4,
        "b[1].c.d": 4,
    }


def test_anchors_are_values_and_a_bomb_of_them_is_refused() -> None:
    assert load("a: &x [1]\nb: *x")[0] == {"a": [1], "b": [1]}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 8)
    )
    with pytest.raises(InvalidDocument, match="more than 100000 values"):
        load(bomb)
    with pytest.raises(InvalidDocument, match="more than 100 levels"):
        load("[" * 110 + "]" * 110)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\na: 2", "line 2, a: is given twice, also on line 1"),
        ("a: [1", "line 1: Invalid YAML: "),
        ("a: !secret x", "has the unknown tag !secret"),
        ("? [1]\n: 2", "a key must be a plain text"),
        ("a: *nowhere", "line 1: "),
        ("a: 1\n--- \nb: 2", "line 2: "),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        load(text)
    assert reason in str(raised.value)
