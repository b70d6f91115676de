"""The bench runs and answers; how fast anything is, is not a test's business."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--quick", "--store", "sqlite", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False)


@pytest.fixture(scope="module")
def questions_without_peers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a run prints, and the Markdown that it writes."""
    page = tmp_path_factory.mktemp("bench") / "performance.md"
    done = run_bench(
        "processes",
        "tls",
        "witness",
        "latency",
        "ledgers",
        "durable",
        "reactions",
        "dispatch",
        "replay",
        "live",
        "stream",
        "subjects",
        "predicate",
        "session",
        "relay",
        "ingress",
        "verify",
        "damage",
        "routing",
        "pools",
        "weight",
        "startup",
        "beside",
        "--markdown",
        str(page),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, page.read_text()


@pytest.mark.parametrize(
    "row",
    [
        "SQLite: append through the SDK",
        "SQLite: append by gRPC",
        "by gRPC, server CPU µs",
        "SQLite: 64 callers, one entry a call",
        "SQLite: 20 Follows with a hostile predicate",
        "SQLite: 64 callers, 200 bytes, TLS 1.3",
        "SQLite: 1 caller, 200 bytes, with a witness",
        "SQLite: a flood on pool iot, its worker at full speed",
        "SQLite: INSERT, COMMIT",
        "SQLite: BeginEffect, CompleteEffect, 1 caller",
        "Tape, server on SQLite: decision",
        "Tape, in the process, SQLite: effect",
        "DBOS, in the process, SQLite: step",
        "Restate, server: ctx.run",
        "p50 ms at 10,000",
        "SQLite: 100 reactions",
        "Tape on SQLite",
        "Tape on SQLite, def, on threads",
        "SQLite: rate_limit_per_s 1,000,000",
        "SQLite: SubscribeBySubject, one by one",
        "SQLite: subscribe_by_subject of the SDK",
        "SQLite: Follow, in the batches that travel",
        "delivered/s",
        "memory of an idle reader",
        "trie, subjects/s",
        "subject by pattern",
        "the tape, JsonlBackend",
        "SessionTape.load",
        "NATS JetStream, 64 runs at once",
        "well under 60 s",
        "bare SQLite",
        "proof of a bearer token",
        "SQLite: POST /ingress, HMAC and directives",
        "SQLite: batch of 100, summary",
        "tape append --help",
        "SQLite: tape serve, existing store",
    ],
)
def test_every_question_answers_with_its_table(questions_without_peers: tuple[str, str], row: str) -> None:
    printed, page = questions_without_peers
    assert row in printed
    assert row in page


def test_the_markdown_names_the_machine_first(questions_without_peers: tuple[str, str]) -> None:
    _, page = questions_without_peers
    machine, _, tables = page.partition("\n## ")
    for fact in ("- CPU: ", "- memory: ", "- disk: ", "- kernel: ", "- Python: ", "- SQLite: ", "- date: "):
        assert fact in machine
    assert tables


def test_growth_is_a_table_and_a_page_of_plots_that_needs_no_other_file() -> None:
    done = run_bench("growth")
    assert done.returncode == 0, done.stderr
    for row in ("Calls from 64 callers: append", "p50: 8 rare entries", "by the number of callers, p50: BeginRun"):
        assert row in done.stdout
    path = "build/quick/growth.html"
    assert f"plots: {path}" in done.stdout
    page = (ROOT / path).read_text()
    plots = [svg.read_text() for svg in (ROOT / path).parent.glob("growth-sqlite-*.svg")]
    assert len(plots) == 10
    assert all(svg in page for svg in plots)
    assert not re.search(r"(src|href|url)\b *[=(]", page)


def test_an_unknown_question_is_answered_with_the_known_ones() -> None:
    done = run_bench("apend")
    assert done.returncode == 2
    assert "unknown: apend; known are append, " in done.stderr
