"""Runs and kill -9: whatever dies when, a re-drive finishes the run, and the world was changed once."""

from __future__ import annotations

import runpy
import signal
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tape import TapeClient, durable_run, effect, gate, idempotency_key
from tape.durable import determinism
from tape.errors import EffectUnknown, RunEnded, ServerUnreachable
from tape.proto import tape_pb2 as pb
from tests.forked import Forked
from tests.services import ServerProcess
from tests.system.fragile_server import MOMENTS, FragileServer


class World:
    """What the agent changes. It recognises an act by its key, as a good service does."""

    def __init__(self) -> None:
        self.acts: dict[str, Any] = {}
        self.requests = 0

    def act(self, key: str, what: Any) -> Any:
        self.requests += 1
        return self.acts.setdefault(key, what)


def refund(amount: int) -> None:
    """Undoes a payment; nothing here fails, so it is not called."""


def agent(url: str, invocation: str, world: World) -> None:
    """Decides, samples, passes a gate, and changes the world three times."""

    @effect(compensate=refund)
    def pay(amount: int, tool_context: Any = None) -> Any:
        return world.act(idempotency_key(tool_context), amount)

    @effect
    def notify_user(text: str, tool_context: Any = None) -> Any:
        return world.act(idempotency_key(tool_context), text)

    with durable_run("app", invocation_id=invocation, url=url, lease_owner="agent") as run:
        amount = run.decide(lambda: 40)
        pay(amount)
        notify_user(f"paid at {determinism.now(run)}")
        assert gate("approval") == {"approved": True}
        pay(2)


def drive_until_done(drive: Callable[[], None]) -> None:
    """Drive a run again and again, as recovery does, until it is over."""
    for _ in range(5):
        try:
            return drive()
        except (ServerUnreachable, EffectUnknown):
            continue
        except RunEnded:
            return None
    raise AssertionError("the run does not come to an end")


COMMITS = 15  # of one drive of the agent
MOST = 90  # with what a server commits for itself meanwhile, however long that takes


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_killed_at_each_commit_of_a_run_leaves_all_or_nothing(
    store_url: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape.durable.server_retry.DEADLINE_S", 0)
    runs: dict[str, str] = {}
    with ServerProcess(store_url) as server, TapeClient(server.url) as client:
        for number in range(1, MOST + 1):
            ids = {"app_name": "app", "user_id": "", "session_id": "", "invocation_id": f"dies at {number}"}
            runs[ids["invocation_id"]] = run_id = client.begin_run(**ids, lease_owner="agent").run_id
            client.send_signal(run_id=run_id, gate_name="approval", resolution_json='{"approved": true}')

    worlds: dict[str, World] = {}
    for number, invocation in enumerate(runs, 1):
        world = worlds[invocation] = World()
        with FragileServer(store_url, moment, number) as server:
            try:
                agent(server.url, invocation, world)
                break  # it has fewer commits than that
            except ServerUnreachable:
                pass
    assert COMMITS < len(worlds) < MOST, "not every commit was tried"

    with ServerProcess(store_url) as server, TapeClient(server.url) as client:
        for invocation, world in worlds.items():
            drive_until_done(lambda: agent(server.url, invocation, world))  # noqa: B023 - called at once
            assert sorted(map(str, world.acts.values()))[:2] == ["2", "40"], invocation
            assert len(world.acts) == 3, invocation
            assert client.get_run(runs[invocation]).status == pb.RUN_STATUS_TERMINAL, invocation
            assert len(client.list_obligations(run_id=runs[invocation]).obligations) == 2, invocation
        assert not client.list_pending_effects().effects


AGENT = """
    import os, signal, sys
    from pathlib import Path
    from tape import durable_run, effect, idempotency_key

    url, folder, dies_at = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

    def reached(step):
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    @effect
    def transfer(account, tool_context=None):
        reached(f"before {account}")
        # The other system is idempotent by key.
        (folder / f"{account}-{idempotency_key(tool_context).replace('/', '_')}").touch()
        reached(f"after {account}")
        return {"account": account}

    with durable_run("treasury", invocation_id="monday", url=url, lease_ttl_ms=1) as run:
        reached("begun")
        accounts = run.decide(lambda: ["a", "b"])
        reached("decided")
        for account in accounts:
            transfer(account)
        reached("end")
    print("done")
"""


@pytest.mark.parametrize("step", ["begun", "decided", "before a", "after a", "before b", "after b", "end"])
def test_an_agent_killed_anywhere_is_finished_by_another_process(store_url: str, tmp_path: Path, step: str) -> None:
    script = tmp_path / "agent.py"
    script.write_text(textwrap.dedent(AGENT))
    world = tmp_path / "world"
    world.mkdir()
    with ServerProcess(store_url) as server:
        run_agent = partial(runpy.run_path, str(script), run_name="__main__")
        first = Forked([server.url, str(world), step], program=run_agent)
        assert first.wait(120) == -signal.SIGKILL
        first.kill()
        assert Forked([server.url, str(world), "never"], program=run_agent).finish() == "done\n"
    assert sorted(path.name.split("-")[0] for path in world.iterdir()) == ["a", "b"]
