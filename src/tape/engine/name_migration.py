"""Moving documents, subscriptions, reactions and secrets to another tenant: what has a qualified name gets a new one.

For things from before the server had keys, which have no tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tape.engine.reactions import registry
from tape.engine.security.wallet import ResealedSecret, replace_resealed
from tape.errors import InvalidInput
from tape.model.tenant_names import MARK, prefix_of
from tape.store import Transaction


class _Column(NamedTuple):
    """A column of names, the prefix of a tenant's names in it, and what names without a tenant never begin with."""

    table: str
    name: str
    prefixes: tuple[str, str]
    mark: str
    # The other columns of the key that the name is a part of.
    key: str = ""


def move_names(tx: Transaction, old: str, new: str, secrets: Sequence[ResealedSecret] = ()) -> dict[str, int]:
    """Give the named things of `old` (empty: of no tenant) to `new`; the number of rows of each table.

    InvalidInput if both have something of the same name: nothing is moved then. Reactions for all tenants that a caller
    with a key registered, and those of pools, stay what they are.
    """
    paths = prefix_of(old), prefix_of(new)
    scopes = f"tenant:{old}:" if old else "", f"tenant:{new}:"
    columns = [
        _Column("tape_catalog", "path", paths, MARK, "version"),
        _Column("tape_subscriptions", "path", paths, MARK),
        _Column("tape_subscription_runtimes", "path", paths, MARK),
        _Column("tape_taken", "subscription", paths, MARK, "part"),
        _Column("tape_dedup", "scope", scopes, "tenant:", "key"),
    ]
    for column in columns:
        _check_free(tx, column)
    moved = {column.table: _rename(tx, column) for column in columns}
    moved["tape_reactions"] = registry.move_reactions(tx, old, new)
    moved["tape_secrets"] = replace_resealed(tx, secrets)
    return moved


def _check_free(tx: Transaction, column: _Column) -> None:
    """Raise InvalidInput if a name is taken. A path with a live registration has a document, which is found first."""
    condition, params = _condition(column, "mine")
    same = f" AND theirs.{column.key} = mine.{column.key}" if column.key else ""
    row = tx.one(
        f"SELECT count(*) FROM {column.table} mine JOIN {column.table} theirs"
        f" ON theirs.{column.name} = {_new_name(column, 'mine')}{same} WHERE {condition}",
        column.prefixes[1],
        *params,
    )
    if row and row[0]:
        raise InvalidInput(
            f"{row[0]} rows of {column.table} have the same name in both tenants; nothing was moved."
            " Delete or rename one of each first."
        )


def _rename(tx: Transaction, column: _Column) -> int:
    condition, params = _condition(column, column.table)
    return tx.execute(
        f"UPDATE {column.table} SET {column.name} = {_new_name(column, column.table)} WHERE {condition}",
        column.prefixes[1],
        *params,
    )


def _new_name(column: _Column, table: str) -> str:
    return f"CAST(? AS TEXT) || substr({table}.{column.name}, {len(column.prefixes[0]) + 1})"


def _condition(column: _Column, table: str) -> tuple[str, list[str]]:
    """The condition that a row belongs to the old tenant. A comparison of beginnings, because % is a part of names."""
    prefix = column.prefixes[0]
    start, comparison = (prefix, "=") if prefix else (column.mark, "<>")
    return f"substr({table}.{column.name}, 1, {len(start)}) {comparison} ?", [start]
