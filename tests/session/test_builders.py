"""Lines made together with entries are the lines of those entries, and reach only backends that take them."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass, make_dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.session import ChainBackend, HarnessEvent, InMemoryBackend, JsonlBackend, SessionTape, TextChunk
from tape.session.builders import ENTRIES, ENTRIES_AND_LINES, Builders
from tape.session.lines import to_line


class Level(IntEnum):
    HIGH = 3


class Name(str):
    __slots__ = ()


class Seconds(float):
    __slots__ = ()


@dataclass(frozen=True)
class Anything(HarnessEvent):
    first: Any = None
    second: Any = None
    kind: Any = "anything"


LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

texts = st.text(st.characters(), max_size=8)  # halves of surrogate pairs included
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
odd = st.sampled_from(
    [
        Level.HIGH,
        Name("é"),
        Seconds(1.5),
        Seconds("nan"),
        b"\x00",
        Path("/x"),
        {1, 2},
        object,
        10**30,
        -0.0,
        1e300,
        LOOP,
    ]
)
values = st.recursive(
    scalars | odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def is_mutable(value: Any) -> bool:
    return isinstance(value, dict | list | set)


@given(first=values, second=values, kind=texts, seq=st.integers(0), ms=st.integers(0, 10**9))
def test_a_line_made_with_its_entry_is_the_line_of_that_entry(
    first: Any, second: Any, kind: str, seq: int, ms: int
) -> None:
    event, t = Anything(first=first, second=second, kind=kind), ms / 1_000
    kept, line, entry = (ENTRIES_AND_LINES.get(Anything) or ENTRIES_AND_LINES.learn(event))(event, seq, t)
    assert list(kept) == list(entry) == ["seq", "t", "kind", "type", "first", "second"]
    assert all(entry[name] is getattr(event, name) for name in ("kind", "first", "second"))
    assert not any(kept[name] is value for name, value in (("first", first), ("second", second)) if is_mutable(value))
    assert (entry["seq"], entry["t"], entry["type"]) == (seq, t, "Anything")
    if line is not None:
        assert line == to_line(entry) == to_line(kept)
    without = (ENTRIES.get(Anything) or ENTRIES.learn(event))(event, seq, t)
    assert list(without[2].items()) == list(entry.items())
    assert without[1] is None


def test_events_of_plain_values_get_a_line() -> None:
    event = Anything(first="é", second={"a": [1, True, None, 0.5]})
    entry, line, _ = Builders(with_lines=True).learn(event)(event, 7, 0.25)
    assert line == to_line(entry) == json.dumps(entry).encode() + b"\n"


JSON_LACKS = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "infinity within": {"a": float("-inf")},
    "set": {1},
    "loop": LOOP,
    "depth": DEEP,
    "digits": 10**5000,
}


@pytest.mark.parametrize("value", JSON_LACKS.values(), ids=JSON_LACKS)
def test_values_that_json_lacks_leave_the_line_to_the_slow_way(value: Any) -> None:
    event = Anything(first=value)
    _, line, entry = Builders(with_lines=True).learn(event)(event, 0, 0.0)
    assert entry["first"] is value
    assert line is None


def test_fields_may_have_any_name_that_python_allows(tmp_path: Path) -> None:
    names = ["event", "entry", "line", "cls", "quote", "value0", "größe"]
    made = make_dataclass("Größe", [("kind", str), *((name, int) for name in names)])
    with SessionTape(backend=JsonlBackend(tmp_path / "tape.jsonl")) as tape:
        tape.record(made("sized", *range(len(names))))
    assert (tmp_path / "tape.jsonl").read_bytes() == to_line(tape.events[0])
    assert [tape.events[0][name] for name in names] == list(range(len(names)))
    assert tape.events[0]["type"] == "Größe"


def test_an_entry_that_cannot_be_a_line_is_an_error_of_the_backend(tmp_path: Path) -> None:
    with SessionTape(backend=JsonlBackend(tmp_path / "tape.jsonl")) as tape:
        assert tape.record(Anything(first=10**5000)) == 0  # too many digits for text
        assert isinstance(tape.backend_errors[0].error, ValueError)
        assert tape.backend_health.pending == 1


# ── who gets lines ───────────────────────────────────────────────────────────────────────────────


class Masking(JsonlBackend):
    """Changes an entry on its way to the file."""

    def append(self, entry: dict[str, Any]) -> None:
        entry["text"] = "***"
        super().append(entry)


def written(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_a_subclass_that_overrides_append_gets_every_entry(tmp_path: Path) -> None:
    with SessionTape(backend=Masking(tmp_path / "tape.jsonl")) as tape:
        tape.record(TextChunk(text="secret"))
    assert written(tmp_path / "tape.jsonl") == ["***"]


def test_an_append_that_was_replaced_on_the_backend_gets_every_entry(tmp_path: Path) -> None:
    backend, seen = JsonlBackend(tmp_path / "tape.jsonl"), []
    backend.append = seen.append  # type: ignore[method-assign]
    with SessionTape(backend=backend) as tape:
        tape.record(TextChunk(text="a"))
    assert seen == tape.events
    assert written(tmp_path / "tape.jsonl") == []


def test_a_backend_in_a_chain_writes_what_the_ones_before_it_left(tmp_path: Path) -> None:
    chain = ChainBackend([Masking(tmp_path / "first.jsonl"), JsonlBackend(tmp_path / "second.jsonl")])
    with SessionTape(backend=chain) as tape:
        tape.record(TextChunk(text="secret"))
    assert written(tmp_path / "second.jsonl") == ["***"]


def test_entries_are_written_in_order_after_one_that_failed(tmp_path: Path) -> None:
    backend = JsonlBackend(tmp_path / "tape.jsonl")
    write, failures = backend.append_line, [OSError("full")]

    def append_line(entry: dict[str, Any], line: bytes) -> None:
        if failures:
            raise failures.pop()
        write(entry, line)

    backend.append_line = append_line  # type: ignore[method-assign]
    with SessionTape(backend=backend) as tape:
        for text in "abc":
            tape.record(TextChunk(text=text))
        assert tape.backend_health.failures == 1
        assert tape.flush() == 0
    assert written(tmp_path / "tape.jsonl") == ["a", "b", "c"]


# ── entries in memory ────────────────────────────────────────────────────────────────────────────


def test_what_record_returns_is_a_copy_that_is_equal_to_the_entry() -> None:
    backend = InMemoryBackend()
    tape = SessionTape(backend=backend)
    for record, event in ((tape.record, TextChunk(text="a")), (tape.record_dict, {"kind": "b"})):
        returned = record(event)
        assert returned == tape.events[-1] == backend.entries[-1]
        assert backend.entries[-1] is tape.events[-1]
        returned["text"] = "changed"
        assert returned != tape.events[-1]


def test_entries_of_plain_values_are_no_work_for_the_garbage_collector() -> None:
    tape = SessionTape()
    for event in (TextChunk(text="a"), {"kind": "b", "number": 1}):
        tape.record(event)
    assert not any(map(gc.is_tracked, tape.events))
