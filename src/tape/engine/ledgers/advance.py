"""What runs do between two acts, in one commit: take the lease, complete effects, begin the next one, end.

`advance` is one run's move, whatever it is. `advance_many` is for the moves that nearly all are: it asks for all runs
and effects at once, decides in memory, and writes each kind of row in one go. A move that is refused has changed
nothing by then, and stops no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import effects, runs
from tape.engine.ledgers.effects import Begun as Begun
from tape.engine.ledgers.effects import Denied, Effect
from tape.engine.ledgers.run_record import COLUMNS, Run
from tape.errors import TapeError
from tape.journal.appender import Appender
from tape.model.entry import Draft
from tape.model.ledger_states import ChangeCheck, DispatchMode, EffectStatus, RunStatus
from tape.model.principal import SYSTEM, Principal
from tape.store import Transaction
from tape.store.records import load_all, row_of

Key = tuple[str, str]


class Completion(msgspec.Struct, frozen=True):
    """How an effect went."""

    key: str
    status: EffectStatus
    response_json: str = ""
    error_json: str = ""


class Ending(msgspec.Struct, frozen=True):
    """How a run ends."""

    status: int
    detail_json: str = ""
    result_json: str = ""


class Move(msgspec.Struct, frozen=True):
    """What one run does, all or none; with a `lease_ms`, its lease is taken first."""

    run_id: str
    owner: str = ""
    lease_ms: int = 0
    complete: tuple[Completion, ...] = ()
    begin: Effect | None = None
    change_check: ChangeCheck = ChangeCheck.UNSPECIFIED
    after_seq: int = 0
    end: Ending | None = None
    trace: Trace = NO_TRACE
    principal: Principal = SYSTEM
    # Who makes it: see `runs.check_lease`.
    caller: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether `advance_many` can be asked: nothing is undone, compared, put into the outbox or permitted."""
        begun = self.begin
        if self.change_check or (self.end is not None and self.end.status != RunStatus.TERMINAL):
            return False
        return begun is None or not (
            begun.scope or begun.business_key or begun.connector or begun.dispatch_mode != DispatchMode.INLINE
        )


class Unusual:
    """The run is in a state for which `advance` has to be asked."""


UNUSUAL: Final = Unusual()
_GOING_ON = frozenset({RunStatus.RUNNABLE, RunStatus.RUNNING, RunStatus.WAITING})


def advance(tx: Transaction, move: Move) -> Begun | Denied | None:
    """Make one run's move; raises what is wrong with it."""
    run_id, owner, caller, trace = move.run_id, move.owner, move.caller, move.trace
    if move.lease_ms > 0:
        runs.resume(tx, run_id, owner=owner, lease_ms=move.lease_ms, caller=caller)
    for each in move.complete:
        effects.complete(
            tx,
            run_id,
            each.key,
            each.status,
            response_json=each.response_json,
            error_json=each.error_json,
            owner=owner,
            trace=trace,
        )
    begun = None
    if move.begin is not None:
        begun = effects.begin(
            tx,
            move.begin,
            owner=owner,
            caller=caller,
            trace=trace,
            change_check=move.change_check,
            after_seq=move.after_seq,
        )
    if move.end is not None:
        runs.end(
            tx,
            run_id,
            move.end.status,
            detail_json=move.end.detail_json,
            result_json=move.end.result_json,
            owner=owner,
            caller=caller,
            may_end_parked=False,
            trace=trace,
        )
    return begun


Result = Begun | TapeError | Unusual | None


def advance_many(tx: Transaction, groups: Sequence[Sequence[Move]]) -> list[list[Result]]:
    """Make the usual moves of many runs, in order; each has its own result."""
    sheet = _Sheet(tx, [move for group in groups for move in group])
    decided = [[sheet.add(move) for move in group] for group in groups]
    sheet.write()
    return [[sheet.result(result) for result in group] for group in decided]


_FOUND = ", ".join("'' AS request_json" if name == "request_json" else name for name in Effect.__struct_fields__)
# What completing an effect changes.
_OUTCOME = (
    "run_id",
    "idempotency_key",
    "status",
    "response_json",
    "error_json",
    "ts_ms",
    "dispatch_claimed_by",
    "dispatch_claim_expires_at_ms",
)


class _Sheet:
    """The runs and effects of one transaction: read together, moved in memory, written together."""

    def __init__(self, tx: Transaction, moves: Sequence[Move]) -> None:
        self._tx = tx
        condition, ids = tx.is_any("run_id", list({move.run_id for move in moves}))
        found = tx.query(f"SELECT {COLUMNS} FROM tape_runs WHERE {condition}", ids)
        self._runs: dict[str, Run] = {run.run_id: run for run in load_all(Run, found)}
        wanted = {(move.run_id, each.key) for move in moves for each in move.complete}
        wanted |= {(move.run_id, move.begin.idempotency_key) for move in moves if move.begin is not None}
        rows = tx.lookup("tape_effects", _FOUND, ("run_id", "idempotency_key"), list(wanted)) if wanted else []
        self._effects: dict[Key, Effect] = {
            (effect.run_id, effect.idempotency_key): effect for effect in load_all(Effect, rows)
        }
        self._moved: dict[str, None] = {}
        self._new: dict[Key, None] = {}
        self._changed: dict[Key, None] = {}
        self._drafts: list[tuple[Draft, Key | None]] = []

    def add(self, move: Move) -> Key | Result:
        """Decide about a move; nothing of it is kept if it is refused."""
        run = self._runs.get(move.run_id)
        is_visible = run is not None and move.principal.sees(run.tenant)
        if run is None or not is_visible or run.status not in _GOING_ON or run.former_status:
            return UNUSUAL
        if run.parent_run_id and move.end is not None:
            return UNUSUAL  # its parent may wait for it
        try:
            return self._decide(run, move)
        except TapeError as error:
            return error

    def _decide(self, before: Run, move: Move) -> Key | Result:
        runs.check_lease(before, move.owner, move.caller)
        run = runs.leased(before, move.owner, move.lease_ms, move.caller) if move.lease_ms > 0 else before
        drafts: list[tuple[Draft, Key | None]] = []
        changed: dict[Key, Effect] = {}
        result: Key | Result = None
        for each in move.complete:
            key = (move.run_id, each.key)
            effect = changed.get(key) or self._effects.get(key)
            if effect is None:
                raise effects.effect_not_begun(*key)
            if effect.status == EffectStatus.PENDING:
                changed[key] = effect = effects.completed(effect, each.status, each.response_json, each.error_json)
                described = effects.describe_settlement(effect, each.status.name.lower())
                drafts.append((runs.draft_of(run, *described, move.trace), key))
        if move.begin is not None:
            key = (move.run_id, move.begin.idempotency_key)
            existing = changed.get(key) or self._effects.get(key)
            if existing is None:
                runs.check_acting(run)
                result, changed[key] = key, move.begin
                drafts.append((runs.draft_of(run, *effects.describe_begin(move.begin), move.trace), key))
            else:
                result = Begun(existing, existed=True)
        if move.end is not None:
            runs.check_end(run)
            run = runs.ended(run, RunStatus.TERMINAL, move.end.detail_json, move.end.result_json)
            drafts.append((runs.draft_of(run, *runs.describe_end(run), move.trace), None))
        if run is not before:
            self._runs[run.run_id] = run
            self._moved[run.run_id] = None
        if isinstance(result, tuple):
            self._new[result] = None
        self._effects |= changed
        self._changed |= dict.fromkeys(changed)
        self._drafts += drafts
        return result

    def write(self) -> None:
        """Append what the journal says, then write the rows, each kind in one go."""
        tx, appender = self._tx, self._tx.enlist(Appender)
        for run in self._runs.values():
            appender.cache_run_seq((run.run_id, run.tenant), run.seq_cursor)
        begun: set[Key] = set()
        for entry, (_, key) in zip(appender.append([draft for draft, _ in self._drafts]), self._drafts, strict=True):
            if key is not None:
                is_first = key in self._new and key not in begun
                begun.add(key)
                effect = self._effects[key]
                seq = entry.seq if is_first else effect.seq
                self._effects[key] = msgspec.structs.replace(effect, seq=seq, ts_ms=entry.ts_ms)
        tx.update(
            "tape_runs", ("run_id",), runs.STATE_COLUMNS, [runs.state_row(self._runs[run_id]) for run_id in self._moved]
        )
        if self._new:
            tx.insert("tape_effects", Effect.__struct_fields__, [row_of(self._effects[key]) for key in self._new])
        settled = [self._effects[key] for key in self._changed if key not in self._new]
        tx.update("tape_effects", ("run_id", "idempotency_key"), _OUTCOME, [_outcome(effect) for effect in settled])

    def result(self, decided: Key | Result) -> Result:
        """The result for the caller, with the effect as it was written to the journal."""
        return Begun(self._effects[decided], existed=False) if isinstance(decided, tuple) else decided


def _outcome(effect: Effect) -> tuple[object, ...]:
    return (
        effect.run_id,
        effect.idempotency_key,
        int(effect.status),
        effect.response_json,
        effect.error_json,
        effect.ts_ms,
        effect.dispatch_claimed_by,
        effect.dispatch_claim_expires_at_ms,
    )
