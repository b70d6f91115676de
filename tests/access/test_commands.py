"""A worker runs the run that a command belongs to, and no other."""

from __future__ import annotations

import msgspec
import pytest

from tape.client import AsyncTapeClient
from tape.errors import ReservedKind
from tape.model.entry import Draft
from tape.playbooks.worker import work
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.engine.reactions.helpers import matched
from tests.web import call

DOCUMENT = """\
kind: Playbook
metadata: {path: quick}
workflow:
  - {step: a, tool: {kind: value, value: 5}}
"""


async def test_a_forged_command_does_not_run_anothers_run(client: AsyncTapeClient, server: Server) -> None:
    resource = await client.register_resource(DOCUMENT)
    await client.execute("quick")
    await work(client.url, once=True)
    victim = (await client.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="i")).run_id
    forged = {"execution_id": victim, "path": "quick", "version": 1, "pool": "shared", "payload": {}}
    forged["catalog_id"] = str(resource.catalog_id)
    subject = f"/tape/command/issued/shared/{victim}"

    with pytest.raises(ReservedKind, match="written by Execute"):
        await client.append(subject, forged, run_id=victim)

    # Even a command that is on the journal already runs its own run only.
    payload = msgspec.json.encode(forged).decode()
    await server.journal.append([Draft(subject=subject, payload_json=payload, run_id="the-attackers")])
    await matched(client)
    await work(client.url, once=True)
    assert (await client.get_run(victim)).status == pb.RUN_STATUS_RUNNING
    (dead,) = (await client.list_tasks(reaction_id="pool:shared", status=pb.TASK_STATUS_DLQ)).tasks
    assert "a command runs its own run only" in dead.last_error


async def test_an_execution_cannot_attach_what_tape_itself_writes(client: AsyncTapeClient, server: Server) -> None:
    await client.register_resource(DOCUMENT)
    attached = [{"subject": "/tape/effect/confirmed/pay/1", "payload": {}}]
    answer = await call(server.http_address, "POST", "/api/execute", {"path": "quick", "events": attached})
    assert answer.status == 403
    assert answer.json()["code"] == "TAPE-1904"
    assert not (await client.list_runs()).runs
