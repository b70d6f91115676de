"""Durable steps: how many a workflow makes a second and what one takes, beside DBOS and Restate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

from bench.lab import TapeServer
from bench.options import NAMES, Options
from bench.peers.durable import Figures, restate_server, workflows
from bench.peers.servers import ROOT, NotInstalled
from bench.table import NOTHING, Table, count, milliseconds
from bench.workflow_load import Load

TITLE = "Durable steps: runs of Tape beside DBOS and Restate"
FULL, QUICK = Load(1_000, 16, 50), Load(20, 4, 5)


class Contender(NamedTuple):
    """What is measured, how durable a step is when it returns, and how it is measured."""

    name: str
    durability: str
    measure: Callable[[], Figures]


def run(options: Options) -> list[Table]:
    """Every contender in turn, several rounds."""
    load = options.scaled(FULL, QUICK)
    rounds = options.scaled(3, 1)
    contenders = _contenders(options, load)
    measured: dict[str, list[Figures]] = {each.name: [] for each in contenders}
    missing: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for each in contenders:
            if each.name in missing:
                continue
            options.report(f"{TITLE}: round {number}, {each.name}")
            try:
                measured[each.name].append(each.measure())
            except NotInstalled as error:
                missing[each.name] = str(error)
    rows = [_row(each, measured[each.name], missing.get(each.name, "")) for each in contenders]
    many = f"{load.workflows} workflows"
    columns = ["", "steps/s", "p50 ms", "p99 ms", f"steps/s, {many}", f"p50 ms, {many}", "a step is done when"]
    return [Table(TITLE, columns, rows, _notes(load, rounds))]


def _notes(load: Load, rounds: int) -> list[str]:
    return [
        f"one workflow of {load.steps:,} steps, then {load.workflows} at once with {load.steps_each} steps each; a step"
        " returns a small object and does nothing else",
        f"the middle of {rounds} round{'s' * (rounds > 1)}, all contenders in turns, each client a process of its own",
        "a decision of Tape records a result, as a step of DBOS and Restate does; an effect is also on record before it"
        " acts, so that one whose process died is known, checked and never done twice in silence",
    ]


def _row(contender: Contender, figures: list[Figures], missing: str) -> list[str]:
    if missing or not figures:
        return [f"{contender.name}: {missing or 'no figures'}", *[NOTHING] * 5, contender.durability]
    middle = {key: median(each[key] for each in figures) for key in figures[0]}
    return [
        contender.name,
        count(middle["one_rate"]),
        milliseconds(middle["one_p50_ms"]),
        milliseconds(middle["one_p99_ms"]),
        count(middle["many_rate"]),
        milliseconds(middle["many_p50_ms"]),
        contender.durability,
    ]


# ── contenders ───────────────────────────────────────────────────────────────────────────────────


def _contenders(options: Options, load: Load) -> list[Contender]:
    found: list[Contender] = []
    kinds = {"decision": "1 synced commit", "effect": "2 synced commits, before and after"}
    for store in options.stores:
        for kind, durability in kinds.items():
            found.append(
                Contender(
                    f"Tape, server on {NAMES[store]}: {kind}",
                    durability,
                    lambda store=store, kind=kind: _served(options, store, kind, load),  # type: ignore[misc]
                )
            )
        if store == "sqlite" and find_spec("tape.embedded") is not None:
            for kind, durability in kinds.items():
                found.append(
                    Contender(
                        f"Tape, in the process, SQLite: {kind}",
                        durability,
                        lambda kind=kind: _client(options.lab.fresh_store("sqlite"), kind, load),  # type: ignore[misc]
                    )
                )
        settings = "SQLite's rollback journal, synchronous=FULL" if store == "sqlite" else "synchronous_commit=on"
        found.append(
            Contender(
                f"DBOS, in the process, {NAMES[store]}: step",
                f"1 synced commit ({settings})",
                lambda store=store: _dbos(options, store, load),  # type: ignore[misc]
            )
        )
    found.append(
        Contender(
            "Restate, server: ctx.run", "1 synced append (its log's fsync is on)", lambda: _restate(options, load)
        )
    )
    return found


def _served(options: Options, store: str, kind: str, load: Load) -> Figures:
    with TapeServer(options.lab.fresh_store(store)) as server:
        return _client(server.url, kind, load)


def _client(url: str, kind: str, load: Load) -> Figures:
    command = [sys.executable, "-m", "bench.durable_client", url, kind, *map(str, load)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bench.durable_client: {done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _dbos(options: Options, store: str, load: Load) -> Figures:
    url = options.lab.fresh_store(store)
    if store == "sqlite":
        url = f"sqlite:///{url.removeprefix('sqlite:')}"
    return workflows("bench.peers.durable_dbos", url, *load)


def _restate(options: Options, load: Load) -> Figures:
    return workflows("bench.peers.durable_restate", restate_server(), options.lab.fresh_folder(), *load)
