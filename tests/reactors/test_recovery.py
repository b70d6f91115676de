"""Runs whose process is gone are carried on: by one at a time, under a lease, and never in a hot loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import tape
from tape.client import TapeClient
from tape.durable.runs import adopted_owner
from tape.errors import InvalidInput, LeaseHeld, NotFound
from tape.proto import tape_pb2 as pb
from tape.reactors import recover_once, resume
from tests.reactors.scene import begin, outcomes, status_of
from tests.services import wait_for


def abandoned(client: TapeClient, **fields: Any) -> str:
    """A run whose process is gone."""
    run_id = begin(client, lease_owner="gone", lease_ttl_ms=1, **fields)
    wait_for(
        lambda: run_id in {run.run_id for run in client.list_runs_to_recover(limit=1000).runs}, "its lease to run out"
    )
    return run_id


def test_an_abandoned_run_is_carried_on_and_acts_where_it_had_not(client: TapeClient, url: str) -> None:
    acted: list[str] = []

    @tape.effect
    def act(name: str) -> None:
        acted.append(name)

    def agent(run: tape.DurableRun, dies: bool = False) -> None:
        act("first")
        if dies:
            raise KeyboardInterrupt
        act("second")

    first = tape.durable_run("app", invocation_id="i1", url=url, lease_ttl_ms=300)

    def interrupted() -> None:
        with first:
            agent(first, dies=True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    wait_for(lambda: client.list_runs_to_recover().runs, "its lease to run out")

    def redrive(run: pb.RunState) -> None:
        with tape.continue_run(run, url=url) as durable:
            agent(durable)

    (report,) = recover_once(redrive_fn=redrive, client=client)
    assert (report["outcome"], report["status"], report["run_id"]) == ("recovered", "TERMINAL", first.run_id)
    assert acted == ["first", "second"]
    assert recover_once(redrive_fn=redrive, client=client) == []


def test_a_coroutine_carries_runs_on_under_the_lease_that_recovery_took(client: TapeClient) -> None:
    run_id = abandoned(client)
    owners: list[str] = []

    async def redrive(run: pb.RunState) -> None:
        owners.append(adopted_owner.get())
        assert client.get_run(run.run_id).lease_owner == adopted_owner.get() == run.lease_owner

    (report,) = recover_once(redrive_fn=redrive, client=client)
    assert (report["outcome"], report["run_id"], report["status"]) == ("recovered", run_id, "RUNNING")
    assert owners[0]
    assert adopted_owner.get() == ""


def test_a_runner_carries_on_the_invocations_of_its_own_app(client: TapeClient) -> None:
    mine, other = abandoned(client, app_name="mine", invocation_id="m1"), abandoned(client, app_name="other")
    driven: list[dict[str, str]] = []

    class Runner:
        app_name = "mine"

        async def run_async(self, **ids: str) -> AsyncIterator[str]:
            driven.append(ids)
            yield "an event"
            client.end_run(run_id=mine)
            yield "another"

    assert outcomes(recover_once(runner=Runner(), client=client)) == ["recovered"]
    assert driven == [{"user_id": "ann", "session_id": "s", "invocation_id": "m1"}]
    assert (status_of(client, mine), status_of(client, other)) == ("TERMINAL", "RUNNING")


def test_two_who_recover_carry_each_run_on_once(client: TapeClient, url: str) -> None:
    runs = {abandoned(client) for _ in range(8)}
    driven: list[str] = []
    start = threading.Barrier(2)

    def redrive(run: pb.RunState) -> None:
        driven.append(run.run_id)
        client.end_run(run_id=run.run_id)

    def recover() -> None:
        start.wait()
        recover_once(redrive_fn=redrive, url=url, concurrency=4)

    threads = [threading.Thread(target=recover) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(driven) == sorted(runs)


def test_a_run_that_another_process_leased_first_is_reported_as_held(
    client: TapeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = abandoned(client)
    listed = client.list_runs_to_recover()
    client.resume_run(run_id=run_id, lease_owner="faster")
    monkeypatch.setattr(client, "list_runs_to_recover", lambda **_: listed)
    (report,) = recover_once(redrive_fn=lambda run: pytest.fail("driven"), client=client)
    assert report["outcome"] == "held"
    assert "'faster'" in report["reason"]


def test_one_that_fails_is_reported_and_left_until_its_lease_runs_out(client: TapeClient) -> None:
    def redrive(run: pb.RunState) -> None:
        raise OSError("no model today")

    for lease_ttl_ms in (60_000, 1):
        run_id = abandoned(client)
        (report,) = recover_once(redrive_fn=redrive, client=client, lease_ttl_ms=lease_ttl_ms)
        assert (report["run_id"], report["outcome"], report["status"]) == (run_id, "failed", "RUNNING")
        assert report["reason"] == "OSError: no model today"
        if lease_ttl_ms > 1:
            assert recover_once(redrive_fn=redrive, client=client) == []
    wait_for(lambda: client.list_runs_to_recover().runs, "its lease to run out")
    assert [run.run_id for run in client.list_runs_to_recover().runs] == [run_id]


def test_a_long_drive_keeps_its_lease(client: TapeClient) -> None:
    run_id = abandoned(client)

    def redrive(run: pb.RunState) -> None:
        first = client.get_run(run_id).lease_expires_at_ms
        wait_for(lambda: client.get_run(run_id).lease_expires_at_ms > first + 300, "the lease to be renewed")

    assert outcomes(recover_once(redrive_fn=redrive, client=client, lease_ttl_ms=300)) == ["recovered"]


def test_a_parked_run_stays_parked_until_its_signal_comes(client: TapeClient, url: str) -> None:
    abandoned(client, invocation_id="parks")

    def redrive(run: pb.RunState) -> None:
        with tape.continue_run(run, url=url):
            assert tape.gate("ok") == {"yes": True}

    (report,) = recover_once(redrive_fn=redrive, client=client, lease_ttl_ms=200)
    assert (report["outcome"], report["status"]) == ("parked", "WAITING")
    assert recover_once(redrive_fn=redrive, client=client) == []
    tape.send_signal("ok", run_id=report["run_id"], resolution={"yes": True}, url=url)
    (report,) = recover_once(redrive_fn=redrive, client=client)
    assert (report["outcome"], report["status"]) == ("recovered", "TERMINAL")


def test_one_invocation_is_resumed_on_demand(client: TapeClient) -> None:
    run_id = abandoned(client, invocation_id="wanted", user_id="bob")
    abandoned(client, invocation_id="other")
    driven: list[str] = []
    resume("wanted", redrive_fn=lambda run: driven.append(run.run_id), client=client)
    assert driven == [run_id]
    with pytest.raises(LeaseHeld):
        resume("wanted", redrive_fn=lambda run: None, client=client, app_name="app", user_id="bob")
    with pytest.raises(NotFound, match="no run has the invocation_id 'wanted'"):
        resume("wanted", redrive_fn=lambda run: None, client=client, user_id="carol")
    with pytest.raises(ZeroDivisionError):
        resume("other", redrive_fn=lambda run: 1 / 0, client=client)


def test_recovery_needs_one_way_to_carry_runs_on(client: TapeClient) -> None:
    for way in ({}, {"runner": object(), "redrive_fn": print}):
        with pytest.raises(InvalidInput, match="Pass either runner"):
            recover_once(client=client, **way)
