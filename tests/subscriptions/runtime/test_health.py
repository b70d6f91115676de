"""Health of a remote runtime: what is a reason for a restart, and what is only a reason to wait."""

from __future__ import annotations

import json

import pytest
import urllib3
from prometheus_client import CollectorRegistry, Counter

from tape.base.telemetry.health_server import HealthServer
from tape.errors import InvalidConfig, ServerUnreachable
from tape.subscriptions.runtime.health import SILENT_S, STUCK_S, RuntimeHealth
from tests.subscriptions.runtime.test_flow_limits import Clock


def test_an_event_loop_that_stands_still_is_a_reason_for_a_restart_and_an_outage_is_none() -> None:
    clock = Clock()
    health = RuntimeHealth(clock)
    health.server_failed(ServerUnreachable("refused"))
    clock.now += STUCK_S
    assert health.not_alive() == {}
    assert health.not_ready() == {"server": "refused", "runtime": "starting"}
    clock.now += 1
    assert health.not_alive() == {"event_loop": "has not run for 61 s"}
    assert "event_loop" in health.not_ready()


def test_a_server_that_is_silent_is_unreachable_before_its_request_fails() -> None:
    clock = Clock()
    health = RuntimeHealth(clock)
    health.server_answered()
    clock.now += SILENT_S
    assert "server" not in health.not_ready()
    clock.now += 1
    assert health.not_ready()["server"] == "has not answered for 11 s"
    health.server_answered()
    assert "server" not in health.not_ready()


def test_the_health_server_answers_with_a_status_and_reasons_without_passwords() -> None:
    registry, problems = CollectorRegistry(), {"source": "nats://me:secret@nats:4222 cannot be reached"}
    Counter("tape_tests", "A counter", registry=registry).inc()
    server = HealthServer(registry, "127.0.0.1", 0, not_ready=lambda: problems)
    try:

        def get(path: str) -> tuple[int, str]:
            answer = urllib3.request("GET", f"http://127.0.0.1:{server.port}{path}")
            return answer.status, answer.data.decode()

        status, text = get("/readyz")
        assert status == 503
        assert "cannot be reached" in json.loads(text)["reasons"]["source"]
        assert "secret" not in text
        problems.clear()
        assert get("/readyz")[0] == get("/livez")[0] == get("/healthz")[0] == 200
        assert "tape_tests_total 1.0" in get("/metrics")[1]
        assert get("/backlog")[0] == get("/anything/else")[0] == 404, "this process has no backlog"
        with pytest.raises(InvalidConfig, match="cannot be listened on"):
            HealthServer(registry, "127.0.0.1", server.port)
    finally:
        server.close()
