"""What readers of a log get after damage to its files, beside peers: the same seeded damage to each."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Literal

from tests.damage.byte_damage import SECTOR, damage_file

from bench.damage_logs import READ_S, START_S, Log, Read, TapeLog, open_logs
from bench.load import payload_text
from bench.options import Options
from bench.peers.servers import NotInstalled
from bench.table import NOTHING, Table, count

TITLE = "Damage: what a reader gets after damage to the files of a log"

ENTRIES, CASES = 2_000, 200
KINDS = ("bit flipped", "byte changed", "sector zeroed", "sectors swapped", "file cut")

Outcome = Literal["right", "named", "stuck", "lost", "altered"]


def run(options: Options) -> list[Table]:
    """Each log: 2,000 acknowledged entries, kill -9, one damage, a restart, a read of everything."""
    entries, cases = options.scaled(ENTRIES, 200), options.scaled(CASES, 4)
    rows, silent = [], []
    for log in open_logs(options.lab.run):
        options.report(f"{TITLE}: filling {log.name}")
        template = options.lab.fresh_folder()
        try:
            log.fill(template, entries)
        except NotInstalled as missing:
            rows.append([log.name, str(missing), *[NOTHING] * 7])
            continue
        intact = _carry_out(options, log, template, 0, entries)
        assert judge(intact, entries) == "right", f"{log.name} without damage: {intact.named}"
        outcomes: Counter[Outcome] = Counter()
        again = checked = 0
        has_check = False
        for seed in range(1, cases + 1):
            found = ", ".join(f"{number} {name}" for name, number in outcomes.items())
            options.report(f"{TITLE}: {log.name}, case {seed} of {cases} ({found})")
            read = _carry_out(options, log, template, seed, entries)
            outcome = judge(read, entries)
            outcomes[outcome] += 1
            if isinstance(log, TapeLog) and outcome in ("stuck", "lost", "altered"):
                silent.append(f"Tape, {outcome}: seed {seed}")
            again += 0 < read.appended <= entries
            has_check = has_check or read.check is not None
            checked += bool(read.check) and outcome != "right"
        wrong = cases - outcomes["right"]
        rows.append(
            [
                log.name,
                count(cases),
                *(count(outcomes[name]) for name in ("right", "named", "stuck", "lost", "altered")),
                count(again),
                f"{checked} of {wrong}" if has_check else NOTHING,
            ]
        )
    notes = [
        f"{entries:,} acknowledged entries of some 200 bytes, then kill -9; a case damages one file, chosen by size, at"
        " a random place: one bit, one byte, 512 bytes zeroed or swapped with others, or the file cut",
        "right: all entries as they were written. named: what differs was reported by an error, a refusal to start, a"
        " named range or a line of the server's log. lost, altered: entries are missing or changed, without a word",
        f"no answer: neither everything nor an error, within {START_S:.0f} s for its start and {READ_S:.0f} s for the"
        " read",
        "number again: an append after the restart gets the number of an acknowledged entry",
        "own check: cases, of those not read right, that the log's own check reports (`tape verify`,"
        " `PRAGMA integrity_check`)",
        "a hole in the numbers of a NATS stream is not counted as named: deleted messages leave the same",
        *silent,
    ]
    columns = ["", "cases", "right", "named", "no answer", "lost", "altered", "number again", "own check"]
    return [Table(TITLE, columns, rows, notes)]


def _carry_out(options: Options, log: Log, template: Path, seed: int, entries: int) -> Read:
    """Damage a copy and read it; with seed 0 nothing is damaged."""
    chance = random.Random(seed)
    folder = options.lab.fresh_folder()
    used = {path: _used_bytes(path) for path in log.files(template)}
    shutil.copytree(template, folder, dirs_exist_ok=True, copy_function=_copy_sparse)
    if seed:
        files = sorted(path for path, size in used.items() if size >= 2 * SECTOR)
        path = chance.choices(files, [used[file] for file in files])[0]
        copy, size = folder / path.relative_to(template), used[path]
        damage_file(copy, chance.choice(KINDS), range(size), chance, extent=size)
    try:
        return log.read(folder, entries)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _used_bytes(path: Path) -> int:
    """The size of a file without the zeros at its end: some logs allocate space before they need it."""
    return len(path.read_bytes().rstrip(b"\0"))


def _copy_sparse(source: str, target: str) -> None:
    """Copy a file without writing the zeros at its end."""
    path = Path(source)
    with path.open("rb") as old, Path(target).open("wb") as new:
        new.write(old.read(_used_bytes(path)))
        new.truncate(path.stat().st_size)


def judge(read: Read, entries: int) -> Outcome:
    """What became of the entries that were acknowledged."""
    wanted = {number: payload_text(number) for number in range(1, entries + 1)}
    found = {number: text for number, text in read.found if number <= entries and number != read.appended}
    if any(wanted.get(number) != text for number, text in found.items()):
        return "altered"
    missing = [number for number in wanted if number not in found]
    if missing and read.is_stuck:
        return "stuck"
    if missing and not read.named:
        is_named = all(any(first <= number <= last for first, last in read.gaps) for number in missing)
        return "named" if is_named else "lost"
    return "named" if missing or read.named else "right"
