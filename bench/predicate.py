"""How fast are predicates? Six realistic ones, beside three other implementations of CEL.

Every implementation runs in a process of its own and in several rounds by turns; the best of each
counts. The ratio is how many times faster Tape is in the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.options import Options
from bench.table import Table

TITLE = "Predicates: six realistic ones beside other implementations of CEL"

SCRIPT = Path(__file__).with_name("predicate_contenders.py")
PEERS_PYTHON = Path(".venv-bench/bin/python")
# Google's implementation is the oracle of our tests and lives in our environment; the others do not.
CONTENDERS = {
    "tape": Path(sys.executable),
    "cel-expr-python": Path(sys.executable),
    "common-expression-language": PEERS_PYTHON,
    "cel-python": PEERS_PYTHON,
}
PREDICATES: dict[str, tuple[str, list[str]]] = {
    "amount and subject": (
        'payload.amount > 100.0 && subject.startsWith("/tape/effect/")',
        ["payload", "subject"],
    ),
    "kind and status": (
        'kind == "effect" && payload.status in ["failed", "timeout"]',
        ["kind", "payload"],
    ),
    "an item of many": (
        'payload.items.exists(i, i.qty > 3 && i.sku == "c-3")',
        ["payload"],
    ),
    "subject by pattern": (
        'subject.matches("^/tape/(effect|run)/[a-z]+/pay-[0-9]+$")',
        ["subject"],
    ),
    "value changed": (
        "payload.value.value_json != prev_value_json && double(payload.value.value_json) > 100.0",
        ["payload", "prev_value_json"],
    ),
    "server errors": (
        'has(payload.error) && payload.error.code >= 500 && !(tenant in ["test", "demo"]) || payload.retries > 3',
        ["payload", "tenant"],
    ),
}
MEASURES = {
    "parsed": "evaluations per second, payload parsed before",
    "whole": "evaluations per second, payload parsing included",
    "compile": "microseconds to compile the text",
}


def entries() -> list[dict[str, Any]]:
    """Sixteen entries of about 400 bytes, alike and different as those of one journal are."""
    made = []
    for number in range(16):
        payload = {
            "amount": 20.5 * number,
            "status": ("ok", "failed", "timeout", "pending")[number % 4],
            "customer": f"customer-{number}@example.com",
            "items": [{"sku": f"c-{item}", "qty": (number + item) % 6, "price": 9.99} for item in range(4)],
            "value": {"value_json": str(30 * number), "version": number},
            "prev_value_json": str(30 * (number - number % 2)),
            "retries": number % 5,
            **({"error": {"code": 400 + 20 * number, "message": "upstream said no"}} if number % 3 == 0 else {}),
        }
        made.append(
            {
                "global_seq": number + 1,
                "run_id": f"run-{number}",
                "seq": number,
                "kind": "effect" if number % 4 else "run",
                "subject": f"/tape/{'effect' if number % 4 else 'run'}/confirmed/pay-{number}",
                "payload_json": json.dumps(payload),
                "schema_version": 1,
                "trace_id": "",
                "span_id": "",
                "parent_span_id": "",
                "ts_ms": 1_700_000_000_000 + number,
                "tenant": ("acme", "test")[number % 2],
                "user": "ann",
                "session": "s1",
            }
        )
    return made


def run_contender(name: str, seconds: float) -> list[dict[str, Any]]:
    """One round of one implementation."""
    cases = [{"text": text, "variables": variables, "entries": entries()} for text, variables in PREDICATES.values()]
    task = json.dumps({"contender": name, "seconds": seconds, "cases": cases})
    done = subprocess.run(
        [CONTENDERS[name], SCRIPT], input=task, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def measured(rounds: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """The best of some rounds of every implementation that is installed."""
    present = [name for name, python in CONTENDERS.items() if python.exists()]
    best: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for name in present:
            found = run_contender(name, seconds)
            for mine, new in zip(best.setdefault(name, found), found, strict=True):
                mine["parsed"] = max(mine["parsed"], new["parsed"])
                mine["whole"] = max(mine["whole"], new["whole"])
                mine["compile"] = min(mine["compile"], new["compile"])
    return best


def table(measure: str, best: dict[str, list[dict[str, Any]]], notes: list[str]) -> Table:
    """One measure of all implementations, with how many times faster Tape is."""
    rows = []
    for position, label in enumerate(PREDICATES):
        ours = best["tape"][position][measure]
        cells = []
        for name, results in best.items():
            theirs = results[position][measure]
            faster = theirs / ours if measure == "compile" else ours / theirs
            cells.append(f"{theirs:,.0f}" if name == "tape" else f"{theirs:,.0f} (×{faster:,.1f})")
        rows.append([label, *cells])
    return Table(f"Predicates: {MEASURES[measure]}", ["predicate", *best], rows, notes)


def run(options: Options) -> list[Table]:
    """Three tables; the last one says so if implementations disagree or are missing."""
    options.report(TITLE)
    best = measured(rounds=options.scaled(3, 1), seconds=options.scaled(0.2, 0.01))
    notes = ["in brackets: how many times faster Tape is", *_disagreements(best)]
    notes += [f"{name} is not installed: make .venv/.bench" for name in CONTENDERS if name not in best]
    return [table(measure, best, notes if measure == "compile" else []) for measure in MEASURES]


def _disagreements(best: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [
        f"{name} gives other results for {label!r}: {text}"
        for position, (label, (text, _)) in enumerate(PREDICATES.items())
        for name, results in best.items()
        if results[position]["results"] != best["tape"][position]["results"]
    ]
