"""The commands about reactions and tasks, used as a person or a script would."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tape import TapeClient
from tests.cli.test_ledgers import asked, output_of, refused
from tests.services import ServerProcess, wait_for

WHERE = "payload.total > 10"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(f"sqlite:{tmp_path_factory.mktemp('cli') / 'tape.db'}") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TapeClient]:
    """With a reaction that has five tasks: two dead, one claimed, two pending; and one whose predicate fails."""
    with TapeClient(server.url) as client:
        client.register_reaction(
            reaction_id="big",
            name="big orders",
            subject_pattern="/tape/order/paid/*",
            predicate_cel=WHERE,
            handler_kind=2,
            max_concurrency=3,
        )
        client.register_reaction(
            reaction_id="broken", subject_pattern="/tape/order/**", predicate_cel="payload.nothing > 1", handler_kind=2
        )
        for total in (5, 20, 30, 40, 50, 60):
            client.append(f"/tape/order/paid/{total}", {"total": total})
        wait_for(lambda: client.get_reaction_stats("broken").stats[0].predicate_errors == 6, "matching")
        dead = client.claim_tasks(reaction_id="big", owner="worker-1", max=2).tasks
        for task, error in zip(dead, ("disk full", "timeout"), strict=True):
            client.nack_task(task_id=task.task_id, owner="worker-1", error=error, permanent=True)
        client.claim_tasks(reaction_id="big", owner="worker-1", max=1)
        yield client


def test_reactions_are_listed_with_their_statistics(server: ServerProcess, client: TapeClient) -> None:
    page = output_of(server, "reactions", "list")
    big = next(line for line in page.splitlines() if line.startswith("big"))
    assert re.search(r"big +/tape/order/paid/\* +task +0 +5 +2 \(for \w+\) +1 +2 +0", big)
    broken = next(line for line in page.splitlines() if line.startswith("broken"))
    assert broken.split()[-1] == "6"
    both = {each["reaction_id"]: each for each in asked(server, "reactions", "list")}
    assert both["big"]["stats"]["pending"] == 2
    assert "nothing" in both["broken"]["stats"]["last_predicate_error"]


def test_one_reaction_is_shown_with_its_limits(server: ServerProcess, client: TapeClient) -> None:
    page = output_of(server, "reactions", "show", "big")
    assert "predicate    payload.total > 10" in page
    assert "attempts     5, the first retry after 1000 ms" in page
    assert "2 pending, 1 claimed, 2 dead letters" in page
    assert "at entry 6: " in output_of(server, "reactions", "show", "broken")
    assert "no such reaction: 'missing'" in refused(server, "reactions", "show", "missing")


def test_explain_shows_what_decided_and_the_state_of_the_task(server: ServerProcess, client: TapeClient) -> None:
    page = output_of(server, "reactions", "explain", "big", "1")
    assert "No match: the predicate is not true: payload.total > 10 → false." in page
    assert "payload.total  →  5" in page
    page = output_of(server, "reactions", "explain", "big", "2")
    assert "Match: the subject fits and the predicate is true." in page
    assert "A dead letter after 1 attempts, because: disk full." in page
    assert "Claimed by 'worker-1' (attempt 1)" in output_of(server, "reactions", "explain", "big", "4")
    assert "Due now: it waits for a dispatcher to claim it." in output_of(server, "reactions", "explain", "big", "5")
    client.append("/tape/order/refunded/7", {"total": 99})
    page = output_of(server, "reactions", "explain", "big", "7")
    assert "No match: segment 3 is 'refunded', the pattern wants 'paid'." in page
    assert asked(server, "reactions", "explain", "big", "2")["task"]["status"] == "dlq"
    assert "There is no entry 99" in refused(server, "reactions", "explain", "big", "99")


def test_a_dry_run_needs_no_registered_reaction(server: ServerProcess, client: TapeClient) -> None:
    page = output_of(server, "reactions", "test", "--pattern", "/tape/order/**", "--where", "payload.total > 25")
    assert "4 of 6 entries (1 to 6) would have matched." in page
    assert sum(map(int, re.findall(r"\d\d:00 █+ (\d)", page))) == 4  # in one hour, or in two
    assert "/tape/order/paid/60" in page
    page = output_of(server, "reactions", "test", "--pattern", "/tape/**", "--where", WHERE, "--from", "2", "--to", "4")
    assert "2 of 2 entries (3 to 4) would have matched." in page
    assert "failed on 6 entries" in output_of(server, "reactions", "test", "-p", "/tape/**", "-w", "payload.x > 1")
    assert asked(server, "reactions", "test", "-p", "/tape/**")["matched"] == 6
    assert "--from 'x' must be" in refused(server, "reactions", "test", "-p", "/tape/**", "--from", "x")


def test_a_reaction_is_deregistered(server: ServerProcess, client: TapeClient) -> None:
    assert "big is deregistered" in output_of(server, "reactions", "deregister", "big")
    assert [each["reaction_id"] for each in asked(server, "reactions", "list")] == ["broken"]
    assert "no such reaction" in refused(server, "reactions", "deregister", "missing")


def test_tasks_are_listed_and_shown(server: ServerProcess, client: TapeClient) -> None:
    page = output_of(server, "tasks", "list", "big")
    assert [line.split()[1] for line in page.splitlines()[1:]] == ["pending", "pending", "claimed", "dlq", "dlq"]
    assert "worker-1, lease expires in " in page
    dead = asked(server, "tasks", "list")
    assert [task["last_error"] for task in dead] == ["timeout", "disk full"]
    page = output_of(server, "tasks", "show", dead[1]["task_id"])
    assert 'payload  {"total":20}' in page
    assert "error    disk full" in page
    assert json.loads(asked(server, "tasks", "show", dead[1]["task_id"])["payload_json"]) == {"total": 20}
    assert "No tasks found." in output_of(server, "tasks", "list", "big", "--status", "done")


def test_dead_letters_are_redriven_and_dropped(server: ServerProcess, client: TapeClient) -> None:
    assert output_of(server, "tasks", "redrive", "--error", "disk") == "1 task redriven.\n"
    (left,) = asked(server, "tasks", "list")
    assert asked(server, "tasks", "drop", left["task_id"], "--reason", "seen to by hand") == {"dropped": 1}
    (dropped,) = asked(server, "tasks", "list", "big", "--status", "failed")
    assert dropped["last_error"] == "dropped: seen to by hand; before that: timeout"
    assert output_of(server, "tasks", "redrive", "--all") == "0 tasks redriven.\n"
    assert "Name the dead letters" in refused(server, "tasks", "drop")
    assert "Name the dead letters" in refused(server, "tasks", "redrive", "--all", "--reaction", "big")
