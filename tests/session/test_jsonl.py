"""The file: killed processes, torn lines, full disks, two writers, rotation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tape import JsonlBackend, SessionTape
from tape.errors import InvalidInput, TapeFileInUse, TapeFileUnusable
from tape.session.lines import segments
from tests.services import wait_for


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


ENDLESS = """
import sys
from tape import JsonlBackend, SessionTape
tape = SessionTape(max_events=10, backend=JsonlBackend(sys.argv[1], fsync=sys.argv[2], rotate_bytes=int(sys.argv[3])))
print(tape.head, flush=True)
while True:
    entry = tape.record({"kind": "text", "text": "x" * 50})
    sys.stdout.write(f"{entry['seq']}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize(("fsync", "rotate"), [("never", 0), ("interval", 0), ("always", 20_000)])
def test_after_kill_9_every_entry_that_record_returned_is_there(tmp_path: Path, fsync: str, rotate: int) -> None:
    path = tmp_path / "tape.jsonl"
    head = 0
    for _ in range(3):
        process = start(ENDLESS, path, fsync, rotate)
        assert process.stdout is not None
        assert int(process.stdout.readline()) >= head
        for _ in range(300):
            printed = int(process.stdout.readline())
        kill(process)
        tape = SessionTape.load(path)
        # The kill may cut the write that was under way; that entry was not acknowledged, and the next start repairs it.
        assert all("not written to its end" in bad.reason for bad in tape.bad_lines)
        assert [entry["seq"] for entry in tape.events] == list(range(tape.head))
        assert tape.head > printed
        head = tape.head
    with SessionTape(backend=JsonlBackend(path)) as tape:
        assert tape.head == head
    assert SessionTape.load(path).bad_lines == []


def test_half_a_line_is_moved_to_another_file_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tape.jsonl"
    whole = '{"seq": 0, "t": 0.0, "kind": "a"}\n'
    path.write_text(whole + '{"seq": 1, "t": 0.1, "ki')
    backend = JsonlBackend(path)
    assert backend.head() == 1
    assert path.read_text() == whole
    repair = backend.repairs[0]
    assert (repair.offset, repair.size) == (len(whole), 24)
    assert Path(repair.moved_to).read_text() == '{"seq": 1, "t": 0.1, "ki\n'
    assert "ended with half a line" in caplog.text
    with SessionTape(backend=backend) as tape:
        assert tape.record({"kind": "b"}) == 1
    assert [entry["kind"] for entry in SessionTape.load(path).events] == ["a", "b"]


def test_a_whole_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_text('{"seq": 0, "kind": "a"}\n{"seq": 1, "kind": "b"}')
    with SessionTape(backend=JsonlBackend(path)) as tape:
        assert tape.record({"kind": "c"}) == 2
    assert [entry["kind"] for entry in SessionTape.load(path).events] == ["a", "b", "c"]


def test_a_long_torn_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_text('{"seq": 0, "kind": "a"}\n' + '{"seq": 1, "text": "' + "x" * 200_000)
    backend = JsonlBackend(path)
    assert backend.repairs[0].size == 200_020
    assert backend.head() == 1
    backend.close()


def test_a_bad_line_in_the_middle_stays_and_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_text('{"seq": 0, "kind": "a"}\n\x00\x00\n{"seq": 5, "kind": "b"}\n')
    backend = JsonlBackend(path)
    assert [bad.line for bad in backend.bad_lines] == [2]
    assert "tape.jsonl, line 2" in caplog.text
    assert backend.head() == 6
    assert [entry["seq"] for entry in backend.read_since(0)] == [0, 5]
    with SessionTape(backend=backend) as tape:
        assert [bad.line for bad in tape.bad_lines] == [2]


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    with SessionTape(backend=JsonlBackend(path)) as tape:
        tape.record({"kind": "a"})
        with pytest.raises(TapeFileInUse, match=r"SessionTape\.load"):
            JsonlBackend(path)
        program = (
            "import sys\nfrom tape import JsonlBackend\nfrom tape.errors import TapeFileInUse\n"
            "try: JsonlBackend(sys.argv[1])\nexcept TapeFileInUse as error: print(error.code)"
        )
        other = start(program, path)
        assert other.communicate()[0] == "TAPE-1954\n"
        assert SessionTape.load(path).events == tape.events
    JsonlBackend(path).close()


def test_a_backend_without_references_closes_its_file(tmp_path: Path) -> None:
    JsonlBackend(tmp_path / "tape.jsonl").append({"seq": 0, "kind": "a"})
    backend = JsonlBackend(tmp_path / "tape.jsonl")
    assert backend.head() == 1
    backend.close()


def test_a_fork_does_not_write_to_its_parents_file(tmp_path: Path) -> None:
    program = """
import os, sys
from tape import JsonlBackend, SessionTape
tape = SessionTape(backend=JsonlBackend(sys.argv[1]))
tape.record({"kind": "parent"})
if os.fork() == 0:
    tape.record({"kind": "child"})
    os._exit(0 if tape.backend_health.pending == 1 else 1)
print(os.waitpid(-1, 0)[1])
"""
    assert start(program, tmp_path / "tape.jsonl").communicate()[0] == "0\n"
    assert [entry["kind"] for entry in SessionTape.load(tmp_path / "tape.jsonl").events] == ["parent"]


# A limit on the size of files is a full disk that a test can free again: a write is cut short, the next one fails.
FULL = """
import resource, signal, sys
from tape import JsonlBackend, SessionTape
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
tape = SessionTape(backend=JsonlBackend(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for number in range(50):
    tape.record({"kind": "text", "number": number})
health = tape.backend_health
print(health.pending > 20, health.lost, type(tape.backend_errors[0].error).__name__)
print(open(sys.argv[1]).read().endswith("}\\n"))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(tape.flush())
tape.record({"kind": "text", "number": 50})
tape.close()
"""


def test_a_full_disk_loses_nothing_once_there_is_space_again(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    assert start(FULL, path).communicate()[0] == "True 0 OSError\nTrue\n0\n"
    tape = SessionTape.load(path)
    assert tape.bad_lines == []
    assert [entry["number"] for entry in tape.events] == list(range(51))


def test_a_failing_flush_to_disk_raises_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def sync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("tape.session.backends.jsonl._sync", sync)
    with SessionTape(backend=JsonlBackend(tmp_path / "tape.jsonl", fsync="always")) as tape:
        tape.record({"kind": "a"})
        assert tape.backend_health.pending == 1
        assert (tmp_path / "tape.jsonl").read_text() == ""
        assert tape.flush() == 0
    assert SessionTape.load(tmp_path / "tape.jsonl").events == tape.events


def test_interval_brings_entries_to_the_disk_without_another_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("tape.session.backends.jsonl._sync", calls.append)
    with SessionTape(backend=JsonlBackend(tmp_path / "t.jsonl", fsync="interval", fsync_interval_s=0.01)) as tape:
        assert calls == []
        tape.record({"kind": "a"})
        wait_for(lambda: calls, "the flush")


def test_interval_brings_entries_to_the_disk_after_the_file_was_closed_and_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("tape.session.backends.jsonl._sync", calls.append)
    backend = JsonlBackend(tmp_path / "t.jsonl", fsync="interval", fsync_interval_s=0.01)
    for seq in range(2):
        backend.close()
        calls.clear()
        backend.append({"seq": seq, "kind": "a"})
        wait_for(lambda: calls, "the flush")
    backend.close()


def test_a_failing_background_flush_is_reported_by_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [True]

    def sync(fd: int) -> None:
        if failing[0]:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("tape.session.backends.jsonl._sync", sync)
    with SessionTape(backend=JsonlBackend(tmp_path / "t.jsonl", fsync="interval", fsync_interval_s=0.01)) as tape:
        tape.record({"kind": "a"})
        wait_for(lambda: tape.record({"kind": "b"}) and tape.backend_errors, "the error")
        failing[0] = False
        wait_for(lambda: tape.flush() == 0, "everything to be written")
    assert SessionTape.load(tmp_path / "t.jsonl").events == tape.events


def test_rotation_renames_full_files_and_reads_them_all(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    with SessionTape(backend=JsonlBackend(path, rotate_bytes=300)) as tape:
        for number in range(100):
            tape.record({"kind": "text", "number": number})
        with pytest.raises(TapeFileInUse):
            JsonlBackend(path)
    files = segments(path)
    assert len(files) > 10
    assert all(file.stat().st_size <= 300 for file in files)
    assert SessionTape.load(path).events == tape.events
    with SessionTape(backend=JsonlBackend(path, rotate_bytes=300)) as again:
        assert again.events == tape.events
        assert again.record({"kind": "text"}) == 100


def test_rotation_keeps_as_many_files_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    with SessionTape(backend=JsonlBackend(path, rotate_bytes=300, rotate_keep=2)) as tape:
        for _ in range(100):
            tape.record({"kind": "text"})
    assert len(segments(path)) == 3
    kept = [entry["seq"] for entry in SessionTape.load(path).events]
    assert kept == list(range(kept[0], 100))


def test_an_entry_larger_than_the_limit_gets_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    with SessionTape(backend=JsonlBackend(path, rotate_bytes=100)) as tape:
        for size in (1, 500, 1):
            tape.record({"kind": "text", "text": "x" * size})
    assert SessionTape.load(path).events == tape.events
    assert len(segments(path)) == 3


def test_a_path_that_cannot_be_a_file_raises(tmp_path: Path) -> None:
    with pytest.raises(TapeFileUnusable, match="cannot be kept"):
        JsonlBackend(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(TapeFileUnusable, match="cannot be kept"):
        JsonlBackend(tmp_path / "file" / "tape.jsonl")
    for options in ({"fsync": "sometimes"}, {"fsync_interval_s": 0}, {"rotate_bytes": -1}):
        with pytest.raises(InvalidInput):
            JsonlBackend(tmp_path / "tape.jsonl", **options)  # type: ignore[arg-type]


def test_lines_are_json_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    with SessionTape(backend=JsonlBackend(path, fsync=True)) as tape:
        tape.record({"kind": "text", "text": "h\u00e9llo \ud800", "big": 10**30, "inf": float("inf")})
    line = path.read_bytes()
    assert line.isascii()
    assert line.startswith(b'{"seq": 0, "t": ')
    assert json.loads(line)["inf"] == "inf"
    assert json.loads(line)["big"] == 10**30


def test_a_long_file_opens_with_the_end_of_its_history(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_text("".join(f'{{"seq": {seq}, "t": 0.0, "kind": "a"}}\n' for seq in range(50_000)))
    tape = SessionTape(max_events=100, backend=JsonlBackend(path))
    assert (tape.head, tape.watermark) == (50_000, 49_900)
    tape.close()
