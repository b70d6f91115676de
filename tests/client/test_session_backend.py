"""A session mirrored to a server: visible while it runs, complete after outages."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tape import ChainBackend, JsonlBackend, ServerBackend, SessionTape, TapeClient, TextChunk
from tape.errors import MirrorBehind, ServerUnreachable
from tests import forked
from tests.services import ServerProcess, wait_for


def test_a_session_is_visible_on_the_journal_while_it_runs(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        backend = ServerBackend(server.url, session="chat 1", user="ada", tenant="coder")
        with SessionTape(backend=backend) as tape, TapeClient(server.url) as client:
            tape.record(TextChunk(text="hello"))
            follow = client.follow("/tape/session/**")
            entry = next(follow)
            assert entry.subject == "/tape/session/text/chat%201"
            assert entry.payload == tape.events[0]
            assert (entry.run_id, entry.user, entry.tenant, entry.session) == ("chat 1", "ada", "coder", "chat 1")
            tape.record({"kind": "Not a word"})
            odd = next(follow)
            assert odd.subject == "/tape/session/recorded/chat%201/Not%20a%20word"
            assert odd.payload["kind"] == "Not a word"
            follow.close()  # type: ignore[attr-defined]
        shown = forked.tape("tail", "--url", server.url, "--from", "start", "--no-follow", "-o", "json").stdout
        assert [json.loads(line)["payload"]["seq"] for line in shown.splitlines()] == [0, 1]


def test_a_session_is_visible_to_its_user_on_the_stream_over_http(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        with SessionTape(backend=ServerBackend(server.url, session="chat-1", user="ada", tenant="coder")) as tape:
            tape.record(TextChunk(text="hello"))
            address = f"{server.http_url}/v1/events?resume_seq=0&tenant=coder&user=ada&session=chat-1"
            with urllib.request.urlopen(address, timeout=120) as stream:
                event = next(line for line in stream if line.startswith(b"data: "))
                assert json.loads(event.removeprefix(b"data: "))["payload"] == tape.events[0]
                tape.record(TextChunk(text="again"))  # while a client follows
                event = next(line for line in stream if line.startswith(b"data: "))
                assert json.loads(event.removeprefix(b"data: "))["payload"] == tape.events[1]


def test_while_the_server_is_away_entries_wait_and_then_arrive_once(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'tape.db'}"
    with ServerProcess(store) as server:
        backend = ServerBackend(server.url, run_id="r")
        tape = SessionTape(backend=backend)
        for number in range(100):
            tape.record({"kind": "a", "number": number})
        tape.flush()
        address = server.url.removeprefix("tape://")
        server.kill()
        for number in range(100, 1_500):
            tape.record({"kind": "a", "number": number})
        wait_for(lambda: tape.backend_health.failures, "the outage to be noticed")
        assert tape.backend_health.pending == 1_400
        server.start(listen=address)
        assert tape.flush() == 0
        assert [entry["number"] for entry in backend.read_since(0)] == list(range(1_500))
        tape.close()


def test_too_many_waiting_entries_are_reported_and_not_lost(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        address = server.url.removeprefix("tape://")
        server.kill()
        backend = ServerBackend(server.url, max_pending=10, close_timeout_s=0.05)
        tape = SessionTape(backend=backend)
        for _ in range(50):
            tape.record({"kind": "a"})
        assert isinstance(tape.backend_errors[0].error, MirrorBehind)
        assert tape.backend_health.pending == 50
        with pytest.raises(MirrorBehind, match="have not reached"):
            backend.flush()
        server.start(listen=address)
        wait_for(lambda: tape.flush() == 0, "everything to arrive")
        assert [entry["seq"] for entry in backend.read_since(0)] == list(range(50))
        tape.close()


def test_an_entry_that_the_server_never_takes_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}", "--max-payload-bytes", "1000") as server:
        backend = ServerBackend(server.url)
        with SessionTape(backend=backend) as tape:
            for size in (1, 5_000, 1):
                tape.record(TextChunk(text="x" * size))
            tape.flush()
            assert [entry["seq"] for entry in backend.read_since(0)] == [0, 2]
            assert [entry["seq"] for entry in backend.refused] == [1]
            assert tape.backend_health.lost == 1
            assert "max_payload_bytes" in str(tape.backend_errors[-1])


def test_what_a_killed_process_had_not_sent_is_sent_by_the_next(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        with SessionTape(backend=JsonlBackend(tmp_path / "tape.jsonl")) as tape:
            for _ in range(5):
                tape.record({"kind": "a"})
        mirror = ServerBackend(server.url, run_id="r")
        with SessionTape(backend=ChainBackend(JsonlBackend(tmp_path / "tape.jsonl"), mirror)) as tape:
            tape.record({"kind": "b"})
            tape.flush()
            assert mirror.read_since(0) == tape.events


def test_the_end_of_the_process_waits_for_what_is_on_its_way(tmp_path: Path) -> None:
    program = """
import sys
from tape import ServerBackend, SessionTape
tape = SessionTape(backend=ServerBackend(sys.argv[1], run_id="r", close_timeout_s=200))
for _ in range(2000):
    tape.record({"kind": "a"})
"""
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        subprocess.run([sys.executable, "-c", program, server.url], check=True, timeout=240)
        with TapeClient(server.url) as client:
            assert client.head().global_seq == 2000


def test_the_end_of_the_process_says_what_did_not_arrive() -> None:
    program = """
from tape import ServerBackend, SessionTape
tape = SessionTape(backend=ServerBackend("tape://127.0.0.1:1", close_timeout_s=0.2))
tape.record({"kind": "a"})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert "1 entries have not reached tape://127.0.0.1:1" in done.stderr


def test_a_session_that_is_to_be_continued_needs_the_server(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable):
        SessionTape(backend=ServerBackend("tape://127.0.0.1:1", run_id="r"))
    away = ServerBackend("tape://127.0.0.1:1", run_id="r", close_timeout_s=0.1)
    with SessionTape(backend=ChainBackend(JsonlBackend(tmp_path / "t.jsonl"), away)) as tape:
        assert tape.record({"kind": "a"}) == 0
        assert isinstance(tape.backend_errors[0].error, ServerUnreachable)
    assert SessionTape.load(tmp_path / "t.jsonl").head == 1
