"""`tape runs result|cancel|retry|resume` and `tape obligations resolve`, one by one and in bulk."""

from __future__ import annotations

import json
from typing import Any

from tape import TapeClient
from tape.proto import tape_pb2 as pb
from tests.cli.test_ledgers import asked, client, output_of, refused, server
from tests.forked import tape
from tests.services import ServerProcess

__all__ = ["client", "server"]

FAILED, CANCELLED, STUCK = pb.RUN_STATUS_FAILED, pb.RUN_STATUS_CANCELLED, pb.RUN_STATUS_STUCK


def begin(client: TapeClient, app: str, invocation: str, **fields: Any) -> str:
    ids = {"app_name": app, "user_id": "u", "session_id": "s", "invocation_id": invocation}
    return client.begin_run(**ids, **fields).run_id


def status(client: TapeClient, run_id: str) -> str:
    return pb.RunStatus.Name(client.get_run(run_id).status).removeprefix("RUN_STATUS_")


def test_the_result_of_a_run_is_printed(server: ServerProcess, client: TapeClient) -> None:
    run_id = begin(client, "results", "done")
    assert "TAPE-2425" in refused(server, "runs", "result", run_id)
    client.end_run(run_id=run_id, result_json='{"paid":7}')
    assert output_of(server, "runs", "result", run_id) == '{"paid":7}\n'
    assert output_of(server, "runs", "result", run_id, "--wait", "--timeout", "1") == '{"paid":7}\n'
    assert asked(server, "runs", "result", run_id) == {"run_id": run_id, "status": "TERMINAL", "result": {"paid": 7}}
    assert '{"paid":7}' in output_of(server, "runs", "show", run_id)


def test_the_result_of_a_failed_run_is_its_error_and_exit_code_1(server: ServerProcess, client: TapeClient) -> None:
    run_id = begin(client, "results", "failed")
    client.end_run(run_id=run_id, status=FAILED, detail_json='{"error": "ValueError", "message": "no"}')
    assert "TAPE-2424" in (error := refused(server, "runs", "result", run_id))
    assert "is FAILED: ValueError: no" in error
    done = tape("runs", "result", run_id, "--output", "json", "--url", server.url)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == {"type": "ValueError", "message": "no"}


def test_runs_are_cancelled_by_filter_after_a_preview(server: ServerProcess, client: TapeClient) -> None:
    east = [begin(client, "bulk", f"e{n}", labels={"region": "east"}) for n in range(3)]
    west = begin(client, "bulk", "w", labels={"region": "west"})
    ended = begin(client, "bulk", "ended", labels={"region": "east"})
    client.end_run(run_id=ended)
    client.await_signal(run_id=east[0], gate_name="g")
    wanted = ("runs", "cancel", "--app", "bulk", "--label", "region=east")
    preview = asked(server, *wanted, "--dry-run")
    assert {each["run_id"] for each in preview["runs"]} == set(east)
    assert (preview["changed"], [status(client, run_id) for run_id in east[1:]]) == (0, ["RUNNING"] * 2)
    assert asked(server, *wanted, "--older-than", "1h")["runs"] == []
    assert asked(server, *wanted, "--limit", "2")["more"]
    assert "1 cancelled" in output_of(server, *wanted, "--reason", "wrong region")
    assert {status(client, run_id) for run_id in east} == {"CANCELLED"}
    assert (status(client, west), status(client, ended)) == ("RUNNING", "TERMINAL")
    assert "Say which runs" in refused(server, "runs", "cancel")
    assert "NAME=VALUE" in refused(server, "runs", "cancel", "--app", "bulk", "--label", "east")


def test_a_run_that_cannot_be_cancelled_is_reported(server: ServerProcess, client: TapeClient) -> None:
    ended, parent = begin(client, "single", "ended"), begin(client, "single", "parent")
    child = begin(client, "single", "child", parent_run_id=parent)
    client.end_run(run_id=ended)
    done = tape("runs", "cancel", ended, parent, "missing", "--output", "json", "--url", server.url)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["changed"], report["refused"]) == (1, 2)
    assert (status(client, parent), status(client, child)) == ("CANCELLED", "CANCELLED")
    assert [each["run_id"] for each in asked(server, "runs", "list", "--parent", parent)] == [child]


def test_a_failed_run_begins_again_and_its_failed_effects_are_tried_again(
    server: ServerProcess, client: TapeClient
) -> None:
    run_id = begin(client, "again", "1")
    client.begin_effect(run_id=run_id, decision_index=-1, tool_name="pay", custom_key="k")
    client.complete_effect(run_id=run_id, idempotency_key="k", status=pb.EFFECT_STATUS_FAILED, error_json="{}")
    client.end_run(run_id=run_id, status=FAILED)
    assert asked(server, "runs", "retry", "--failed", "--app", "again", "--dry-run")["changed"] == 0
    assert status(client, run_id) == "FAILED"
    assert asked(server, "runs", "retry", "--failed", "--app", "again")["changed"] == 1
    assert status(client, run_id) == "RUNNABLE"
    effect = client.get_effect(run_id=run_id, idempotency_key="k").effect
    assert effect.status == pb.EFFECT_STATUS_PENDING
    assert run_id in {each.run_id for each in client.list_runs_to_recover(app_name="again").runs}


def test_cancelled_and_stuck_runs_are_resumed(server: ServerProcess, client: TapeClient) -> None:
    stopped = {name: begin(client, "stopped", name) for name in ("cancelled", "stuck", "failed")}
    for name, number in (("cancelled", CANCELLED), ("stuck", STUCK), ("failed", FAILED)):
        client.end_run(run_id=stopped[name], status=number)
    assert asked(server, "runs", "resume", "--app", "stopped")["changed"] == 2
    assert [status(client, run_id) for run_id in stopped.values()] == ["RUNNABLE", "RUNNABLE", "FAILED"]
    assert tape("runs", "resume", stopped["failed"], "--url", server.url).returncode == 1


def test_stuck_obligations_are_resolved_by_hand(server: ServerProcess, client: TapeClient) -> None:
    def stuck(invocation: str) -> tuple[str, int]:
        run_id = begin(client, "owing", invocation)
        seq = client.register_compensation(run_id=run_id, effect_key="k", kind="refund").seq
        client.end_run(run_id=run_id, status=FAILED)
        client.claim_obligation(run_id=run_id, obligation_seq=seq, claimer="c", only_owed=True)
        client.record_obligation_attempt(
            run_id=run_id, obligation_seq=seq, error="no", next_attempt_at_ms=0, settle_run=True, claimer="c"
        )
        assert status(client, run_id) == "STUCK"
        return run_id, seq

    (one, first), (two, _), (three, third) = (stuck(name) for name in ("1", "2", "3"))
    assert asked(server, "obligations", "resolve", three, str(third), "--again")["refused"] == 0
    (pending,) = client.list_obligations(run_id=three).obligations
    assert pending.status == pb.OBLIGATION_STATUS_PENDING
    preview = asked(server, "obligations", "resolve", "--kind", "refund", "--dry-run")
    assert {each["run_id"] for each in preview["obligations"]} == {one, two}
    assert "1 of 1 resolved" in output_of(server, "obligations", "resolve", one, str(first), "--reason", "by bank")
    assert status(client, one) == "FAILED"
    assert asked(server, "obligations", "resolve", "--kind", "refund")["refused"] == 0
    assert status(client, two) == "FAILED"
    assert "no unresolved obligation 99" in refused(server, "obligations", "resolve", two, "99")
