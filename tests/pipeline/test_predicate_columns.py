"""Closure, column and push-down of one predicate are equal, over random predicates and payloads."""

from __future__ import annotations

import json
import random

import pytest
from pyspark.sql import SparkSession

from tape.cel import compile_predicate
from tape.errors import PipelineInput
from tape.model.entry import Draft
from tape.pipeline.predicate_columns import NotAColumn, column_of, matching
from tests.cel.generator import Generator
from tests.pipeline.conftest import fill
from tests.pipeline.test_journal_source import entries_in, numbers, read, selected

PATHS = ("payload.i", "payload.d", "payload.s", "payload.t", "payload.n", "payload.m.k", "payload.l[0]", 'payload["s"]')
LITERALS = ('"abc"', '""', '"effect"', '"v"', "0", "1", "42", "-5", "1.5", "100.5", "true", "false", "null", "2.5")
TEXTS = ("kind", "tenant", "subject", "run_id", "type", "user")
NAMES = ('"order"', '"t1"', '"/tape/order/paid/1"', '"run-1"', '"order.paid"', '"u0"', '""')


class Predicates:
    """Random predicates of the kind that can be a column."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self, depth: int = 3) -> str:
        pick = self._random.choice
        choice = self._random.random()
        if depth and choice < 0.45:
            sign = pick(("&&", "||", "&&"))
            return f"({self.make(depth - 1)} {sign} {self.make(depth - 1)})"
        if depth and choice < 0.55:
            return f"!{self.make(depth - 1)}"
        if depth and choice < 0.6:
            return f"({self.make(depth - 1)} ? {self.make(depth - 1)} : {self.make(depth - 1)})"
        return pick((self._payload, self._payload, self._text, self._number, self._string, self._member, self._has))()

    def _payload(self) -> str:
        pick = self._random.choice
        operator = pick(("==", "!=", "<", "<=", ">", ">="))
        literal = pick(LITERALS if operator in ("==", "!=") else ('"abc"', '"b"', "1", "42", "1.5", "-2.25"))
        return f"{pick(PATHS)} {operator} {literal}" if pick((True, False)) else f"{literal} {operator} {pick(PATHS)}"

    def _text(self) -> str:
        pick = self._random.choice
        return f"{pick(TEXTS)} {pick(('==', '!=', '<', '>='))} {pick((*NAMES, *TEXTS))}"

    def _number(self) -> str:
        pick = self._random.choice
        return (
            f"{pick(('global_seq', 'seq', 'schema_version', 'ts_ms'))} {pick(('==', '<', '>', '<='))} {pick(range(99))}"
        )

    def _string(self) -> str:
        pick = self._random.choice
        method, part = pick(("startsWith", "endsWith", "contains")), pick(('"a"', '"/tape/order/"', '"1"', '""', '"é"'))
        return f"{pick((*TEXTS, *PATHS))}.{method}({part})"

    def _member(self) -> str:
        pick = self._random.choice
        if pick((True, False)):
            return f"{pick(PATHS)} in [{pick(LITERALS)}, {pick(LITERALS)}]"
        return f"{pick(TEXTS)} in [{pick(NAMES)}, {pick(NAMES)}]"

    def _has(self) -> str:
        return f"has({self._random.choice(('payload.i', 'payload.m.k', 'payload.l.x', 'payload.m.j'))})"


def predicates(count: int, seed: int = 1) -> list[str]:
    """So many predicates that compile."""
    maker, found = Predicates(seed), []
    while len(found) < count:
        text = maker.make()
        try:
            compile_predicate(text)
        except Exception:
            continue  # such as an ordering of a bool and a string, which the checker refuses
        found.append(text)
    return found


@pytest.fixture
def varied(store_url: str) -> str:
    """A journal with payloads of every shape."""
    generator, pick = Generator(5), random.Random(5).choice
    odd = ['{"s": 1, "s": "abc"}', '{"i": 1e400}', '{"i": 18446744073709551615}', "[1]", "7", "null", '{"m": []}']
    payloads = [json.dumps(generator.payload()) for _ in range(90)] + odd
    drafts = [
        Draft(
            subject=f"/tape/{pick(('order', 'refund'))}/{pick(('paid', 'made'))}/{number % 4}",
            payload_json=payload,
            run_id=f"run-{number % 3}",
            tenant=f"t{number % 3}",
            user=pick(("u0", "")),
        )
        for number, payload in enumerate(payloads)
    ]
    fill(store_url, drafts)
    return store_url


def test_closure_column_and_push_down_are_equal(spark: SparkSession, varied: str) -> None:
    entries, texts = entries_in(varied), predicates(60)
    wanted = {}
    for text in texts:
        matches = compile_predicate(text).matches
        wanted[text] = [entry.global_seq for entry in entries if matches(entry)]
        assert selected(varied, where=text) == wanted[text], text
    columns = [column_of(text).alias(f"p{index}") for index, text in enumerate(texts)]
    rows = read(spark, varied).select("global_seq", *columns).orderBy("global_seq").collect()
    for index, text in enumerate(texts):
        assert [row.global_seq for row in rows if row[f"p{index}"]] == wanted[text], text


def test_the_push_down_of_many_predicates_is_equal_to_their_closure(varied: str) -> None:
    entries = entries_in(varied)
    for text in predicates(120, seed=2):
        matches = compile_predicate(text).matches
        assert selected(varied, where=text) == [e.global_seq for e in entries if matches(e)], text


@pytest.mark.parametrize(
    "text",
    [
        'payload.s.matches("a+")',
        "payload.l.exists(x, x == 2)",
        "size(payload.s) > 2",
        "payload.i + 1 == 2",
        "payload.i > 9007199254740993",
        '"a" in payload.l',
        "payload.i == payload.d",
        "int(ts_ms) > 3",
    ],
)
def test_what_cannot_be_a_column_says_so(spark: SparkSession, text: str) -> None:
    with pytest.raises(NotAColumn):
        column_of(text)


def test_columns_and_the_closure_share_the_work(spark: SparkSession, varied: str) -> None:
    text = 'kind == "order" && payload.l.exists(x, x == 2)'
    matches = compile_predicate(text).matches
    frame = matching(read(spark, varied), text)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter" in plan
    assert "MapInArrow" in plan
    assert numbers(frame) == [entry.global_seq for entry in entries_in(varied) if matches(entry)]


def test_a_column_that_a_predicate_needs_is_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineInput, match="needs the columns payload_json, tenant"):
        matching(spark.range(3), 'payload.x == 1 && tenant == "t"')
