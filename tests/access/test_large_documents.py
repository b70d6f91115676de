"""Documents and JSON bodies that are large or deep: parsed in linear time, rejected beyond the limits."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.documents.document import MAX_BYTES, MAX_PROBLEMS, Document
from tape.documents.yaml import load
from tape.errors import DocumentTooLarge, InvalidDocument, InvalidJson
from tape.model.json_depth import check_depth
from tape.server.server import Server
from tests.web import call

PLAYBOOK = "apiVersion: tape/v1\nkind: Playbook\nmetadata: {path: big}\n"
# CPU seconds; the first version needed 6.6 for the first text and 3.8 for the second.
MAX_CPU_S = 1.5


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    settings = Settings(store=f"sqlite:{tmp_path / 'tape.db'}", listen="127.0.0.1:0", http_listen="127.0.0.1:0")
    async with Server(settings) as server:
        yield server


def test_45_kib_of_yaml_are_parsed_in_linear_time() -> None:
    text = "".join(f"k{n}: [1, two, {{three: 3}}]\n" for n in range(1_500))
    begin = time.thread_time()
    value, lines = load(text)
    assert time.thread_time() - begin < MAX_CPU_S
    assert len(value) == 1_500
    assert lines[("k1499", 2, "three")] == 1_500


@pytest.mark.parametrize("unit", ["[", "{", "- ", "? ", "[\n", "{a: ", "[{"])
def test_a_text_of_opening_brackets_is_rejected_at_once(unit: str) -> None:
    begin = time.thread_time()
    with pytest.raises(InvalidDocument, match="more than 100 levels"):
        load(unit * 5_000)
    assert time.thread_time() - begin < MAX_CPU_S


def test_an_alias_stands_for_the_latest_anchor_before_it_and_not_for_a_value_around_it() -> None:
    assert load("[&a 1, &b [*a], &a 2, *b, *a]")[0] == [1, [1], 2, [1], 2]
    with pytest.raises(InvalidDocument, match="the alias 'a' is inside the value it stands for"):
        load("&a [*a]")


def test_a_number_of_many_digits_is_rejected() -> None:
    with pytest.raises(InvalidDocument, match="line 2, b: is a number of more than 1000 digits"):
        load("a: 1\nb: " + "1" * 5_000)


def test_a_document_with_many_problems_reports_the_first_hundred() -> None:
    document = Document(PLAYBOOK + "".join(f"kind{n}: 1\n" for n in range(10_000)))
    with pytest.raises(InvalidDocument) as raised:
        document.fields("kinds")
    assert len(raised.value.problems) == MAX_PROBLEMS


@pytest.mark.parametrize(
    "text", [b"[" * 101 + b"]" * 101, b"[" * 100_000, b'{"a":' * 150 + b"1" + b"}" * 150, b'["\\"[", ' * 101 + b"1"]
)
def test_json_of_more_than_100_levels_is_rejected_before_it_is_decoded(text: bytes) -> None:
    with pytest.raises(InvalidJson, match="nested more than 100 levels deep"):
        check_depth(text)


@pytest.mark.parametrize(
    "text", [b"[" * 100 + b"]" * 100, b"[],{}" * 1_000, b'["' + b"[" * 500 + b'"]', b'"' + b'\\"[' * 100_000]
)
def test_json_of_100_levels_passes_whatever_its_width_and_its_strings(text: bytes) -> None:
    check_depth(text)


async def test_a_document_above_the_limit_names_its_size_and_the_limit(server: Server) -> None:
    content = PLAYBOOK + "#" * MAX_BYTES
    answer = await call(server.http_address, "POST", "/api/catalog/register", {"content": content})
    assert answer.status == 413
    assert f"the document has {len(content)} bytes; the limit is 262144" in str(answer.json())
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        with pytest.raises(DocumentTooLarge, match="the limit is 262144") as raised:
            await client.register_resource(content)
    assert raised.value.status == "INVALID_ARGUMENT"


async def test_a_deep_body_is_a_problem_of_the_request_at_every_route(server: Server) -> None:
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    for path, body in (
        ("/api/execute", {"path": "a", "payload": {"deep": deep}}),
        ("/api/catalog/register", {"content": "a", "deep": deep}),
        ("/api/catalog/register", {"content": "[" * 5_000}),
        ("/v1/events/list", {"deep": deep}),
    ):
        answer = await call(server.http_address, "POST", path, body)
        assert answer.status in (400, 422), path
