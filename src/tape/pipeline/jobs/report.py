"""`report`: an HTML page with plots about a time window of the journal."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tape.base.clock import now_ms
from tape.errors import PipelineInput
from tape.pipeline.report.facts import Facts
from tape.pipeline.report.page import render
from tape.pipeline.report.queries import find_facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def report(
    spark: SparkSession, store: str, page: Path, *, lake: str = "", since: str = "24h", until: str = "now"
) -> Facts:
    """Write the page about a window and return its data. The file is replaced atomically."""
    now = now_ms()
    until_ms = moment_of("--until", until, now)
    since_ms = moment_of("--since", since, until_ms)
    if since_ms >= until_ms:
        raise PipelineInput(f"--since {since!r} is not before --until {until!r}; the window would be empty.")
    if not page.parent.is_dir():
        raise PipelineInput(f"--page {str(page)!r}: there is no folder {str(page.parent)!r}.")
    facts = find_facts(spark, store, lake, since_ms, until_ms)
    unfinished = page.with_name(f".{page.name}.{os.getpid()}")
    unfinished.write_text(render(facts), encoding="utf-8")
    unfinished.replace(page)
    return facts


def moment_of(option: str, text: str, now_ms: int) -> int:
    """Parse a time to ms: `now`, an age (`90m`, `24h`, `7d`), or a time such as 2026-01-31T12:00Z."""
    if text == "now":
        return now_ms
    if ago := re.fullmatch(r"(\d+)([smhd])", text):
        return now_ms - int(ago[1]) * _UNITS[ago[2]]
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise PipelineInput(
            f"{option} is {text!r}; use now, an age (90m, 24h, 7d), or a time such as 2026-01-31T12:00Z."
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("report")
