"""The commands about runs and values, used as a person or a script would."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape import TapeClient
from tape.proto import tape_pb2 as pb
from tests.cli.test_cli import TAPE, metrics
from tests.forked import tape
from tests.services import ServerProcess, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(f"sqlite:{tmp_path_factory.mktemp('cli') / 'tape.db'}") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[TapeClient]:
    with TapeClient(server.url) as client:
        yield client


def asked(server: ServerProcess, *arguments: str) -> Any:
    """What a command answers a program."""
    done = tape(*arguments, "--output", "json", "--url", server.url)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def output_of(server: ServerProcess, *arguments: str) -> str:
    """The text output of a command."""
    done = tape(*arguments, "--url", server.url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(server: ServerProcess, *arguments: str) -> str:
    """Why a command does not do what it was asked to."""
    done = tape(*arguments, "--url", server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error TAPE-")
    return done.stderr


@pytest.fixture(scope="module")
def run_id(client: TapeClient) -> str:
    """A run with a decision, an inline and an outbox effect and a denied one, that waits for approval."""
    run_id = client.begin_run(
        app_name="treasury",
        user_id="ann",
        session_id="s1",
        invocation_id="sweep-1",
        lease_owner="w1",
        scopes=["pay"],
        labels={"env": "dev"},
    ).run_id
    client.set_budget(run_id=run_id, usd_cap=5, token_cap=1_000)
    client.charge_budget(run_id=run_id, usd=0.42, tokens=120)
    client.record_decision(
        run_id=run_id, decision_index=0, model="m1", rationale="idle cash", response_json='{"sweep": 100}'
    )
    sweep = client.begin_effect(run_id=run_id, decision_index=0, tool_name="sweep", request_json='{"amount": 100}')
    client.register_compensation(run_id=run_id, effect_key=sweep.idempotency_key, kind="unsweep")
    client.complete_effect(
        run_id=run_id, idempotency_key=sweep.idempotency_key, status=2, response_json='{"ref": "t-1"}'
    )
    wire = client.begin_effect(
        run_id=run_id,
        decision_index=0,
        tool_name="wire",
        semantics=pb.EFFECT_SEMANTICS_NON_IDEMPOTENT,
        dispatch_mode=pb.EFFECT_DISPATCH_MODE_OUTBOX,
        connector="bank",
        business_key="wire-1",
        scope="pay",
    )
    client.claim_effect_dispatch(run_id=run_id, idempotency_key=wire.idempotency_key, claimer="d1")
    client.record_dispatch_attempt(
        run_id=run_id, idempotency_key=wire.idempotency_key, error="bank timed out", next_dispatch_at_ms=0
    )
    client.begin_effect(run_id=run_id, decision_index=-1, tool_name="note")
    client.await_signal(run_id=run_id, gate_name="approval")
    return run_id


def test_runs_are_listed_newest_first_and_page_by_page(server: ServerProcess, client: TapeClient) -> None:
    ids = {"app_name": "billing", "user_id": "bob", "session_id": "s1"}
    runs = [client.begin_run(**ids, invocation_id=str(number)).run_id for number in range(3)]
    client.end_run(run_id=runs[0], status=pb.RUN_STATUS_FAILED)
    pages, before = [], []
    while page := asked(server, "runs", "list", "--app", "billing", "-n", "1", *before):
        pages += page
        before = ["--before", page[0]["run_id"]]
    assert sorted(run["run_id"] for run in pages) == sorted(runs)
    assert [run["started_at_ms"] for run in pages] == sorted((run["started_at_ms"] for run in pages), reverse=True)
    failed = ["runs", "list", "--status", "failed", "--app", "billing", "--user", "bob", "--session", "s1"]
    assert [(run["run_id"], run["status"]) for run in asked(server, *failed)] == [(runs[0], "failed")]
    text = output_of(server, *failed)
    assert re.search(rf"^{runs[0]} +failed +billing +bob +s1 +0 +\d+", text, re.MULTILINE)
    assert output_of(server, "runs", "list", "--app", "missing") == "No runs found.\n"
    assert "needs the app_name" in refused(server, "runs", "list", "--user", "bob")


def test_a_full_page_names_the_option_for_the_next_one(server: ServerProcess, run_id: str) -> None:
    done = tape("runs", "list", "--app", "treasury", "-n", "1", "--url", server.url)
    assert f"--before {run_id}" in done.stderr
    assert "approval" in done.stdout


def test_a_run_is_shown_as_a_tree_of_decisions_and_effects(server: ServerProcess, run_id: str) -> None:
    text = output_of(server, "runs", "show", run_id)
    assert "$0.42 of $5, 120 of 1,000 tokens" in text
    assert "treasury / ann / s1" in text
    nesting = [
        ("decision 0 m1", 1),
        ("because idle cash", 2),
        ("effect sweep confirmed", 2),
        ('answer {"ref": "t-1"}', 3),
        ("obligation unsweep pending", 3),
        ("effect wire unknown", 2),
        ("effect note pending", 1),
        ("gate waiting approval", 1),
    ]
    lines = text.splitlines()
    positions = []
    for words, depth in nesting:
        position, line = next((number, line) for number, line in enumerate(lines) if words in line)
        marks = re.match(r"[│├└─ ]*", line)
        assert marks is not None
        assert len(marks[0]) == 4 * depth, line
        positions.append(position)
    assert positions == sorted(positions)


def test_a_run_is_shown_as_a_timeline_in_order(server: ServerProcess, run_id: str) -> None:
    rows = re.findall(
        r"^(\d+) .*?\+\S+ +(\w+ \w+)", output_of(server, "runs", "show", run_id, "--as", "timeline"), re.MULTILINE
    )
    assert [(int(seq), what) for seq, what in rows] == [
        (1, "run running"),
        (2, "decision recorded"),
        (3, "effect pending"),
        (4, "obligation registered"),
        (5, "effect confirmed"),
        (6, "effect pending"),
        (7, "effect unknown"),
        (8, "effect pending"),
        (9, "gate waiting"),
    ]


def test_json_output_has_the_whole_history_of_a_run(server: ServerProcess, run_id: str) -> None:
    story = asked(server, "runs", "show", run_id)
    assert (story["run"]["status"], story["run"]["labels"]) == ("waiting", {"env": "dev"})
    assert [decision["model"] for decision in story["decisions"]] == ["m1"]
    assert {effect["tool_name"]: effect["status"] for effect in story["effects"]} == {
        "sweep": "confirmed",
        "wire": "unknown",
        "note": "pending",
    }
    assert [obligation["kind"] for obligation in story["obligations"]] == ["unsweep"]
    assert (story["budget"]["usd_spent"], story["budget"]["token_cap"]) == (0.42, 1_000)
    assert [entry["seq"] for entry in story["journal"]] == list(range(1, 10))
    assert story["journal"][4]["payload"]["status"] == "confirmed"
    assert "no such run: 'missing'" in refused(server, "runs", "show", "missing")


def test_a_run_whose_journal_was_pruned_is_shown_with_what_is_left(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'tape.db'}"
    with ServerProcess(store) as server, TapeClient(server.url) as client:
        ids = {"app_name": "a", "user_id": "u", "session_id": "s", "invocation_id": "i"}
        run_id = client.begin_run(**ids).run_id
        client.record_decision(run_id=run_id, decision_index=0, model="m1")
        client.end_run(run_id=run_id)
        assert tape("prune", "--before", "3", "--yes", "--store", store).returncode == 0
        assert "has 1 of the 3 entries; the others were pruned" in output_of(server, "runs", "show", run_id)
        assert tape("prune", "--before", "4", "--yes", "--store", store).returncode == 0
        assert "has 0 of the 3 entries" in output_of(server, "runs", "show", run_id)


def test_open_effects_are_listed_with_their_age_and_dispatch(server: ServerProcess, run_id: str) -> None:
    def tools(*flags: str) -> list[str]:
        return [effect["tool_name"] for effect in asked(server, "effects", *flags) if effect["run_id"] == run_id]

    assert tools("--unknown") == ["wire"]
    assert tools("--pending") == ["note"]
    assert tools() == tools("--pending", "--unknown") == ["wire", "note"]
    assert tools("--pending", "--older-than", "1h") == []
    assert all(effect["age_ms"] >= 0 for effect in asked(server, "effects"))
    text = output_of(server, "effects", "--unknown")
    assert re.search(r"unknown +wire +outbox bank, attempts 1, bank timed out", text)
    assert "not an age such as 90s" in refused(server, "effects", "--older-than", "soon")


def test_an_outbox_effect_says_whether_it_is_due_or_claimed(server: ServerProcess, client: TapeClient) -> None:
    ids = {"app_name": "outbox", "user_id": "u", "session_id": "s", "invocation_id": "i"}
    run_id = client.begin_run(**ids).run_id
    outbox = {"run_id": run_id, "decision_index": 0, "dispatch_mode": 2, "connector": "mail"}
    due, claimed, later = (client.begin_effect(**outbox, tool_name=name) for name in ("due", "claimed", "later"))
    client.claim_effect_dispatch(run_id=run_id, idempotency_key=claimed.idempotency_key, claimer="d7")
    client.record_dispatch_attempt(
        run_id=run_id,
        idempotency_key=later.idempotency_key,
        error="busy",
        next_dispatch_at_ms=int(time.time() * 1000) + 3_600_000,
    )
    text = output_of(server, "effects", "--pending")
    assert re.search(r"pending +due +outbox mail, due for \d", text)
    assert re.search(r"pending +claimed +outbox mail, claimed by d7 for \d+s", text)
    assert re.search(r"pending +later +outbox mail, due in 5\dm \d+s, attempts 1, busy", text)
    assert due.idempotency_key.removeprefix(f"{run_id}/") in text


def test_obligations_are_listed_with_their_next_step(server: ServerProcess, client: TapeClient) -> None:
    ids = {"app_name": "undo", "user_id": "u", "session_id": "s", "invocation_id": "i"}
    run_id = client.begin_run(**ids).run_id
    soon = int(time.time() * 1000) + 3_600_000

    def register(kind: str) -> int:
        return client.register_compensation(run_id=run_id, effect_key=f"key-{kind}", kind=kind).seq

    register("due")
    client.record_obligation_attempt(
        run_id=run_id, obligation_seq=register("later"), error="busy", next_attempt_at_ms=soon
    )
    client.record_obligation_attempt(run_id=run_id, obligation_seq=register("stuck"), error="no", next_attempt_at_ms=0)
    client.claim_obligation(run_id=run_id, obligation_seq=register("claimed"), claimer="c1")
    client.resolve_obligation(run_id=run_id, obligation_seq=register("done"), status=3)

    def kinds(*flags: str) -> set[str]:
        return {each["kind"] for each in asked(server, "obligations", *flags) if each["run_id"] == run_id}

    assert kinds() == kinds("--run", run_id) == {"due", "later", "stuck", "claimed"}
    assert kinds("--stuck") == kinds("--stuck", "--run", run_id) == {"stuck"}
    assert kinds("--due") == {"due"}
    assert kinds("--run", run_id, "--all") == {"due", "later", "stuck", "claimed", "done"}
    newest_first = [each["seq"] for each in asked(server, "obligations", "--run", run_id)]
    assert newest_first == sorted(newest_first, reverse=True)
    text = output_of(server, "obligations", "--run", run_id)
    assert re.search(r"pending +later +1 of 5 +due in 5\dm", text)
    assert re.search(r"committed +claimed +0 of 5 +claimed by c1 for \d+s", text)
    assert re.search(r"stuck +stuck +1 of 5 +needs an operator .* no", text)
    assert "--all needs --run" in refused(server, "obligations", "--all")
    assert "no such run" in refused(server, "obligations", "--run", "missing")


def test_a_signal_releases_the_run_that_waits(server: ServerProcess, client: TapeClient) -> None:
    ids = {"app_name": "gates", "user_id": "u", "session_id": "s"}
    run_id = client.begin_run(**ids, invocation_id="i").run_id
    client.await_signal(run_id=run_id, gate_name="approval")
    early = output_of(server, "signal", "review", "--run", run_id, "--resolution", '{"ok": 1}')
    assert "does not wait at 'review'" in early
    session_options = ["--app", "gates", "--user", "u", "--session", "s"]
    answer = asked(server, "signal", "approval", *session_options, "-r", '{"approved": true}')
    assert answer == {"accepted": True, "run_id": run_id, "run_status": "runnable", "repeated": False}
    assert client.await_signal(run_id=run_id, gate_name="approval").resolution_json == '{"approved": true}'
    assert client.await_signal(run_id=run_id, gate_name="review").resolution_json == '{"ok": 1}'


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "either --run, or all of --app, --user and --session"),
        (["--app", "a", "--user", "u"], "either --run, or all of"),
        (["--run", "r", "--app", "a", "--user", "u", "--session", "s"], "either --run, or all of"),
        (["--run", "missing"], "no such run: 'missing'"),
        (["--app", "a", "--user", "u", "--session", "s"], "no run for that session: a/u/s"),
        (["--run", "r", "--resolution", "yes"], "--resolution 'yes' is not JSON"),
    ],
)
def test_a_signal_without_a_run_is_rejected(server: ServerProcess, flags: list[str], reason: str) -> None:
    assert reason in refused(server, "signal", "approval", *flags)


def test_values_are_set_read_compared_and_deleted(server: ServerProcess) -> None:
    assert output_of(server, "values", "set", "fx", "eur", "1.10", "--if-version", "0") == "fx/eur has version 1\n"
    assert output_of(server, "values", "get", "fx", "eur") == "1.10\n"
    conflict = refused(server, "values", "set", "fx", "eur", "2", "--if-version", "0")
    assert "version conflict (have 1, expected 0)" in conflict
    written = asked(server, "values", "set", "fx", "eur", '{"rate": 1.2}', "--if-version", "1", "--writer", "ann")
    assert (written["version"], written["writer"], written["value_json"]) == (2, "ann", '{"rate": 1.2}')
    assert output_of(server, "values", "delete", "fx", "eur") == "fx/eur is deleted at version 3\n"
    assert "no value fx/eur. It was deleted at version 3." in refused(server, "values", "get", "fx", "eur")
    assert "never written" in refused(server, "values", "delete", "fx", "usd")
    assert "a string is written" in refused(server, "values", "set", "fx", "eur", "high")
    assert asked(server, "values", "delete", "fx", "eur") == {"deleted": True, "version": 4}


def test_a_value_can_come_from_standard_input(server: ServerProcess) -> None:
    done = tape("values", "set", "stdin", "k", "-", "--url", server.url, stdin='{"from": "a pipe"}\n')
    assert done.returncode == 0, done.stderr
    assert output_of(server, "values", "get", "stdin", "k") == '{"from": "a pipe"}\n'


def test_watching_shows_every_version_and_then_the_next(server: ServerProcess, client: TapeClient) -> None:
    for number in range(3):
        client.write_value(namespace="watched", key="k", value_json=str(number))
    seen = output_of(server, "values", "watch", "watched", "k", "--from-version", "1", "-n", "2")
    assert re.findall(r"^ +(\d+) \S+ (\d)  was (\d)", seen, re.MULTILINE) == [("2", "1", "0"), ("3", "2", "1")]
    wait_for(lambda: "tape_subscriptions 0.0" in metrics(server), "the end of that subscription")
    watching = subprocess.Popen(
        [*TAPE, "values", "watch", "watched", "k", "--from-version", "3", "-n", "2", "-o", "json", "--url", server.url],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: "tape_subscriptions 1.0" in metrics(server), "the subscription")
    client.write_value(namespace="watched", key="k", value_json="3")
    client.delete_value(namespace="watched", key="k")
    out, _ = watching.communicate(timeout=120)
    events = [json.loads(line) for line in out.splitlines()]
    assert [(event["value"]["version"], event["value"]["deleted"]) for event in events] == [(4, False), (5, True)]
    assert events[1]["prev_value_json"] == "3"


def test_every_command_reports_an_unreachable_server() -> None:
    for command in (["runs", "list"], ["effects"], ["obligations"], ["values", "get", "a", "b"], ["runs", "show", "r"]):
        done = tape(*command, "--url", "tape://127.0.0.1:1")
        assert done.returncode == 1
        assert "TAPE-1602" in done.stderr


def test_the_inbox_lists_shows_and_answers_a_gate_once(server: ServerProcess, client: TapeClient) -> None:
    ids = {"app_name": "inbox", "user_id": "u", "session_id": "s"}
    run_id = client.begin_run(**ids, invocation_id="i").run_id
    client.await_signal(run_id=run_id, gate_name="pay", payload_json='{"n":1}', risk="high", timeout_ms=3_600_000)
    [gate] = asked(server, "inbox", "--app", "inbox", "--due-within", "2h")["gates"]
    assert (gate["run_id"], gate["risk"], gate["payload_json"]) == (run_id, "high", '{"n":1}')
    assert "high" in output_of(server, "inbox", "show", run_id)
    assert "Say the answer" in refused(server, "inbox", "answer", run_id)
    approval = ("inbox", "answer", run_id, "pay", "--approve", "--reason", "seen")
    assert "is runnable now" in output_of(server, *approval)
    assert "has this answer already" in output_of(server, *approval)
    assert "answered by anonymous" in refused(server, "inbox", "answer", run_id, "pay", "--reject")


def test_schedules_are_created_paused_triggered_and_deleted(server: ServerProcess) -> None:
    made = asked(server, "schedules", "create", "cli", "--cron", "@daily", "--app", "scheduled", "--catch-up", "0")
    assert (made["name"], made["overlap"], made["catch_up_ms"]) == ("cli", "skip", 0)
    assert "other settings" in refused(server, "schedules", "create", "cli", "--cron", "@hourly", "--app", "scheduled")
    assert "is paused" in output_of(server, "schedules", "pause", "cli")
    assert asked(server, "schedules", "trigger", "cli")["run_id"]
    assert asked(server, "schedules", "show", "cli")["begun"] == 1
    assert "begins its next run" in output_of(server, "schedules", "resume", "cli")
    assert "cli" in [each["name"] for each in asked(server, "schedules", "list")]
    assert "is deleted" in output_of(server, "schedules", "delete", "cli")
    assert "no such schedule" in refused(server, "schedules", "delete", "cli")
