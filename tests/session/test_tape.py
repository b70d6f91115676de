"""The tape itself: recording, cursors, watermark, summary, saving and loading."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape import (
    ChainBackend,
    EventRecord,
    HarnessEvent,
    InMemoryBackend,
    JsonlBackend,
    SessionTape,
    TextChunk,
    ToolCallStart,
)
from tape.errors import CursorExpired, InvalidEvent, InvalidInput, SeqTaken, SessionCursorExpired


def seqs(entries: Any) -> list[int]:
    return [entry["seq"] for entry in entries]


def test_an_event_becomes_an_entry_with_the_next_seq() -> None:
    tape = SessionTape()
    entry = tape.record(ToolCallStart(tool_name="bash", args={"cmd": "ls"}))
    assert list(entry) == ["seq", "t", "kind", "type", "tool_name", "args"]
    assert entry["kind"] == "tool_call_start"
    assert entry["type"] == "ToolCallStart"
    assert tape.record({"kind": "text", "text": "b"})["seq"] == 1
    assert tape.head == 2


def test_an_entry_also_stands_for_its_seq() -> None:
    tape = SessionTape()
    tape.record({"kind": "a"})
    entry = tape.record({"kind": "b"})
    assert int(entry) == 1
    assert entry == 1
    assert entry != 0
    assert 0 < entry < 2
    assert entry >= 1
    assert entry == {"seq": 1, "t": entry["t"], "kind": "b"}
    assert seqs(tape.since(entry)) == [1]
    assert json.loads(json.dumps(entry)) == entry


def test_own_event_classes_are_recorded() -> None:
    @dataclass(frozen=True)
    class Priced(HarnessEvent):
        euros: int = 0
        kind: str = "priced"

    entry = SessionTape().record(Priced(euros=3))
    assert (entry["kind"], entry["type"], entry["euros"]) == ("priced", "Priced", 3)


@dataclass(frozen=True)
class Clashing(HarnessEvent):
    seq: int = 9
    kind: str = "clash"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("text", "takes a dict or an event dataclass"),
        ({"text": "no kind"}, "kind None"),
        ({"kind": 3}, "kind 3"),
        ({"kind": "a", "seq": 4}, "seq 4"),
        ({"kind": "a", "t": 4}, "t 4"),
        ({"kind": "a", 1: 2}, "key 1"),
        (Clashing(), "'seq'"),
    ],
)
def test_an_event_that_cannot_be_recorded_raises_and_uses_no_seq(event: Any, words: str) -> None:
    tape = SessionTape()
    with pytest.raises(InvalidEvent, match=words):
        tape.record(event)
    assert tape.head == 0
    assert tape.record({"kind": "a"}) == 0


def test_record_dict_keeps_a_seq_and_refuses_one_that_is_taken() -> None:
    tape = SessionTape()
    given = {"kind": "a", "seq": 5, "t": 1.5}
    assert tape.record_dict(given) == {"seq": 5, "t": 1.5, "kind": "a"}
    assert given == {"kind": "a", "seq": 5, "t": 1.5}
    assert tape.record_dict({"kind": "b"}) == 6
    with pytest.raises(SeqTaken, match="seq 5 lies before the head of the tape \\(7\\)"):
        tape.record_dict({"seq": 5})
    with pytest.raises(InvalidEvent, match="'5'"):
        tape.record_dict({"seq": "5"})
    assert tape.head == 7


def test_since_is_a_snapshot_that_writing_does_not_disturb() -> None:
    tape = SessionTape()
    for _ in range(3):
        tape.record({"kind": "a"})
    seen = []
    for entry in tape.since(1):
        seen.append(entry["seq"])
        tape.record({"kind": "b"})
    assert seen == [1, 2]
    assert tape.head == 5


def test_a_reader_below_the_watermark_gets_an_error_and_may_skip() -> None:
    tape = SessionTape(max_events=3)
    for _ in range(10):
        tape.record({"kind": "a"})
    assert (tape.head, tape.watermark, tape.size) == (10, 7, 3)
    with pytest.raises(CursorExpired, match="oldest entry that this tape still has \\(7\\)") as raised:
        tape.since(6)
    assert isinstance(raised.value, SessionCursorExpired)
    assert raised.value.watermark == 7
    assert seqs(tape.since(7)) == [7, 8, 9]
    assert seqs(tape.since(0, skip_expired=True)) == [7, 8, 9]


@given(
    limit=st.integers(0, 6),
    steps=st.lists(st.integers(0, 3), max_size=40),
    cursor=st.integers(0, 60),
)
def test_since_is_what_a_plain_list_would_say(limit: int, steps: list[int], cursor: int) -> None:
    tape, everything = SessionTape(max_events=limit), []
    for step in steps:
        seq = tape.head + step
        tape.record_dict({"kind": str(step), "seq": seq})
        everything.append(seq)
    kept = everything[-limit:] if limit else everything
    assert seqs(tape.events) == kept
    assert tape.watermark == (kept[0] if kept else tape.head)
    assert tape.head == (everything[-1] + 1 if everything else 0)
    assert seqs(tape.since(cursor, skip_expired=True)) == [seq for seq in kept if seq >= cursor]
    lost = [seq for seq in everything if seq not in kept and seq >= cursor]
    if lost:
        with pytest.raises(CursorExpired):
            tape.since(cursor)
    assert [record.seq for record in tape.records_since(cursor, skip_expired=True)] == [s for s in kept if s >= cursor]


@given(kinds=st.lists(st.sampled_from("abc"), max_size=30))
def test_filter_and_summary_agree_with_what_was_recorded(kinds: list[str]) -> None:
    tape = SessionTape()
    for kind in kinds:
        tape.record({"kind": kind})
    for kind in "abc":
        assert seqs(tape.filter(kind)) == [seq for seq, each in enumerate(kinds) if each == kind]
    summary = tape.summary()
    assert summary["event_counts"] == {kind: kinds.count(kind) for kind in set(kinds)}
    assert (summary["total_events"], summary["head"], summary["watermark"]) == (len(kinds), len(kinds), 0)


def test_many_threads_record_without_losing_or_doubling_a_seq() -> None:
    backend = InMemoryBackend()
    tape = SessionTape(backend=backend)

    def write(name: str) -> None:
        for number in range(500):
            tape.record({"kind": name, "number": number})

    threads = [threading.Thread(target=write, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seqs(tape.events) == list(range(2000))
    assert backend.entries == tape.events
    assert [entry["number"] for entry in tape.filter("w2")] == list(range(500))


# ── interrupts ───────────────────────────────────────────────────────────────────────────────────


class Interrupt(BaseException):
    """What a handler of a signal raises, like KeyboardInterrupt."""


@contextmanager
def handled(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def can_be_recorded_from_another_thread(tape: SessionTape) -> bool:
    thread = threading.Thread(target=tape.record, args=({"kind": "a"},), daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_an_event_that_is_rejected_leaves_the_tape_unlocked() -> None:
    tape = SessionTape()
    with pytest.raises(InvalidEvent):
        tape.record({"kind": 3})
    assert can_be_recorded_from_another_thread(tape)


def test_an_interrupt_at_any_point_of_record_leaves_the_tape_unlocked() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    def record_forever() -> None:
        while True:
            tape.record({"kind": "a"})

    tape = SessionTape(max_events=10)
    with handled(signal.SIGVTALRM, interrupt):
        for _ in range(150):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
            with pytest.raises(Interrupt):
                record_forever()
            assert can_be_recorded_from_another_thread(tape)


def test_an_interrupt_while_record_waits_for_another_thread_is_raised_as_it_is() -> None:
    entered, finish = threading.Event(), threading.Event()

    class Slow(InMemoryBackend):
        def append(self, entry: dict[str, Any]) -> None:
            entered.set()
            while not finish.wait(0.01):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            super().append(entry)

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "record":
            raise Interrupt

    tape = SessionTape(backend=Slow())
    with handled(signal.SIGUSR1, interrupt):
        other = threading.Thread(target=tape.record, args=({"kind": "slow"},))
        other.start()
        try:
            assert entered.wait(60)
            with pytest.raises(Interrupt):
                tape.record({"kind": "interrupted"})
        finally:
            finish.set()
            other.join()
        assert [entry["kind"] for entry in tape.events] == ["slow"]
        assert tape.record({"kind": "after"}) == 1


def test_times_never_go_back_even_over_a_restart(tmp_path: Path) -> None:
    tape = SessionTape()
    tape.record_dict({"kind": "a", "t": 100.0})
    tape.save(tmp_path / "tape.jsonl")
    again = SessionTape.load(tmp_path / "tape.jsonl")
    assert again.record({"kind": "b"})["t"] >= 100.0


def test_clear_begins_at_0_unless_a_backend_still_has_entries() -> None:
    tape = SessionTape()
    tape.record({"kind": "a"})
    tape.clear()
    assert (tape.head, tape.size) == (0, 0)

    kept = SessionTape(backend=InMemoryBackend())
    kept.record({"kind": "a"})
    kept.clear()
    assert (kept.head, kept.size) == (1, 0)
    kept.clear(backend=True)
    assert kept.record({"kind": "b"}) == 0
    assert kept.backend.read_since(0) == kept.events


def test_a_saved_tape_loads_as_it_was(tmp_path: Path) -> None:
    tape = SessionTape()
    tape.record(TextChunk(text="héllo"))
    tape.record({"kind": "odd", "value": float("nan"), "set": {1}, "when": Path("/x"), ("k",)[0]: None})
    tape.save(tmp_path / "deep/tape.jsonl")
    again = SessionTape.load(tmp_path / "deep/tape.jsonl")
    assert again.events[0] == tape.events[0]
    assert again.events[1]["value"] == "nan"
    assert again.events[1]["set"] == [1]
    assert again.head == 2
    for line in (tmp_path / "deep/tape.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert SessionTape.load(tmp_path / "none.jsonl").head == 0


def test_values_that_contain_themselves_are_written_all_the_same(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    tape = SessionTape()
    tape.record({"kind": "loop", "value": loop})
    tape.save(tmp_path / "tape.jsonl")
    assert SessionTape.load(tmp_path / "tape.jsonl").head == 1


def test_old_captures_get_their_seq_from_the_line(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text('{"kind": "a"}\n\n{"kind": "b"}\n')
    tape = SessionTape.load(path)
    assert [(entry["seq"], entry["kind"]) for entry in tape.events] == [(0, "a"), (2, "b")]
    assert tape.head == 3


def test_seqs_out_of_order_are_put_in_order_and_head_is_above_all(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"seq": 7, "kind": "a"}\n{"kind": "b"}\n{"seq": 3, "kind": "c"}\n')
    tape = SessionTape.load(path)
    assert seqs(tape.events) == [1, 3, 7]
    assert tape.record({"kind": "d"}) == 8


def test_two_sessions_in_one_file_keep_the_order_of_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text("".join(f'{{"seq": {seq}, "kind": "{kind}"}}\n' for kind in "ab" for seq in range(3)))
    tape = SessionTape.load(path)
    assert [(entry["seq"], entry["kind"]) for entry in tape.events] == list(enumerate("aaabbb"))


def test_a_bad_line_is_reported_with_its_number_and_the_rest_loads(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"seq": 0, "kind": "a"}\nnot json\n[1]\n{"seq": null}\n{"seq": 4, "kind": "b"}\n{"seq": 5, "ki')
    tape = SessionTape.load(path)
    assert seqs(tape.events) == [0, 4]
    assert [bad.line for bad in tape.bad_lines] == [2, 3, 4, 6]
    assert "bad.jsonl, line 2: not JSON" in str(tape.bad_lines[0])
    assert "not written to its end" in tape.bad_lines[-1].reason


def test_the_typed_view_carries_everything() -> None:
    entry = SessionTape().record(TextChunk(text="a"))
    record = EventRecord.from_dict(entry)
    assert (record.seq, record.kind, record.type, record.payload) == (0, "text", "TextChunk", {"text": "a"})
    assert record.to_dict() == entry
    assert EventRecord.from_dict({}) == EventRecord(-1, 0.0, "", "", {})


def test_something_that_is_no_backend_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs an append"):
        SessionTape(backend=object())  # type: ignore[arg-type]


# ── whose values entries hold ────────────────────────────────────────────────────────────────────


def test_changing_what_was_recorded_does_not_change_the_tape(tmp_path: Path) -> None:
    args: dict[str, Any] = {"paths": ["a"], "seen": {1}}
    event = {"kind": "plan", "args": args}
    with SessionTape(backend=JsonlBackend(tmp_path / "tape.jsonl")) as tape:
        returned = [
            tape.record(ToolCallStart(tool_name="ls", args=args)),
            tape.record(event),
            tape.record_dict({"kind": "copied", "args": args}),
        ]
        args["paths"].append("b")
        args["seen"].add(2)
        event["kind"] = "other"
        for entry in returned:
            entry["args"]["more"] = True
        assert [entry["args"] for entry in tape.events] == [{"paths": ["a"], "seen": {1}}] * 3
        assert [entry["kind"] for entry in tape.events] == ["tool_call_start", "plan", "copied"]
    assert [entry["args"] for entry in SessionTape.load(tmp_path / "tape.jsonl").events] == [
        {"paths": ["a"], "seen": [1]}
    ] * 3


def test_a_value_that_cannot_be_copied_is_recorded_as_its_repr() -> None:
    lock = threading.Lock()
    tape = SessionTape()
    assert tape.record({"kind": "odd", "lock": lock})["lock"] is lock
    assert tape.events[0]["lock"] == repr(lock)


# ── a file behind ────────────────────────────────────────────────────────────────────────────────


def texts(entries: Iterable[dict[str, Any]]) -> list[int]:
    return [entry["n"] for entry in entries]


def fill(backend: Any, count: int = 100, max_events: int = 5) -> SessionTape:
    tape = SessionTape(max_events=max_events, backend=backend)
    for number in range(count):
        tape.record({"kind": "n", "n": number})
    return tape


@pytest.mark.parametrize("make", [JsonlBackend, lambda path: ChainBackend(ServerlessBackend(), JsonlBackend(path))])
async def test_entries_that_left_memory_are_read_from_the_file(make: Any, tmp_path: Path) -> None:
    tape = fill(make(tmp_path / "tape.jsonl"))
    assert (tape.size, tape.watermark) == (5, 95)
    assert texts(tape.since(0)) == list(range(100))
    assert texts(tape.since(93)) == list(range(93, 100))
    assert [record.seq for record in tape.records_since(42)] == list(range(42, 100))
    tail = tape.tail(90)
    assert [(await anext(tail))["n"] for _ in range(3)] == [90, 91, 92]
    for number in range(100, 120):  # while the reader is behind
        tape.record({"kind": "n", "n": number})
    assert [(await anext(tail))["n"] for _ in range(27)] == list(range(93, 120))
    tape.close()
    again = SessionTape(max_events=5, backend=JsonlBackend(tmp_path / "tape.jsonl"))
    assert (again.size, texts(again.since(0))) == (5, list(range(120)))
    again.close()


class ServerlessBackend:
    """Can be appended to, and not read."""

    def append(self, entry: dict[str, Any]) -> None:
        pass


def test_entries_that_the_file_no_longer_has_are_an_error(tmp_path: Path) -> None:
    tape = fill(JsonlBackend(tmp_path / "tape.jsonl", rotate_bytes=500, rotate_keep=1))
    with pytest.raises(SessionCursorExpired) as raised:
        tape.since(0)
    oldest = raised.value.watermark
    assert 5 < oldest < 95
    assert texts(tape.since(oldest)) == texts(tape.since(0, skip_expired=True)) == list(range(oldest, 100))
    tape.close()


def test_a_backend_that_lacks_entries_is_not_read_from() -> None:
    class Failing(InMemoryBackend):
        def append(self, entry: dict[str, Any]) -> None:
            if entry["seq"] == 50:
                raise OSError("full")
            super().append(entry)

    tape = fill(Failing())
    assert tape.backend_health.pending
    with pytest.raises(SessionCursorExpired):
        tape.since(10)


def test_a_seq_that_never_was_is_no_expired_cursor(tmp_path: Path) -> None:
    with SessionTape(max_events=2, backend=JsonlBackend(tmp_path / "tape.jsonl")) as tape:
        for seq in (0, 1, 2, 10, 11, 12, 13):
            tape.record_dict({"kind": "n", "n": seq, "seq": seq})
        assert texts(tape.since(5)) == [10, 11, 12, 13]


def test_a_loaded_tape_says_that_it_does_not_write_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tape.jsonl"
    fill(JsonlBackend(path), 3).close()
    tape = SessionTape.load(path)
    assert not caplog.records
    tape.record({"kind": "n", "n": 3})
    tape.record({"kind": "n", "n": 4})
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["seq 3 is recorded in memory only"]
    assert (tape.size, len(SessionTape.load(path).events)) == (5, 3)
    tape.save(path)
    assert texts(SessionTape.load(path).events) == list(range(5))


def test_a_tape_loaded_to_append_continues_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tape.jsonl"
    fill(JsonlBackend(path), 3).close()
    with SessionTape.load(path, append=True) as tape:
        assert tape.record({"kind": "n", "n": 3}) == 3
    assert texts(SessionTape.load(path).events) == [0, 1, 2, 3]
    assert not caplog.records
