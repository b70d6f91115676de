"""One case: damage a copy, ask `tape verify`, start a server on it as a user would, read in every way, judge."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tape.cli.verify import UNAVAILABLE_EXIT
from tape.client import AsyncTapeClient
from tape.errors import ArchiveDamaged, StoreDamaged, TailLost, TapeError
from tape.journal import reader
from tape.model.entry import Draft, Entry, checked
from tape.server.server import Server
from tests.conftest import settings_for
from tests.damage import sql_damage
from tests.damage.judge import RANKS, Judgement, VerifyOutcome, judge, worst
from tests.damage.readers import Endpoints, paths, read_path
from tests.damage.store import Damage, StoreCopy, Template
from tests.damage.truth import markers
from tests.forked import Forked

START_S, CASE_S, VERIFY_S, APPEND_S = 20.0, 60.0, 150.0, 3.0
# Every so many cases are read in all ways.
SAMPLE_EVERY = 5
# Errors that say that something is damaged.
NAMING_CODES = (StoreDamaged.code, ArchiveDamaged.code)
# The window in which a subject is scanned for rather than looked up: a journal of some hundred entries is read as one
# of a hundred thousand is.
WINDOW = 100


@dataclass(frozen=True)
class Result:
    """What became of a case. `alarm` is what was named although nothing is damaged."""

    store: str
    seed: int
    damage: Damage
    verdict: str
    why: str
    verify: str
    verify_why: str
    alarm: str
    seconds: float

    @property
    def is_failed(self) -> bool:
        """Whether something was silent, or `verify` did not name what it had to."""
        return self.verdict in ("silent", "stalled") or self.verify in ("silent", "crashed")

    def __str__(self) -> str:
        return (
            f"{self.store} {self.seed}: {self.damage.target}, {self.damage.kind} ({self.damage.where}):"
            f" {self.verdict} {self.why}; verify {self.verify} {self.verify_why}{self.alarm and '; '}{self.alarm}"
        )


def run_case(template: Template, seed: int, folder: Path) -> Result:
    """Carry out and judge the case of a seed."""
    began = time.monotonic()
    with template.damaged_copy(seed, folder / f"case-{seed}") as copy:
        look = copy.look()
        outcome = run_verify(copy)
        judgements = asyncio.run(read_all(copy, is_sample=seed % SAMPLE_EVERY == 0))
        found = worst(judgements)
        is_forgery = copy.damage.kind in sql_damage.FORGERIES
        verdict, why = found.verdict, f"[{found.reader}] {found.why}" if found.why else ""
        verified, verified_why = _judge_verify(outcome, found, is_intact=look.is_intact, text=look.text)
        if verdict == "unproven" or (verdict in ("stalled", "silent") and is_forgery):
            verdict = "verify only" if verified in ("named", "refused") else "silent"
        alarm = ""
        if look.is_intact and (outcome.is_ok is False or found.verdict in RANKS[1:]):
            alarm = "false alarm" if found.verdict == "right" or outcome.is_ok is False else "false alarm of a reader"
        return Result(
            template.name,
            seed,
            copy.damage,
            verdict,
            why,
            verified,
            verified_why,
            alarm,
            time.monotonic() - began,
        )


def run_verify(copy: StoreCopy) -> VerifyOutcome:
    """`tape verify` as a user runs it."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        arguments = ["verify", "--store", copy.url, "--output", "json", *copy.verify]
        process = Forked(arguments, stdout=out, stderr=errors, cwd=copy.folder)
        try:
            code = process.wait(VERIFY_S)
        except Exception:
            return VerifyOutcome(None, text=f"not done within {VERIFY_S:.0f} s")
        finally:
            process.kill()
        out.seek(0)
        errors.seek(0)
        said, complained = out.read(), errors.read()
    if code == UNAVAILABLE_EXIT:
        return VerifyOutcome(False, is_refused=True, text=complained[-200:])
    if "Traceback" in complained or code not in (0, 1):
        return VerifyOutcome(None, text=f"exit {code}: {complained[-600:]}")
    if code == 1 and not said and any(name in complained for name in NAMING_CODES):
        return VerifyOutcome(False, is_refused=True, text=complained[-200:])
    try:
        report = json.loads(said)
    except ValueError:
        return VerifyOutcome(None, text=f"exit {code}, no report: {said[-200:]} {complained[-300:]}")
    ranges = [
        (one.get("first", one.get("global_seq", 0)), one.get("last", one.get("global_seq", 0)))
        for one in report["findings"]
    ]
    return VerifyOutcome(
        code == 0, ranges=ranges, text=json.dumps([*report["findings"][:3], *report.get("damaged", {})])[:300]
    )


def _judge_verify(outcome: VerifyOutcome, found: Judgement, *, is_intact: bool, text: str) -> tuple[str, str]:
    if outcome.is_ok is None:
        return "crashed", outcome.text
    if not outcome.is_ok:
        return "refused" if outcome.is_refused else "named", outcome.text
    if not is_intact or found.verdict != "right":
        return "silent", f"says ✓, yet {text or found.why}"
    return "✓", ""


async def read_all(copy: StoreCopy, *, is_sample: bool) -> list[Judgement]:
    """Start a server on the copy and read it in every way."""
    reader.WINDOW = WINDOW
    server = Server(settings_for(copy.url, **copy.settings))
    try:
        async with asyncio.timeout(START_S):
            await server.start()
    except TapeError as error:
        # `start` has stopped what it had begun.
        verdict = "named" if isinstance(error, StoreDamaged | TailLost) else "refused"
        return [Judgement("start", verdict, f"{type(error).__name__}: {error}")]
    except TimeoutError:
        return [Judgement("start", "silent", f"the server did not start within {START_S:.0f} s")]
    except Exception as error:
        return [Judgement("start", "refused", f"untyped {type(error).__name__}: {error}")]
    try:
        async with asyncio.timeout(CASE_S):
            return await _read(server, copy, is_sample=is_sample)
    except TimeoutError:
        return [Judgement("all", "silent", f"not read within {CASE_S:.0f} s")]
    finally:
        await server.stop()


async def _read(server: Server, copy: StoreCopy, *, is_sample: bool) -> list[Judgement]:
    truth = copy.truth
    async with AsyncTapeClient(f"tape://{server.grpc_address}", append_timeout_s=APPEND_S) as client:
        at = Endpoints(client, f"http://{server.http_address}", truth.head)
        appended = await _append_ends(at)
        chosen = paths(is_sample=is_sample)
        answers = await asyncio.gather(*(read_path(path, at) for path in chosen))
        judged = map(partial(judge, truth=truth, has_ends=bool(at.ends)), answers, chosen)
        return [appended, *judged]


async def _append_ends(at: Endpoints) -> Judgement:
    """Append the entries that end every reader: their numbers must be new."""
    drafts = markers()
    try:
        numbers = await at.client.append_many(drafts)
    except TapeError as error:
        return Judgement("append", "refused", f"{type(error).__name__}: {error}")
    at.ends = [(number, _as_entry(number, each)) for number, each in zip(numbers, drafts, strict=True)]
    if numbers[0] <= at.head:
        return Judgement("append", "silent", f"the number {numbers[0]} was given out again; the last was {at.head}")
    return Judgement("append", "right")


def _as_entry(number: int, each: Draft) -> Entry:
    """What paths look at when they choose: subject, run and identity."""
    draft = checked(each)
    texts: Sequence[Any] = ("", "", "", 0, draft.tenant, draft.user, draft.session, b"")
    return Entry(number, draft.run_id, 0, draft.kind, draft.subject, draft.payload_json, 1, *texts)
