"""An event loop that is kept busy shows in the metrics and in the log."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from tape.base.telemetry.metrics import Metrics
from tape.base.telemetry.throttle import ThrottledLog
from tape.server.loop_lag import LoopLag
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import call


def compute_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def value(server: Server, name: str) -> float:
    metrics = (await call(server.http_address, "GET", "/metrics")).body.decode()
    return float(next(line for line in metrics.splitlines() if line.startswith(name)).rpartition(" ")[2])


async def test_a_blocked_loop_is_measured_and_logged_with_what_ran(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tape.server.loop_lag"):
        async with Server(settings_for(sqlite_url)) as server:
            async with asyncio.timeout(60):
                while "compute_for" not in caplog.text:
                    compute_for(0.6)
                    await value(server, "tape_loop_lag_seconds_count")
            assert await value(server, "tape_loop_lag_seconds_sum") > 0.25
    line = next(record.getMessage() for record in caplog.records if "compute_for" in record.getMessage())
    assert "the event loop was blocked for" in line
    assert "test_loop_lag.py" in line


async def test_a_loop_with_nothing_to_do_is_measured_too() -> None:
    metrics = Metrics()
    lag = LoopLag(metrics)
    lag.start()
    async with asyncio.timeout(60):
        while b"tape_loop_lag_seconds_count 2.0" not in metrics.render():
            await asyncio.sleep(0)
    lag.close()


def test_a_throttled_log_writes_one_line_per_interval_and_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = ThrottledLog(logging.getLogger("throttled"), 1.0, lambda: now)
    for now in (0.0, 0.5, 0.9, 1.0, 1.5, 2.5):
        log.warn("refused %s", now)
    assert [record.getMessage() for record in caplog.records] == [
        "refused 0.0",
        "refused 1.0 (2 similar since the last line)",
        "refused 2.5 (1 similar since the last line)",
    ]
