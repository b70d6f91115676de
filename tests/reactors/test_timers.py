"""Timers are acted on and then done with: none is lost, and none fires for two."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tape.client import TapeClient
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb
from tape.reactors import fire_due_timers_once
from tests.reactors.scene import begin, outcomes, status_of
from tests.services import wait_for


def timer(client: TapeClient, run_id: str, timer_id: str = "t", fire_at_ms: int = 1) -> None:
    client.set_timer(run_id=run_id, fire_at_ms=fire_at_ms, kind="wake", timer_id=timer_id, payload_json='{"a":1}')


def test_a_due_timer_is_handled_once(client: TapeClient) -> None:
    run_id = begin(client)
    timer(client, run_id)
    timer(client, run_id, "later", 1 << 50)
    seen: list[tuple[str, str]] = []
    handle = lambda due: seen.append((due.timer_id, due.payload_json))  # noqa: E731
    assert outcomes(fire_due_timers_once(on_timer=handle, client=client)) == ["fired"]
    assert fire_due_timers_once(on_timer=handle, client=client) == []
    assert seen == [("t", '{"a":1}')]


def test_a_timer_whose_handling_fails_comes_again(client: TapeClient) -> None:
    timer(client, begin(client))
    (report,) = fire_due_timers_once(on_timer=lambda due: 1 / 0, client=client, lease_ttl_ms=100)
    assert (report["outcome"], report["reason"]) == ("failed", "ZeroDivisionError: division by zero")
    seen: list[Any] = []
    wait_for(lambda: fire_due_timers_once(on_timer=seen.append, client=client), "its lease to run out")
    assert len(seen) == 1


def test_two_reactors_fire_every_timer_once(client: TapeClient, url: str) -> None:
    run_id = begin(client)
    for number in range(30):
        timer(client, run_id, f"t{number}")
    seen: list[str] = []
    start = threading.Barrier(2)

    def fire() -> None:
        start.wait()
        fire_due_timers_once(url, on_timer=lambda due: seen.append(due.timer_id))

    threads = [threading.Thread(target=fire) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(f"t{number}" for number in range(30))


def test_a_timer_carries_its_run_on(client: TapeClient) -> None:
    parked, over = begin(client), begin(client)
    client.await_signal(run_id=parked, gate_name="ok")
    client.end_run(run_id=over)
    timer(client, parked, "a")
    timer(client, over, "b")

    def redrive(run: pb.RunState) -> None:
        # Whatever happens from here on, the timer is done with: the run's own lease has taken over.
        assert "a" not in {each.timer_id for each in client.list_due_timers().timers}
        client.end_run(run_id=run.run_id)

    reports = fire_due_timers_once(redrive_fn=redrive, client=client)
    assert outcomes(reports) == ["fired", "over"]
    assert reports[0]["run"]["outcome"] == "recovered"
    assert status_of(client, parked) == "TERMINAL"


def test_a_timer_of_a_run_that_is_leased_to_another_process_is_held(client: TapeClient) -> None:
    run_id = begin(client, lease_owner="busy")
    timer(client, run_id)
    driven: list[str] = []
    redrive = lambda run: driven.append(run.run_id)  # noqa: E731
    assert outcomes(fire_due_timers_once(redrive_fn=redrive, client=client, lease_ttl_ms=100)) == ["held"]
    client.await_signal(run_id=run_id, gate_name="ok")
    wait_for(lambda: fire_due_timers_once(redrive_fn=redrive, client=client), "its lease to run out")
    assert driven == [run_id]


def test_a_timer_that_is_replaced_while_it_is_handled_fires_again(client: TapeClient) -> None:
    run_id = begin(client)
    timer(client, run_id)
    (report,) = fire_due_timers_once(on_timer=lambda due: timer(client, run_id, fire_at_ms=2), client=client, limit=1)
    assert "replaced" in report["reason"]
    assert outcomes(fire_due_timers_once(on_timer=lambda due: None, client=client)) == ["fired"]


def test_nothing_to_do_with_a_timer_is_said_before_one_is_taken(client: TapeClient) -> None:
    timer(client, begin(client))
    with pytest.raises(InvalidInput, match="A timer needs a handler"):
        fire_due_timers_once(client=client)
    assert len(client.list_due_timers().timers) == 1
