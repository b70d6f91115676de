"""`tape runs fork` and `tape runs diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tape as sdk
from tape import TapeClient
from tests.forked import tape
from tests.services import ServerProcess


@sdk.effect
def trade(order: dict[str, Any]) -> dict[str, Any]:
    return order


def test_a_run_is_forked_with_another_decision_and_compared_with_its_fork(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server, TapeClient(server.url) as client:

        def plan(run: sdk.DurableRun) -> None:
            for number in range(2):
                trade(run.decide(lambda number=number: {"side": "buy", "n": {"of": number}}, request=number))

        with sdk.durable_run("desk", url=server.url) as run:
            plan(run)

        def command(*arguments: str, code: int = 0) -> str:
            done = tape("runs", *arguments, "--url", server.url)
            assert done.returncode == code, done.stderr
            return done.stdout + done.stderr

        made = command("fork", run.run_id, "--at", "1", "--set", "side=sell", "--set", "n.of=7", "-o", "json")
        forked = json.loads(made)
        assert (forked["steps"], forked["run"]["forked_from"]) == (
            "2" if isinstance(forked["steps"], str) else 2,
            run.run_id,
        )
        fork_id = forked["run"]["run_id"]
        with sdk.continue_run(client.get_run(fork_id), url=server.url) as again:
            plan(again)
        shown = command("show", fork_id)
        assert f"from {run.run_id} at decision 1" in shown
        assert shown.count("decision 0") == 1, "shared steps are shown too"
        difference = json.loads(command("diff", run.run_id, fork_id, "-o", "json", code=1))
        changed = {step["step"]: step for step in difference["steps"] if step["differs"]}
        assert list(changed) == ["decision 1", "effect decision-1/trade/0"]
        assert changed["decision 1"]["right"]["response"] == {"decision": {"side": "sell", "n": {"of": 7}}}
        assert 'decision.side: "buy", then "sell"' in changed["decision 1"]["detail"]
        assert "=" in command("diff", run.run_id, run.run_id)
        assert "The runs are the same." in command("diff", run.run_id, run.run_id, "--changed")
        assert "Say where to fork" in command("fork", run.run_id, code=1)
        assert "has no decision 5" in command("fork", run.run_id, "--at", "5", "--set", "1", code=1)
        assert "neither JSON nor FIELD=VALUE" in command("fork", run.run_id, "--at", "0", "--set", "sell", code=1)


AGENT = """
import tape

@tape.effect
def trade(order):
    raise AssertionError("never performed")

def same(run):
    with tape.continue_run(run) as again:
        trade({"side": again.decide(lambda: "?", request=1)})

def changed(run):
    with tape.continue_run(run) as again:
        trade({"side": again.decide(lambda: "?", request=1), "size": 2})
"""


def test_a_window_is_replayed_and_the_changed_run_is_found(tmp_path: Path) -> None:
    (tmp_path / "replayed_agent.py").write_text(AGENT)
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        for number in range(3):
            with sdk.durable_run("desk", url=server.url) as run:
                side = run.decide(lambda: "buy", request=1)
                trade({"side": side, **({"size": 2} if number == 1 else {})})

        def replay(*arguments: str, code: int) -> str:
            done = tape("runs", "replay", *arguments, "--url", server.url, cwd=tmp_path)
            assert done.returncode == code, done.stderr
            return done.stdout + done.stderr

        shown = replay("--app", "desk", "--since", "1h", "--with", "replayed_agent:same", code=1)
        assert "order.size: recorded 2, now nothing" in shown
        assert "replayed_agent.py:10" in shown
        assert "2 the same, 1 diverged, 0 skipped." in shown
        found = json.loads(replay("--app", "desk", "--with", "replayed_agent:changed", "-o", "json", code=1))
        assert found["counts"] == {"same": 1, "diverged": 2}
        replay(run.run_id, "--with", "replayed_agent:same", code=0)
        assert "Say which runs" in replay("--with", "replayed_agent:same", code=1)
        replay("--app", "nothing", "--with", "replayed_agent:same", code=1)
