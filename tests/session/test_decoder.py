"""Long files are decoded by msgspec where it is installed; what comes out is the same."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tape.session import JsonlBackend, SessionTape, lines
from tape.session.decoder import Decode, fast_decoder


@pytest.fixture(autouse=True)
def _forget_decoder() -> Iterator[None]:
    yield
    fast_decoder.cache_clear()


def read(path: Path, since: int, batch_bytes: int, decode: Decode | None) -> Any:
    """What reading finds, every value with its type, when all lines are offered to this decoder, batch by batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "WORTH_A_DECODER", 0)
        patch.setattr(lines, "BATCH_BYTES", batch_bytes)
        patch.setattr(lines, "fast_decoder", lambda: decode)
        entries, reading = lines.read_entries(path, since)
    return [repr(entry) for entry in entries], reading


texts = st.text(st.characters(), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
seqs = st.integers(0, 30) | st.sampled_from([-1, 10**30, True, None, 1.0, "1"])
entries = st.fixed_dictionaries({"seq": seqs}, optional={"t": st.floats(), "kind": texts, "args": values})
rising = st.integers(0, 99).map(lambda seq: {"seq": seq, "t": 0.5, "kind": "a"})
written = st.builds(
    lambda value, ascii_only: json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"),
    rising | entries | values,
    st.booleans(),
)
damaged = st.builds(lambda line, cut: line[:cut], written, st.integers(0, 60))
strange = st.sampled_from(
    [
        b"",
        b"  \t",
        b"\x00",
        b'{"seq": 1} {"seq": 2}',
        b'{"seq": 1, "x": [{}',
        b'{}]}, {"seq": 3}',
        b'{"seq": 1, "a": 1e400}',
        b'{"seq": 1, "a": "\x01"}',
        b'{"seq": 1, "a": "\xff"}',
        b'\xef\xbb\xbf{"seq": 1}',
        b'\x1c{"seq": 4}\x85',
        b'{"seq": 5, "seq": 6, "a": -0}',
        b'{"seq": 01}',
        b'{"seq": 7}\r',
        b'{"seq": 8, "a": ' + b"[" * 100_000,
    ]
)


@given(
    content=st.lists(written | damaged | strange | st.binary(max_size=20), max_size=12),
    ends=st.sampled_from([b"\n", b""]),
    since=st.integers(0, 20),
    batch_bytes=st.sampled_from([1, 100]),  # one line a batch, or a few
)
@example([b'{"seq": -1}', b'{"seq": 2}'], b"\n", 0, 100)
@example([b'{"seq": 0, "x": [{}', b"{}]}", b'{"seq": 1}, {"seq": 2}'], b"\n", 0, 100)
def test_every_file_reads_the_same_with_and_without_msgspec(
    content: list[bytes], ends: bytes, since: int, batch_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tape.jsonl"
        path.write_bytes(b"\n".join(content) + ends)
        fast = read(path, since, batch_bytes, fast_decoder())
        assert fast == read(path, since, batch_bytes, None) == read(path, since, 1 << 20, None)


def long_file(path: Path, count: int) -> None:
    path.write_bytes(b"".join(b'{"seq": %d, "t": 0.5, "kind": "a"}\n' % seq for seq in range(count)))


class Counting:
    """The decoder of msgspec, and how many lines it was given."""

    def __init__(self) -> None:
        found = fast_decoder()
        assert found is not None
        self._decode = found
        self.lines = 0

    def __call__(self, line: bytes) -> Any:
        self.lines += 1
        return self._decode(line)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr(lines, "fast_decoder", lambda: counting)
    return counting


def test_a_long_file_is_decoded_by_msgspec_from_its_ten_thousandth_entry_on(tmp_path: Path, counting: Counting) -> None:
    path = tmp_path / "tape.jsonl"
    long_file(path, 40_000)
    tape = SessionTape.load(path)
    assert [entry["seq"] for entry in tape.events] == list(range(40_000))
    assert 20_000 < counting.lines <= 30_000


def test_a_bad_line_of_a_long_file_is_reported_with_its_number_and_in_the_words_of_json(
    tmp_path: Path, counting: Counting
) -> None:
    path = tmp_path / "tape.jsonl"
    long_file(path, 40_000)
    content = path.read_bytes().splitlines(keepends=True)
    content[30_000] = b'{"seq": 30000, "kin\n'
    content.append(b'{"seq": 40000, "a": NaN}\n{"seq": 40001')
    path.write_bytes(b"".join(content))
    tape = SessionTape.load(path)
    assert [bad.line for bad in tape.bad_lines] == [30_001, 40_002]
    assert tape.bad_lines[0].reason.startswith("not JSON: Unterminated string")
    assert "not written to its end" in tape.bad_lines[1].reason
    assert (tape.size, tape.head) == (40_000, 40_001)
    assert counting.lines > 0


def test_a_short_file_and_the_end_of_a_long_one_need_no_decoder(tmp_path: Path, counting: Counting) -> None:
    long_file(tmp_path / "short.jsonl", 9_000)
    assert SessionTape.load(tmp_path / "short.jsonl").head == 9_000
    long_file(tmp_path / "long.jsonl", 40_000)
    with SessionTape(max_events=100, backend=JsonlBackend(tmp_path / "long.jsonl")) as tape:
        assert (tape.head, tape.watermark) == (40_000, 39_900)
    assert counting.lines == 0


def test_a_long_file_loads_where_msgspec_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec.json", None)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    fast_decoder.cache_clear()
    assert fast_decoder() is None
    path = tmp_path / "tape.jsonl"
    long_file(path, 20_000)
    tape = SessionTape.load(path)
    assert (tape.head, tape.bad_lines) == (20_000, [])
