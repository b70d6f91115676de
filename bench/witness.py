"""What the witness costs: the same appends with and without one, in turns, on connections that are open already."""

from __future__ import annotations

from bench.lab import TapeServer
from bench.options import NAMES, Options
from bench.table import Table
from bench.tls import LOADS, alternate, compare

TITLE = "Witness: durable appends with the last entry recorded outside of the database"


def run(options: Options) -> list[Table]:
    """Each load on each store: two servers, one with a witness and one without, loaded in turns."""
    rows = []
    for kind in options.stores:
        for load in LOADS[:2]:
            options.report(f"{TITLE}: {NAMES[kind]}, {load.name}")
            with TapeServer(options.lab.fresh_store(kind), "--witness", "off") as without:
                with TapeServer(options.lab.fresh_store(kind)) as witnessed:
                    turns = options.lab.run(alternate(options, without, witnessed, load))
            rows += compare(f"{NAMES[kind]}: {load.name}", ("without a witness", "with a witness"), *turns)
    notes = [
        "with ÷ without is the median of the ratios of neighbouring turns, each of half a second",
        "CPU is that of server and client together; the aim is less than 1.03×",
    ]
    columns = ["", "entries/s", "p50 ms", "p99 ms", "with ÷ without", "CPU µs per entry", "with ÷ without"]
    return [Table(TITLE, columns, rows, notes)]
