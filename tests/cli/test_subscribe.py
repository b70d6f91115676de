"""`tape subscribe`: a subscription in one process, without a server; its events are lines of a file."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_services import NatsServer
from tests.brokers.rigs import Rig, nats_rig
from tests.forked import Forked, tape
from tests.services import ServerProcess, wait_for

PLAYBOOK = """
kind: Playbook
metadata: {{path: {path}}}
workflow:
  - step: look
    tool: {{kind: value, value: "{{{{ input.n + 1 }}}}"}}
"""
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def rig(nats: NatsServer) -> Rig:
    return asyncio.run(nats_rig(nats))


@pytest.fixture
def spec(rig: Rig, tmp_path: Path) -> Path:
    (tmp_path / "ingest.yaml").write_text(PLAYBOOK.format(path="domain/ingest"))
    (tmp_path / "fraud.yaml").write_text(PLAYBOOK.format(path="domain/fraud"))
    return write(tmp_path, rig)


def write(folder: Path, rig: Rig, **spec: Any) -> Path:
    headers = {
        "directives": [{"header": "x-route", "controls": "dispatch.playbook", "allowed": ["domain/fraud"]}],
        "trace": {"propagate": "w3c"},
    }
    document = {
        "kind": "Subscription",
        "metadata": {"name": "orders", "path": "subscriptions/orders"},
        "spec": {
            "source": "nats",
            "mode": "pull",
            **rig.spec,
            "runtime": {"timeout_ms": 200},
            "dispatch": {"playbook": "domain/ingest", "execution_pool": "iot"},
            "headers": headers,
            **spec,
        },
    }
    (folder / "orders.yaml").write_text(json.dumps(document))
    return folder / "orders.yaml"


def feed(rig: Rig, *numbers: int, route: str = "") -> None:
    headers = [("traceparent", TRACE), *([("X-Route", route)] if route else [])]
    asyncio.run(rig.feed(*(json.dumps({"n": number}).encode() for number in numbers), headers=headers))


def trail(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_messages_run_in_this_process_and_the_events_file_matches_a_journal(
    rig: Rig, spec: Path, tmp_path: Path
) -> None:
    feed(rig, 1, route="domain/fraud")
    feed(rig, 2, 3, 4, 5, 6)
    done = tape("subscribe", str(spec), "--max-messages", "6", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    first, *_, last = done.stderr.splitlines()
    assert first == "🔔 tape subscribe — orders (source: nats)"
    assert last == ("✓ subscription stopped — received=6 dispatched=6 spooled=0 replayed=0 failed=0 pending_spooled=0")
    lines = trail(tmp_path / "orders-events.jsonl")
    assert {line["worker_id"] for line in lines} == {"cli-local"}
    assert {line["step"] for line in lines} == {"ingress"}
    assert [line["event_type"] for line in lines if "message" not in line["event_type"]][:2] == [
        "subscription.registered",
        "subscription.activated",
    ]
    assert [line["event_type"] for line in lines][-2:] == ["subscription.draining", "subscription.deactivated"]
    completed = [line for line in lines if line["event_type"] == "playbook.completed"]
    assert [line["context"]["output"] for line in completed] == [2, 3, 4, 5, 6, 7]
    started = [line for line in lines if line["event_type"] == "playbook.started"]
    assert [line["context"]["playbook"] for line in started] == ["domain/fraud"] + ["domain/ingest"] * 5
    assert {line["context"]["pool"] for line in started} == {"iot"}
    assert [line["execution_id"] for line in started] == [line["execution_id"] for line in completed]
    applied = [line for line in lines if line["event_type"] == "subscription.message.directives_applied"]
    assert [line["context"]["trace"]["traceparent"] for line in applied] == [TRACE] * 6
    received = [line for line in lines if line["event_type"] == "subscription.message.received"]
    assert received[0]["context"]["headers"] == {"traceparent": TRACE, "x-route": "domain/fraud"}
    assert "  event playbook.completed exec=" in done.stderr


def test_it_stops_on_a_signal_and_the_next_process_resumes(rig: Rig, spec: Path, tmp_path: Path) -> None:
    file = tmp_path / "trail.jsonl"
    process = Forked(["subscribe", str(spec), "--events", str(file)], cwd=tmp_path)
    try:
        feed(rig, 1)
        wait_for(lambda: file.exists() and "playbook.completed" in file.read_text(), "the first message")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
    assert trail(file)[-1]["event_type"] == "subscription.deactivated"
    feed(rig, 2)
    assert tape("subscribe", str(spec), "--events", str(file), "--once", cwd=tmp_path).returncode == 0
    assert [line["context"]["output"] for line in trail(file) if line["event_type"] == "playbook.completed"] == [3]


def test_a_failed_run_is_reported_and_not_retried(rig: Rig, spec: Path, tmp_path: Path) -> None:
    asyncio.run(rig.feed(b'{"n": "one"}'))
    done = tape("subscribe", str(spec), "--once", "--events", "trail.jsonl", cwd=tmp_path)
    assert "dispatched=1 spooled=0 replayed=0 failed=1" in done.stderr
    (failed,) = [line for line in trail(tmp_path / "trail.jsonl") if line["event_type"] == "playbook.failed"]
    assert failed["status"] == "FAILED"
    assert failed["context"]["error"]


def test_a_duplicate_within_the_window_is_skipped(rig: Rig, tmp_path: Path, spec: Path) -> None:
    rule = {"header": "x-key", "controls": "idempotency_key"}
    write(tmp_path, rig, dedup={"enabled": True}, headers={"directives": [rule]})
    asyncio.run(rig.feed(b'{"n": 1}', b'{"n": 1}', headers=[("X-Key", "same")]))
    done = tape("subscribe", str(spec), "--max-messages", "2", "--events", "trail.jsonl", cwd=tmp_path)
    assert "received=2 dispatched=1" in done.stderr
    assert done.stderr.rstrip().endswith("duplicates=1")
    types = [line["event_type"] for line in trail(tmp_path / "trail.jsonl")]
    assert (types.count("playbook.completed"), types.count("subscription.message.deduplicated")) == (1, 1)


def test_the_same_document_dispatches_to_a_server(rig: Rig, spec: Path, tmp_path: Path) -> None:
    feed(rig, 1, 2, 3)
    with ServerProcess(f"sqlite:{tmp_path}/tape.db") as server:
        files = [str(tmp_path / f"{name}.yaml") for name in ("ingest", "fraud")]
        assert tape("playbooks", "register", *files, "--url", server.url).returncode == 0
        arguments = ["subscribe", str(spec), "--dispatch", "server", "--server-url", server.http_url]
        done = tape(*arguments, "--max-messages", "3", "--events", "trail.jsonl", cwd=tmp_path)
        assert "received=3 dispatched=3" in done.stderr
        listed = tape("runs", "list", "--url", server.url)
        assert listed.stdout.count("subscriptions/orders") == 3
    lines = trail(tmp_path / "trail.jsonl")
    started = [line for line in lines if line["event_type"] == "playbook.started"]
    assert [line["context"]["message_id"] for line in started] == ["1", "2", "3"]
    assert all(str(line["execution_id"]) in listed.stdout for line in started)
    assert sum(line["event_type"] == "subscription.message.directives_applied" for line in lines) == 3


@pytest.mark.parametrize(
    ("change", "arguments", "reason"),
    [
        ({}, ["--dispatch", "cloud"], "unknown --dispatch 'cloud' (use 'local' or 'server')"),
        ({"dispatch": {"playbook": "domain/nowhere"}}, [], "dispatch.playbook 'domain/nowhere' not found"),
        ({"auth": "nats_main"}, [], "needs the credential 'nats_main': --credential FILE gives it"),
        ({"source": "natz"}, [], "did you mean 'nats'"),
        ({}, ["--credential", "nowhere.json"], "nowhere.json cannot be read"),
        ({}, ["--import", "no_such_module"], "no such module"),
    ],
)
def test_invalid_options_are_reported_at_once(
    rig: Rig, spec: Path, tmp_path: Path, change: dict[str, Any], arguments: list[str], reason: str
) -> None:
    write(tmp_path, rig, **change)
    done = tape("subscribe", str(spec), *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("spool", "arguments", "folder"),
    [
        ({"mode": "buffer_and_ack", "backend": "local_disk", "path": "own"}, ["--spool-dir", "given"], "given"),
        ({"mode": "buffer_and_ack", "backend": "local_disk", "path": "own"}, [], "own"),
        ({"mode": "buffer_and_ack", "backend": "gcs", "bucket": "gs://b", "credential": "c"}, [], ".tape-spool/orders"),
        ({"mode": "hybrid", "hybrid_escalate_after_ms": 0}, [], ".tape-spool/orders"),
        (None, ["--spool-dir", "given"], "given"),
    ],
    ids=["the flag wins", "its own path", "a bucket is left alone", "no path at all", "the flag turns it on"],
)
def test_messages_and_circuit_state_are_spooled_during_an_outage_of_the_server(
    rig: Rig, spec: Path, tmp_path: Path, spool: dict[str, Any] | None, arguments: list[str], folder: str
) -> None:
    if spool is not None:
        write(tmp_path, rig, spool={**spool, "circuit": {"trip_after": 1}})
    feed(rig, *range(1, 7))
    away = ["subscribe", str(spec), "--dispatch", "server", "--server-url", "http://127.0.0.1:9"]
    done = tape(*away, *arguments, "--max-messages", "6", "--events", "trail.jsonl", cwd=tmp_path)
    assert f"in {folder}" in done.stderr
    # Without a block of its own the circuit opens at the fifth failure; what failed before stays at the source.
    waiting = sorted((tmp_path / folder).glob("*.json"))
    assert f"pending_spooled={len(waiting)}" in done.stderr
    assert waiting
    state = json.loads((tmp_path / folder / "control/circuit-state.json").read_text())
    assert state["default"]["phase"] == "open"


BATCH_PLAYBOOK = """
kind: Playbook
metadata: {path: domain/ingest}
workflow:
  - step: judge
    each: input.messages
    tool:
      kind: value
      value: >-
        {{ item.data.n == 3 && item.metadata.delivered == 1 ? 'retry' :
        item.data.n == 4 ? 'dead_letter' : 'ok' }}
output: {results: "{{ judge }}"}
"""


def test_a_batch_runs_once_and_only_its_failed_messages_come_again(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "ingest.yaml").write_text(BATCH_PLAYBOOK)
    batch = {"max": 5, "linger_ms": 2_000}
    spec = write(tmp_path, rig, dispatch={"playbook": "domain/ingest", "batch": batch}, headers={})
    feed(rig, 1, 2, 3, 4, 5)
    done = tape("subscribe", str(spec), "--max-messages", "6", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = trail(tmp_path / "orders-events.jsonl")
    outputs = [line["context"]["output"] for line in lines if line["event_type"] == "playbook.completed"]
    assert outputs == [{"results": ["ok", "ok", "retry", "dead_letter", "ok"]}, {"results": ["ok"]}]
    (dead,) = [line["context"] for line in lines if line["event_type"] == "subscription.message.dead_lettered"]
    assert (dead["message_id"], dead["message"]["data"]) == ("4", {"n": 4})
