"""One suite for every backend, and what a tape does when one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tape import (
    ChainBackend,
    InMemoryBackend,
    JsonlBackend,
    NullBackend,
    ServerBackend,
    SessionTape,
    TapeBackend,
    TextChunk,
)
from tape.errors import InvalidInput
from tape.session import mirror
from tests.services import ServerProcess

Open = Callable[[], Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(f"sqlite:{tmp_path_factory.mktemp('server') / 'tape.db'}") as server:
        yield server


@pytest.fixture(params=["memory", "jsonl", "jsonl-always", "jsonl-rotating", "chain", "server"])
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same backend again and again, as a program that is restarted."""
    path, memory, opened = tmp_path / "tape.jsonl", InMemoryBackend(), []
    makers: dict[str, Open] = {
        "memory": lambda: memory,
        "jsonl": lambda: JsonlBackend(path),
        "jsonl-always": lambda: JsonlBackend(path, fsync="always"),
        "jsonl-rotating": lambda: JsonlBackend(path, fsync="interval", fsync_interval_s=0.01, rotate_bytes=150),
        "chain": lambda: ChainBackend([JsonlBackend(path), memory]),
        "server": lambda: ServerBackend(
            request.getfixturevalue("server").url, run_id=f"run-{request.node.name}-{tmp_path.name}"
        ),
    }

    def open_it() -> Any:
        backend = makers[request.param]()
        opened.append(backend)
        return backend

    yield open_it
    for backend in opened:
        getattr(backend, "close", lambda: None)()


def close(backend: Any) -> None:
    getattr(backend, "close", lambda: None)()


def test_it_is_a_backend(open_backend: Open) -> None:
    assert isinstance(open_backend(), TapeBackend)


def test_an_empty_one_has_nothing(open_backend: Open) -> None:
    backend = open_backend()
    assert backend.head() == 0
    assert backend.read_since(0) == []


def test_it_returns_what_was_appended_from_any_seq(open_backend: Open) -> None:
    tape = SessionTape(backend=open_backend())
    for number in range(20):
        tape.record(TextChunk(text=f"é {number}"))
    tape.flush()
    assert tape.backend.read_since(0) == tape.events
    assert tape.backend.read_since(13) == list(tape.since(13))
    assert tape.backend.read_since(20) == []
    assert tape.backend.head() == 20


def test_a_tape_goes_on_where_the_last_one_ended(open_backend: Open) -> None:
    with SessionTape(backend=open_backend()) as first:
        for number in range(5):
            first.record({"kind": "a", "number": number})
    with SessionTape(backend=open_backend()) as second:
        assert second.events == first.events
        assert second.record({"kind": "b"}) == 5
    with SessionTape(backend=open_backend(), max_events=2) as third:
        assert [entry["seq"] for entry in third.events] == [4, 5]
        assert (third.watermark, third.head) == (4, 6)


def test_cleared_it_begins_anew(open_backend: Open) -> None:
    tape = SessionTape(backend=open_backend())
    for _ in range(5):
        tape.record({"kind": "a"})
    tape.clear(backend=True)
    assert tape.backend.head() == 0
    assert tape.backend.read_since(0) == []
    tape.record({"kind": "b"})
    tape.flush()
    assert tape.backend.read_since(0) == tape.events


def test_gaps_in_the_seqs_are_kept(open_backend: Open) -> None:
    tape = SessionTape(backend=open_backend())
    for seq in (3, 4, 9):
        tape.record_dict({"kind": "a", "seq": seq})
    tape.flush()
    assert [entry["seq"] for entry in tape.backend.read_since(4)] == [4, 9]
    assert tape.backend.head() == 10


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


class Failing(InMemoryBackend):
    """Fails while `is_broken`."""

    is_broken = True

    def append(self, entry: dict[str, Any]) -> None:
        if self.is_broken:
            raise OSError(28, "No space left on device")
        super().append(entry)


def test_a_failing_backend_does_not_fail_the_session_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    tape = SessionTape(backend=Failing())
    with caplog.at_level(logging.ERROR, "tape.session"):
        for _ in range(10):
            tape.record({"kind": "a"})
    assert tape.head == 10
    assert tape.backend_health.pending == 10
    assert tape.backend_health.failures >= 1
    assert "Failing failed on seq 0: OSError" in str(tape.backend_errors[0])
    assert len(caplog.records) == 1


def test_what_a_backend_refused_reaches_it_in_order_once_it_works_again() -> None:
    backend = Failing()
    tape = SessionTape(backend=backend)
    for _ in range(5):
        tape.record({"kind": "a"})
    assert tape.flush() == 5
    backend.is_broken = False
    assert tape.flush() == 0
    tape.record({"kind": "b"})
    assert backend.entries == tape.events


def test_a_backend_is_retried_by_later_records(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(mirror.time, "monotonic", lambda: now[0])
    backend = Failing()
    tape = SessionTape(backend=backend)
    tape.record({"kind": "a"})
    backend.is_broken = False
    tape.record({"kind": "b"})
    assert backend.entries == []
    now[0] += mirror.RETRY.initial_interval_s
    tape.record({"kind": "c"})
    assert backend.entries == tape.events


def test_dropped_entries_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    held = mirror.Mirror(Failing(), max_backlog=3)
    with caplog.at_level(logging.ERROR, "tape.session"):
        for seq in range(5):
            held.append({"seq": seq})
    assert (held.health.pending, held.health.lost) == (3, 2)
    assert "seq 0 is dropped" in caplog.text


def test_in_a_chain_one_that_fails_does_not_hold_up_the_others() -> None:
    broken, good = Failing(), InMemoryBackend()
    tape = SessionTape(backend=ChainBackend(broken, good))
    for _ in range(3):
        tape.record({"kind": "a"})
    assert good.entries == tape.events
    assert tape.backend_health.pending == 3
    assert tape.backend_errors[0].backend == "Failing"
    broken.is_broken = False
    assert tape.flush() == 0
    assert broken.entries == tape.events


def test_a_chain_takes_a_list_or_arguments_and_nothing_else() -> None:
    a, b = InMemoryBackend(), NullBackend()
    assert ChainBackend([a, b]).backends == ChainBackend(a, b).backends == [a, b]
    with pytest.raises(InvalidInput, match="no backend"):
        ChainBackend(["entry"])  # type: ignore[list-item]


def test_a_chain_hands_a_backend_what_it_missed_before_a_restart(tmp_path: Path) -> None:
    with SessionTape(backend=JsonlBackend(tmp_path / "a.jsonl")) as tape:
        for _ in range(3):
            tape.record({"kind": "a"})
    late = InMemoryBackend()
    with SessionTape(backend=ChainBackend(JsonlBackend(tmp_path / "a.jsonl"), late)) as tape:
        tape.record({"kind": "b"})
    assert late.entries == tape.events
    assert len(late.entries) == 4


def test_a_backend_with_append_alone_is_enough() -> None:
    class Minimal:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def append(self, entry: dict[str, Any]) -> None:
            self.seen.append(entry)

    backend = Minimal()
    tape = SessionTape(backend=backend)  # type: ignore[arg-type]
    tape.record({"kind": "a"})
    tape.close()
    assert backend.seen == tape.events
