"""A tape as text: one JSON object a line, oldest first, and what to do with lines that are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from io import BytesIO
from itertools import chain
from json import encoder
from operator import lt
from pathlib import Path
from typing import Any, BinaryIO

from tape.session.decoder import Decode, fast_decoder

_decode = json.JSONDecoder().raw_decode
_PREFIX = b'{"seq": '  # how every line begins that we write
MAX_DEPTH = 50
BATCH_BYTES = 1 << 16
WORTH_A_DECODER = 10_000  # entries that json decodes while msgspec is imported

quote = encoder.encode_basestring_ascii
"""A text as JSON, in ASCII."""


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON can say it. NaN and infinities become their names, what JSON lacks becomes its repr."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if depth > MAX_DEPTH:  # also the end of a value that contains itself
        return repr(value)[:200]
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each, depth + 1) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value), depth + 1)
    return repr(value)


def _make_encode() -> Callable[[Any], str]:
    made = getattr(encoder, "c_make_encoder", None)
    if made is None:  # not CPython
        return json.JSONEncoder(allow_nan=False, check_circular=False).encode
    # json.dumps makes this object anew for every call, which takes as long as the encoding itself.
    parts = made(None, _unknown, quote, None, ": ", ", ", False, False, False)
    return lambda value: "".join(parts(value, 0))


def _unknown(value: Any) -> Any:
    raise TypeError(type(value).__name__)


encode = _make_encode()
"""A value as JSON; raises TypeError, ValueError or RecursionError for one that JSON cannot say."""


def to_line(entry: Mapping[str, Any]) -> bytes:
    """An entry as a line, newline included."""
    try:
        text = encode(entry)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(plain(entry))
    return f"{text}\n".encode("ascii")


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not an entry: where it is and what is wrong with it. It is left as it is."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}"


@dataclass
class Reading:
    """What reading a tape's files brought: lines that are no entries, and how many entries had to be renumbered."""

    bad_lines: list[BadLine] = field(default_factory=list)
    renumbered: int = 0


def segments(path: Path) -> list[Path]:
    """The files of a tape, oldest first: rotated ones, then the current one."""
    rotated = [each for each in path.parent.glob(f"{path.name}.*") if each.name[len(path.name) + 1 :].isdecimal()]
    rotated.sort(key=lambda each: int(each.name[len(path.name) + 1 :]))
    return [*rotated, path]


def read_entries(path: Path, since: int = 0) -> tuple[list[dict[str, Any]], Reading]:
    """The entries of a tape's files from a seq on.

    An entry without a seq gets the index of its line. Seqs that do not rise are put in order; if some occur
    twice (two sessions in one file), the entries stay in the order of the lines and get new seqs.
    """
    reading = Reading()
    entries: list[dict[str, Any]] = []
    last, rises = -1, True
    for batch in iterate(path, reading, since):
        seqs = [entry["seq"] for entry in batch]
        rises = rises and all(map(lt, chain((last,), seqs), seqs))
        last = seqs[-1] if seqs else last
        entries += batch
    if rises:
        return [entry for entry in entries if entry["seq"] >= since] if since else entries, reading
    if since:
        everything, reading = read_entries(path)  # which lines were left out can only be said with all of them
        return [entry for entry in everything if entry["seq"] >= since], reading
    if len({entry["seq"] for entry in entries}) == len(entries):
        entries.sort(key=lambda entry: entry["seq"])
        return entries, reading
    last = -1
    for entry in entries:
        if entry["seq"] <= last:
            entry["seq"] = last + 1
            reading.renumbered += 1
        last = entry["seq"]
    return entries, reading


def iterate(path: Path, reading: Reading, since: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Every entry as it is in the files, a batch at a time; older ones may be left out."""
    decode: Decode | None = None
    found = 0
    for segment in segments(path):
        try:
            file = segment.open("rb")
        except FileNotFoundError:
            continue
        with file:
            first = 0
            while lines := _read_lines(file):
                if decode is None and found >= WORTH_A_DECODER:
                    decode = fast_decoder()
                batch = None if decode is None else _decode_all(decode, lines, since)
                if batch is None:
                    batch = list(_parse_all(lines, reading, segment, first, since))
                yield batch
                found += len(batch)
                first += len(lines)


def _read_lines(file: BinaryIO) -> list[bytes]:
    """The next whole lines; readlines() of the file itself takes three times as long."""
    return BytesIO(file.read(BATCH_BYTES) + file.readline()).readlines()


def _decode_all(decode: Decode, lines: list[bytes], since: int) -> list[dict[str, Any]] | None:
    """The entries of lines that all are entries with a seq; None if one is not, or seems not to be."""
    if since:
        lines = [line for line in lines if (seq := quick_seq(line)) is None or seq >= since]
    try:
        entries = list(map(decode, lines))
        seqs = [entry["seq"] for entry in entries]
    except Exception:  # whatever it is, the slow way says it in its own words
        return None
    return entries if set(map(type, seqs)) <= {int} and min(seqs, default=0) >= 0 else None


def _parse_all(lines: list[bytes], reading: Reading, segment: Path, first: int, since: int) -> Iterator[dict[str, Any]]:
    for index, line in enumerate(lines, first):
        if since and (seq := quick_seq(line)) is not None and seq < since:
            continue
        if not line.strip():
            continue
        try:
            entry = parse(line)
        except ValueError as error:
            torn = "" if line.endswith(b"\n") else " (the last line was not written to its end)"
            reading.bad_lines.append(BadLine(str(segment), index + 1, f"{error}{torn}"))
            continue
        entry.setdefault("seq", index)
        yield entry


def parse(line: bytes) -> dict[str, Any]:
    """The entry of a line, or a ValueError that says what is wrong."""
    try:
        text = line.decode().strip()
        found, end = _decode(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if end != len(text):
        raise ValueError(f"not JSON: more behind its end, from column {end + 1}")
    if not isinstance(found, dict):
        raise ValueError(f"a JSON {type(found).__name__} instead of an object")
    seq = found.get("seq", 0)
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        raise ValueError(f"seq is {seq!r} instead of a whole number from 0")
    return found


def quick_seq(line: bytes) -> int | None:
    """The seq of a line as we write them, without reading the rest; None if it looks different."""
    if line.startswith(_PREFIX) and line.endswith(b"}\n"):
        digits = line[len(_PREFIX) : line.find(b",", len(_PREFIX))]
        if digits.isdigit():
            return int(digits)
    return None
