"""Documents: all problems at once, each with path, line, value and remedy."""

from __future__ import annotations

import base64

import pytest

from tape.documents.document import REQUIRED, Document
from tape.errors import InvalidDocument, Problem

TEXT = """\
apiVersion: tape/v1
kind: Thing
metadata: {name: one, path: things/one, labels: {team: data}}
spec:
  size: 0
  colour: gren
  tags: [a, 5]
  sise: 3
  nested: {flag: maybe}
  ratio: -1
"""


def check(text: str) -> list[str]:
    document = Document(text)
    spec = document.fields("spec").section("spec", "size", "colour", "tags", "nested", "must", "ratio", required=True)
    spec.whole("size", 5, least=1)
    spec.choice("colour", ("red", "green"), "red")
    spec.texts("tags", [])
    spec.section("nested", "flag").flag("flag", False)
    spec.text("must")
    spec.number("ratio", 1.0)
    if not document.problems:
        document.check()
        return []
    with pytest.raises(InvalidDocument) as raised:
        document.check()
    assert len(raised.value.problems) == len(str(raised.value).splitlines())
    return str(raised.value).splitlines()


def test_all_problems_are_reported_at_once_with_path_line_value_and_remedy() -> None:
    assert check(TEXT) == [
        "line 4, spec.must: is missing; it is required.",
        "line 5, spec.size: 0 must be a whole number of at least 1.",
        "line 6, spec.colour: 'gren' must be one of red, green; did you mean 'green'?",
        "line 7, spec.tags[1]: 5 must be a text.",
        "line 8, spec.sise: is not a known key; did you mean 'size'?",
        "line 9, spec.nested.flag: 'maybe' must be true or false.",
        "line 10, spec.ratio: -1 must be a number of at least 0.",
    ]


def test_a_good_document_has_no_problems_plain_or_base64() -> None:
    good = "kind: Thing\nmetadata: {name: one}\nspec: {must: x, size: 2}\n"
    assert check(good) == []
    assert check(base64.b64encode(good.encode()).decode()) == []
    packed = Document(base64.encodebytes(good.encode()).decode())
    assert (packed.content, packed.kind, packed.name, packed.path) == (good, "thing", "one", "one")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kind: Thing\nspec: {must: x}", "metadata: Missing 'metadata' section."),
        ("kind: Thing\nmetadata: {}\nspec: {must: x}", "metadata: Missing 'path' or 'name' in metadata"),
        ("kind: Thing\nmetadata: [1]\nspec: {must: x}", "metadata: [1] must be a mapping"),
        ("kind: Thing\nmetadata: {path: '../x'}\nspec: {must: x}", "metadata.path: '../x' must be words"),
        ("kind: Thing\nmetadata: {path: a/b}\nspec: null", "spec: must be a mapping"),
        ("kind: Thing\nmetadata: {path: a/b, lables: {}}\nspec: {must: x}", "did you mean 'labels'?"),
    ],
)
def test_what_all_kinds_share_is_checked_once(text: str, reason: str) -> None:
    assert reason in "\n".join(check(text))


@pytest.mark.parametrize(
    ("message", "value", "text"),
    [
        ("must be a text", 7, "line 5, spec.a.b: 7 must be a text."),
        ("subscription 'a.b' must be a boolean", 7, "line 5, spec.a.b: subscription 'a.b' must be a boolean, got 7."),
        ("Invalid value 'x'. Valid: y.", "x", "line 5, spec.a.b: Invalid value 'x'. Valid: y."),
        ("must be y; did you mean 'y'?", "x", "line 5, spec.a.b: 'x' must be y; did you mean 'y'?"),
    ],
)
def test_a_problem_shows_its_value_once(message: str, value: object, text: str) -> None:
    assert str(Problem("spec.a.b", 5, message, value)) == text


@pytest.mark.parametrize("text", ["", "just a text", "- a\n- list"])
def test_a_document_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(InvalidDocument, match="a document is a mapping"):
        Document(text)


def test_the_marker_of_required_fields_shows_its_name() -> None:
    assert repr(REQUIRED) == "REQUIRED"
