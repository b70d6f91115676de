"""How long it takes to prove that a journal is what was written."""

from __future__ import annotations

import json
import subprocess
import time

from bench.lab import TAPE
from bench.options import NAMES, Options
from bench.replay import ENTRIES, QUICK_ENTRIES
from bench.table import Table, count

TITLE = "Verify: the hash chain of a whole journal"
TIMEOUT_S = 600


def run(options: Options) -> list[Table]:
    """`tape verify` as a user runs it, its start included."""
    entries = options.scaled(ENTRIES, QUICK_ENTRIES)
    rows = []
    for kind in options.stores:
        options.report(f"{TITLE}: filling {NAMES[kind]} with {entries:,} entries")
        store = options.lab.filled_store(kind, entries)
        options.report(f"{TITLE}: {NAMES[kind]}")
        command = [TAPE, "verify", "--store", store, "--output", "json"]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        seconds = time.perf_counter() - began
        report = json.loads(done.stdout)
        assert report["ok"]
        assert report["entries"] == entries
        rows.append([NAMES[kind], count(entries), f"{seconds:.1f}", count(entries / seconds), "well under 60 s"])
    return [Table(TITLE, ["", "entries", "seconds", "entries/s", "aim"], rows)]
