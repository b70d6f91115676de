"""`tape cel`: what people and programs get to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tape.cli.cel import app
from tape.errors import CursorBeyondHead, InvalidInput, InvalidPredicate, NotFound, TapeError
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.store import open_database


def cel(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=text or None)


def cel_json(*arguments: str, text: str = "") -> Any:
    return json.loads(cel(*arguments, "--output", "json", text=text).stdout)


@pytest.fixture
def entry_file(tmp_path: Path) -> str:
    path = tmp_path / "entry.json"
    path.write_text(
        json.dumps({"subject": "/tape/effect/confirmed/pay", "payload": {"amount": 150.5}, "tenant": "acme"})
    )
    return str(path)


def test_check_shows_variables_and_index_keys() -> None:
    found = cel_json("check", 'kind in ["run", "effect"] && payload.amount > 1.0 && payload.ok == true')

    assert found["ok"] is True
    assert found["type"] == "bool"
    assert found["variables"] == ["kind", "payload"]
    assert found["index_keys"] == [
        {"path": ["kind"], "values": ["effect", "run"]},
        {"path": ["payload", "ok"], "values": [True]},
    ]


def test_check_is_readable_for_people() -> None:
    done = cel("check", 'kind == "run"')

    assert done.exit_code == 0
    assert "✓ compiles" in done.stdout
    assert 'kind in ["run"]' in done.stdout


def test_check_of_an_invalid_expression_names_line_and_column_and_fails() -> None:
    done = cel("check", "kind ==", "--output", "json")

    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"] == {
        "code": "TAPE-1006",
        "reason": "expected an expression, found the end of the text",
        "line": 1,
        "column": 8,
        "offset": 7,
    }
    assert isinstance(cel("check", "kind ==").exception, InvalidPredicate)


def test_check_warns_of_an_expression_that_never_matches() -> None:
    assert "never matches" in cel("check", "seq + 1").stdout


def test_eval_needs_no_entry_for_an_expression_without_variables() -> None:
    assert cel("eval", "1 + 2").stdout.strip() == "3"
    assert cel_json("eval", 'duration("90m")') == {"value": "5400s"}


def test_eval_reads_an_entry_from_a_file(entry_file: str) -> None:
    assert cel_json("eval", 'payload.amount > 100.0 && kind == "effect"', "--entry", entry_file) == {"value": True}
    assert cel_json("eval", 'type == "effect.confirmed" && tenant == "acme"', "--entry", entry_file) == {"value": True}


def test_eval_reads_an_entry_from_standard_input_with_its_payload_as_text() -> None:
    text = json.dumps({"payload_json": '{"n": 3}'})

    assert cel_json("eval", "payload.n * 2", "--entry", "-", text=text) == {"value": 6}


def test_eval_of_an_error_says_why_and_fails(entry_file: str) -> None:
    done = cel("eval", "payload.nope", "--entry", entry_file)

    assert done.exit_code == 1
    assert "no such key: 'nope'" in done.stderr
    assert cel_json("eval", "payload.nope", "--entry", entry_file)["error"]["column"] == 8


def test_explain_shows_what_decided(entry_file: str) -> None:
    done = cel("explain", "payload.amount > 200.0 && payload.x", "--entry", entry_file)

    assert "payload.amount > 200.0  →  false   ◄ decided" in done.stdout
    assert "payload.x  →  not evaluated" in done.stdout
    assert cel_json("explain", "payload.amount > 200.0", "--entry", entry_file)["matched"] is False


async def _append(url: str, payload: str) -> None:
    async with open_database(url) as database:
        await Journal(database).append([Draft(subject="/tape/effect/confirmed/x", payload_json=payload)])


@pytest.fixture
async def store(sqlite_url: str) -> str:
    for payload in ('{"n": 1}', '{"n": 2}'):
        await _append(sqlite_url, payload)
    return sqlite_url


def test_eval_reads_an_entry_from_a_store(store: str) -> None:
    assert cel_json("eval", "payload.n", "--seq", "1", "--store", store) == {"value": 1}
    assert cel_json("eval", "payload.n", "--seq", "2", "--store", store) == {"value": 2}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["eval", "payload.n"], InvalidInput),
        (["eval", "payload.n", "--entry", "missing.json"], InvalidInput),
        (["eval", "payload.n", "--entry", "x", "--seq", "1"], InvalidInput),
        (["eval", "payload.n", "--seq", "-1"], InvalidInput),
        (["eval", "payload.n", "--seq", "3"], NotFound),
        (["eval", "payload.n", "--seq", "99"], CursorBeyondHead),
    ],
)
def test_an_entry_that_cannot_be_read_is_one_sentence(store: str, arguments: list[str], error: type[TapeError]) -> None:
    done = cel(*arguments, "--store", store)

    assert type(done.exception) is error


@pytest.mark.parametrize("content", ["{broken", '{"sbject": "x"}', '{"seq": "one"}', "[]"])
def test_a_file_that_is_no_entry_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "entry.json"
    path.write_text(content)

    done = cel("eval", "payload.n", "--entry", str(path))

    assert isinstance(done.exception, InvalidInput)
    assert "is not an entry" in str(done.exception)
