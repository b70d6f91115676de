"""Dead commands: their runs fail, and are restored when they are redriven."""

from __future__ import annotations

import msgspec
import pytest

from tape.client import AsyncTapeClient
from tape.errors import IllegalTransition
from tape.playbooks.worker import work
from tape.proto import tape_pb2 as pb
from tests.engine.reactions.helpers import matched

POOL = "pool:shared"
DOCUMENT = """\
kind: Playbook
metadata: {path: quick}
workflow:
  - {step: a, tool: {kind: value, value: 5}}
"""


async def command(client: AsyncTapeClient, reaction_id: str = POOL) -> tuple[str, pb.Task]:
    """An execution, and its command as a worker has it."""
    await client.register_resource(DOCUMENT, if_changed=True)
    run_id = (await client.execute("quick")).execution_id
    await matched(client)
    (task,) = (await client.claim_tasks(reaction_id=reaction_id, owner="me", lease_ms=60_000, max=1)).tasks
    return run_id, task


async def dead_letter_task(client: AsyncTapeClient, task: pb.Task) -> None:
    await client.nack_task(task_id=task.task_id, owner="me", error="nobody can", permanent=True)


async def test_the_run_of_a_dead_command_is_failed_with_the_reason_and_comes_back_with_it(
    client: AsyncTapeClient,
) -> None:
    run_id, task = await command(client)
    await dead_letter_task(client, task)
    run = await client.get_run(run_id)
    error = msgspec.json.decode(run.detail_json)["error"]
    assert (run.status, error["type"], error["task_id"]) == (pb.RUN_STATUS_FAILED, "DeadLetter", task.task_id)
    assert error["message"] == "the command is a dead letter after 1 attempts: nobody can"
    await client.redrive_tasks(task_ids=[task.task_id])
    back = await client.get_run(run_id)
    assert (back.status, back.detail_json, back.ended_at_ms) == (pb.RUN_STATUS_RUNNABLE, "", 0)
    await work(client.url, once=True)
    run = await client.get_run(run_id)
    assert (run.status, run.detail_json) == (pb.RUN_STATUS_TERMINAL, '{"output":5}')
    head = (await client.head()).global_seq
    seen = []
    async for entry in client.follow("/tape/run/**", run_id=run_id):
        seen.append((entry.subject.split("/")[3], msgspec.json.decode(entry.payload_json)["status"]))
        if entry.global_seq >= head:
            break
    assert seen == [("running", "runnable"), ("failed", "failed"), ("running", "runnable"), ("terminal", "terminal")]


async def test_a_command_whose_last_worker_vanished_fails_its_run_too(client: AsyncTapeClient) -> None:
    run_id, task = await command(client)
    for _ in range(9):
        again = await client.claim_tasks(reaction_id=POOL, owner="me", lease_ms=1_000, now_ms=task.lease_expires_at_ms)
        (task,) = again.tasks
    later = task.lease_expires_at_ms
    assert not (await client.claim_tasks(reaction_id=POOL, owner="you", lease_ms=1_000, now_ms=later)).tasks
    run = await client.get_run(run_id)
    assert run.status == pb.RUN_STATUS_FAILED
    assert "the lease of 'me' expired during attempt 10" in run.detail_json


async def test_a_run_that_waits_for_an_answer_goes_on_waiting(client: AsyncTapeClient) -> None:
    run_id, task = await command(client)
    await client.await_signal(run_id=run_id, gate_name="approval")
    await dead_letter_task(client, task)
    assert (await client.get_run(run_id)).status == pb.RUN_STATUS_WAITING


async def test_who_only_watches_commands_fails_no_run(client: AsyncTapeClient) -> None:
    await client.register_reaction(
        reaction_id="watch", subject_pattern="/tape/command/issued/**", handler_kind=pb.HANDLER_KIND_TASK
    )
    run_id, task = await command(client, "watch")
    await dead_letter_task(client, task)
    assert (await client.get_run(run_id)).status == pb.RUN_STATUS_RUNNABLE


async def test_what_is_being_undone_does_not_come_back(client: AsyncTapeClient) -> None:
    run_id, task = await command(client)
    await client.begin_effect(run_id=run_id, decision_index=-1, tool_name="t", custom_key="k")
    await client.register_compensation(run_id=run_id, effect_key="k", kind="undo")
    await dead_letter_task(client, task)
    (owed,) = (await client.list_unresolved_obligations(only_owed=True)).obligations
    await client.claim_obligation(run_id=run_id, obligation_seq=owed.seq, claimer="c", lease_ttl_ms=60_000)
    with pytest.raises(IllegalTransition, match="what it did is being undone"):
        await client.redrive_tasks(task_ids=[task.task_id])
    assert (await client.get_task(task.task_id)).status == pb.TASK_STATUS_DLQ
