"""DBOS: steps of workflows in SQLite or PostgreSQL; runs in the peers' environment."""

from __future__ import annotations

import sys

from dbos import DBOS

from bench.workflow_load import load_of, report, timed


@DBOS.step()
def act(number: int) -> dict[str, int]:
    """The step: nothing but its record costs anything."""
    return {"n": number}


@DBOS.workflow()
def flow(steps: int) -> list[float]:
    """A workflow of so many steps."""
    return timed(act, steps)


def main(url: str, *arguments: str) -> None:
    """Measure on a system database, with the settings that DBOS gives it."""
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    DBOS.launch()

    def run_all(workflows: int, steps: int) -> list[list[float]]:
        handles = [DBOS.start_workflow(flow, steps) for _ in range(workflows)]
        return [handle.get_result() for handle in handles]

    report(load_of(list(arguments)), run_all)
    DBOS.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
