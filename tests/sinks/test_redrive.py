"""Dead letters of a relay, delivered again by the only process that has the sink."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape import Draft, TapeClient
from tape.errors import InvalidInput, SinkRejected, SinkUnavailable
from tape.sinks import FnSink
from tape.sinks.redrive import MOVED, Redriven, redrive_dead_letters
from tape.sinks.relay import run_outbox_relay
from tests.forked import tape
from tests.services import ServerProcess
from tests.sinks.receivers import HttpReceiver
from tests.sinks.test_relay import fill

SUBJECT = "/tape/rejected/entry/orders"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TapeClient]:
    with TapeClient(server.url) as client:
        yield client


class Desk:
    """A sink that rejects some numbers, and notes the event ids of what it takes."""

    def __init__(self, rejects: set[int] = frozenset(), fails_at: int | None = None) -> None:  # type: ignore[assignment]
        self.rejects = set(rejects)
        self.fails_at = fails_at
        self.taken: list[str] = []
        self.sink = FnSink(self._take)

    def _take(self, entry: Any) -> None:
        n = json.loads(entry.payload_json)["n"]
        if n == self.fails_at:
            raise SinkUnavailable("the desk is closed")
        if n in self.rejects:
            raise SinkRejected(f"number {n}")
        self.taken.append(f"{entry.run_id}/{entry.seq}")


def relay_to(client: TapeClient, desk: Desk, dead_letter: str) -> None:
    run_outbox_relay(
        client.url,
        desk.sink,
        once=True,
        policy="dead_letter",
        dead_letter=dead_letter,
        subject_pattern="/tape/order/**",
    )


@pytest.mark.parametrize("kind", ["file", "subject"])
def test_letters_reach_the_sink_with_their_first_event_ids_and_those_rejected_again_stay(
    client: TapeClient, tmp_path: Path, kind: str
) -> None:
    location = str(tmp_path / "dead.jsonl") if kind == "file" else SUBJECT
    fill(client, 10)
    relay_to(client, Desk({2, 5, 7}), location)
    desk = Desk({5})
    assert redrive_dead_letters(client.url, desk.sink, location) == Redriven(2, 1, 0)
    assert desk.taken == ["run-2/1", "run-3/2"]
    desk.rejects.clear()
    assert redrive_dead_letters(client.url, desk.sink, location) == Redriven(1, 0, 0)
    assert desk.taken[2:] == ["run-1/2"]
    if kind == "file":
        with pytest.raises(InvalidInput, match="no file"):
            redrive_dead_letters(client.url, desk.sink, location)
    else:
        assert redrive_dead_letters(client.url, desk.sink, location) == Redriven()


def test_an_unavailable_sink_loses_no_letter(client: TapeClient, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    fill(client, 10)
    relay_to(client, Desk(set(range(10))), str(file))
    with pytest.raises(SinkUnavailable):
        redrive_dead_letters(client.url, Desk(fails_at=4).sink, str(file))
    assert len(file.read_text().splitlines()) == 10
    assert redrive_dead_letters(client.url, Desk().sink, str(file)) == Redriven(10)
    assert not file.exists()


def test_letters_of_a_command_that_was_killed_are_delivered_first(client: TapeClient, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    fill(client, 4)
    relay_to(client, Desk({0, 1}), str(file))
    file.rename(f"{file}{MOVED}")
    fill(client, 4, kind="order/late")
    relay_to(client, Desk(), str(tmp_path / "other.jsonl"))
    desk = Desk()
    assert redrive_dead_letters(client.url, desk.sink, str(file)) == Redriven(2)
    assert desk.taken == ["run-0/1", "run-1/1"]
    assert list(tmp_path.glob(f"*{MOVED}")) == []


def test_a_line_that_is_no_letter_stays(client: TapeClient, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    fill(client, 2)
    relay_to(client, Desk({1}), str(file))
    with file.open("a") as lines:
        lines.write('{"run_id": "torn\n')
    assert redrive_dead_letters(client.url, Desk().sink, str(file)) == Redriven(1, 0, 1)
    assert file.read_text() == '{"run_id": "torn\n'


def test_a_forged_letter_in_the_journal_is_not_delivered(client: TapeClient) -> None:
    fill(client, 3)
    forged = {
        "run_id": "run-0",
        "seq": 99,
        "kind": "order",
        "payload_json": '{"n": 1000000}',
        "ts_ms": 1,
        "global_seq": 1,
        "subject": "/tape/order/created/0",
        "error": "SinkRejected: none",
    }
    letters = [forged, {**forged, "seq": 1, "global_seq": 10**17}]
    client.append_many([Draft(subject=SUBJECT, run_id="dead:run-0", payload_json=json.dumps(each)) for each in letters])
    desk = Desk()
    assert redrive_dead_letters(client.url, desk.sink, SUBJECT) == Redriven(0, 0, 2)
    assert desk.taken == []


def test_the_command_says_what_became_of_the_letters(
    server: ServerProcess, client: TapeClient, http: HttpReceiver, tmp_path: Path
) -> None:
    file = tmp_path / "dead.jsonl"
    fill(client, 3)
    relay_to(client, Desk({0, 1, 2}), str(file))
    command = ["relay", "--sink", f"webhook:{http.url}", "--allow-private", "--url", server.url, "--redrive", str(file)]
    http.answer = lambda request: (422 if b'"seq":2' in request.body else 200, {})
    done = tape(*command)
    assert (done.returncode, done.stdout) == (0, "3 delivered, 0 rejected again, 0 not deliverable\n"), done.stderr
    assert len(http.received) == 3
