"""All reactors together: once, in loops, through an outage, and to their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tape import reactors
from tape.client import TapeClient
from tape.durable.server_retry import call_with_retry
from tape.effect import register_compensator
from tape.errors import ServerUnreachable
from tape.proto import tape_pb2 as pb
from tape.reactors import compact_once, run_compactor, run_reactors
from tape.reactors.connection import for_each
from tape.reactors.loop import repeat
from tests.reactors.scene import begin, fail, outcomes, owe, send, status_of
from tests.services import ServerProcess, wait_for


def test_once_makes_one_pass_of_each_reactor(client: TapeClient, url: str) -> None:
    done: list[str] = []
    register_compensator("undo", lambda: done.append("undone"))
    failed, lost = begin(client), begin(client, lease_owner="gone", lease_ttl_ms=1)
    owe(client, failed, "undo")
    fail(client, failed)
    client.set_timer(run_id=failed, fire_at_ms=1, kind="k")
    wait_for(lambda: client.list_runs_to_recover().runs, "the lease to run out")
    ticks: list[dict[str, Any]] = []
    run_reactors(
        url=url,
        redrive_fn=lambda run: client.end_run(run_id=run.run_id),
        compact=True,
        compact_hot_window_s=-10,
        once=True,
        on_tick=ticks.append,
    )
    (tick,) = ticks
    assert {name: outcomes(reports) for name, reports in tick.items()} == {
        "recover": ["recovered"],
        "reconcile": [],
        "timers": ["over"],
        "compensations": ["compensated"],
        "compact": ["compacted", "compacted"],
    }
    assert (done, status_of(client, lost)) == (["undone"], "TERMINAL")


def test_reactors_can_be_left_out(url: str) -> None:
    ticks: list[dict[str, Any]] = []
    run_reactors(url=url, reconcile=False, once=True, on_tick=ticks.append)
    assert ticks == [{"compensations": []}]  # there is nothing to carry runs on with


def test_reactors_outlive_a_server_that_goes_away(sqlite_url: str) -> None:
    done: list[str] = []
    register_compensator("undo", lambda: done.append("undone"))
    stop = threading.Event()
    with ServerProcess(sqlite_url) as server:
        address = server.url.removeprefix("tape://")
        loop = threading.Thread(target=run_reactors, kwargs={"url": server.url, "interval_s": 0.05, "stop": stop})
        loop.start()
        for times in (1, 2):
            with TapeClient(server.url) as client:
                call_with_retry(client.head)
                run_id = begin(client)
                owe(client, run_id, "undo")
                fail(client, run_id)
                filters = {"run_id": run_id}
                wait_for(lambda filters=filters: not client.list_obligations(**filters).obligations, f"pass {times}")
                assert len(done) == times
            server.kill()
            if times == 1:
                server.start(listen=address)
        stop.set()
        loop.join(120)
        assert not loop.is_alive()


def test_what_on_tick_raises_ends_the_loops(url: str) -> None:
    def fail(tick: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_reactors(url=url, interval_s=0.01, on_tick=fail)


def test_a_loop_that_fails_backs_off_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    calls: list[int] = []

    def work() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a surprise")
        return "done"

    repeat(work, name="the work", interval_s=0, stop=stop, on_result=lambda result: stop.set())
    assert len(calls) == 2
    assert "the work failed" in caplog.text
    assert "continues after 1 failure(s)" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_item_that_fails_does_not_affect_the_others(concurrency: int) -> None:
    def act(number: int) -> dict[str, Any]:
        return {"outcome": f"{1 // number}"}

    assert outcomes(for_each([1, 0, 1], act, concurrency=concurrency)) == ["1", "error", "1"]

    def unreachable(number: int) -> dict[str, Any]:
        raise ServerUnreachable("away")

    with pytest.raises(ServerUnreachable):
        for_each([1, 2], unreachable, concurrency=concurrency)


def test_sigterm_ends_a_loop_after_what_is_under_way(sqlite_url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, tape.reactors\n"
        "tape.reactors.run_reactors(url=sys.argv[1], interval_s=30, on_tick=lambda t: print(*t, flush=True))\n"
        "print('ended', flush=True)\n"
    )
    with ServerProcess(sqlite_url) as server:
        process = subprocess.Popen([sys.executable, program, server.url], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        seen = {process.stdout.readline().strip() for _ in range(2)}
        os.kill(process.pid, signal.SIGTERM)
        rest, _ = process.communicate(timeout=120)
        assert (seen, rest, process.returncode) == ({"reconcile", "compensations"}, "ended\n", 0)


# ── compaction ───────────────────────────────────────────────────────────────────────────────────


def test_finished_runs_are_compacted_and_others_are_not_in_the_way(client: TapeClient) -> None:
    for number in range(6):
        run_id = begin(client)
        key = client.begin_effect(run_id=run_id, decision_index=0, tool_name="t", request_json='{"x":1}')
        status = pb.EFFECT_STATUS_UNKNOWN if number < 5 else pb.EFFECT_STATUS_CONFIRMED
        client.complete_effect(run_id=run_id, idempotency_key=key.idempotency_key, status=status)
        owe(client, run_id, "never")
        client.end_run(run_id=run_id)
    later = client.get_run(run_id).ended_at_ms + 1
    reports = compact_once(client=client, before_ms=later, limit=2)
    assert outcomes(reports) == ["refused"] * 5 + ["compacted"]
    assert (reports[-1]["effects_zeroed"], reports[-1]["bytes_saved"]) == (1, 7)
    assert "UNKNOWN effect(s); not settled" in reports[0]["reason"]


def test_what_waits_in_the_outbox_is_not_blanked(client: TapeClient) -> None:
    run_id = begin(client)
    send(client, run_id, amount=5)
    client.end_run(run_id=run_id)
    (report,) = compact_once(client=client, before_ms=client.get_run(run_id).ended_at_ms + 1)
    assert (report["outcome"], "1 effect(s) in the outbox" in report["reason"]) == ("refused", True)


def test_the_compactor_leaves_what_is_hot(client: TapeClient, url: str) -> None:
    client.end_run(run_id=begin(client))
    ticks: list[dict[str, Any]] = []
    run_compactor(url, once=True, on_tick=ticks.append)
    run_compactor(url, once=True, hot_window_s=-10, on_tick=ticks.append)
    assert [tick["compacted"] for tick in ticks] == [0, 1]


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_the_names_of_the_contract_are_there() -> None:
    from tape import _recover

    relay = {"outbox_relay_tick", "run_event_fanout", "run_outbox_relay"}
    for name in set(reactors.__all__) - relay:
        assert callable(getattr(reactors, name)), name
    assert _recover.compensate_one is reactors.compensate_one
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = reactors.nothing
