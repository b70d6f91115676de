"""Budgets: how much a run may spend, and how much it has spent. A cap of 0 is no cap."""

from __future__ import annotations

import math

import msgspec

from tape.engine.ledgers import runs
from tape.errors import InvalidInput
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, load, store

# What a column of the database holds.
MAX_TOKENS = (1 << 63) - 1


class RunBudget(Record, frozen=True):
    """A row of tape_budget."""

    run_id: str
    usd_cap: float = 0.0
    token_cap: int = 0
    usd_spent: float = 0.0
    tokens_spent: int = 0


_COLUMNS = columns(RunBudget)


def get(reader: Reader | Transaction, run_id: str) -> RunBudget:
    """The budget of a run; one that was never set has no caps and nothing spent."""
    if not runs.is_visible(reader, run_id):
        return RunBudget(run_id)
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_budget WHERE run_id = ?", run_id)
    return load(RunBudget, row) or RunBudget(run_id)


def set_caps(tx: Transaction, run_id: str, *, usd_cap: float, token_cap: int) -> RunBudget:
    """Set the caps; what was spent stays spent."""
    _check_amounts(usd_cap=usd_cap, token_cap=token_cap)
    runs.get(tx, run_id)
    budget = msgspec.structs.replace(get(tx, run_id), usd_cap=float(usd_cap), token_cap=token_cap)
    store(tx, "tape_budget", ("run_id",), budget)
    return budget


def refusal(budget: RunBudget, *, usd: float, tokens: int) -> str:
    """Why an estimate would exceed a cap; empty if it would not."""
    _check_amounts(usd_estimate=usd, token_estimate=tokens)
    if budget.usd_cap > 0 and budget.usd_spent + usd > budget.usd_cap:
        return f"usd cap {budget.usd_cap:g} would be exceeded (spent {budget.usd_spent:g} + estimate {usd:g})"
    if budget.token_cap > 0 and budget.tokens_spent + tokens > budget.token_cap:
        return f"token cap {budget.token_cap} would be exceeded (spent {budget.tokens_spent} + estimate {tokens})"
    return ""


def charge(tx: Transaction, run_id: str, *, usd: float, tokens: int, owner: str = "") -> RunBudget:
    """Add to what was spent. It is a fact, so it is recorded also beyond a cap."""
    _check_amounts(usd=usd, tokens=tokens)
    runs.get_writable(tx, run_id, owner)
    before = get(tx, run_id)
    budget = msgspec.structs.replace(
        before, usd_spent=before.usd_spent + usd, tokens_spent=before.tokens_spent + tokens
    )
    if budget.tokens_spent > MAX_TOKENS or not math.isfinite(budget.usd_spent):
        raise InvalidInput(f"usd {usd} and tokens {tokens} make the sum of run {run_id!r} larger than can be stored.")
    store(tx, "tape_budget", ("run_id",), budget)
    return budget


def _check_amounts(**amounts: float) -> None:
    for name, amount in amounts.items():
        if amount < 0 or not math.isfinite(amount):
            raise InvalidInput(f"{name} {amount} must be a number that is not negative.")
