"""State that sessions share: keys that begin with `app:` belong to the app, those with `user:` to one user of it.

App and user are those of the caller's tenant: other tenants share nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tape.engine.ledgers.tenants import own_tenant
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, load_all, store

APP, USER = "app", "user"


class ScopedValue(Record, frozen=True):
    """A row of tape_scoped_state."""

    app_name: str
    scope: str
    scope_key: str  # the user, "" for the app
    tenant: str
    key: str
    value_json: str


_COLUMNS = columns(ScopedValue)
_KEYS = ("app_name", "scope", "scope_key", "tenant", "key")
_IS_SCOPE = "app_name = ? AND scope = ? AND scope_key = ? AND tenant = ?"


def session_only(state: dict[str, Any]) -> dict[str, Any]:
    """What of some state belongs to the session alone."""
    return {key: value for key, value in state.items() if _scope_of(key) is None}


def store_shared(tx: Transaction, app_name: str, user_id: str, state: dict[str, Any]) -> None:
    """Lay the shared part of some state over what the app and the user have; null deletes a key."""
    for key, value in state.items():
        scope = _scope_of(key)
        if scope is None:
            continue
        state_key = (app_name, scope, user_id if scope == USER else "", own_tenant(), key.partition(":")[2])
        if value is None:
            tx.execute(f"DELETE FROM tape_scoped_state WHERE {_IS_SCOPE} AND key = ?", *state_key)
        else:
            store(tx, "tape_scoped_state", _KEYS, ScopedValue(*state_key, msgspec.json.encode(value).decode()))


def read_shared(
    reader: Reader | Transaction, app_name: str, user_ids: Iterable[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What all sessions of an app see, and what those of each of these users see, by its full key."""
    of_users = {user_id: _read_scope(reader, app_name, USER, user_id) for user_id in set(user_ids)}
    return _read_scope(reader, app_name, APP, ""), of_users


def _read_scope(reader: Reader | Transaction, app_name: str, scope: str, scope_key: str) -> dict[str, Any]:
    query = f"SELECT {_COLUMNS} FROM tape_scoped_state WHERE {_IS_SCOPE}"
    rows = load_all(ScopedValue, reader.query(query, app_name, scope, scope_key, own_tenant()))
    return {f"{row.scope}:{row.key}": msgspec.json.decode(row.value_json) for row in rows}


def _scope_of(key: str) -> str | None:
    scope, separator, _ = key.partition(":")
    return scope if separator and scope in (APP, USER) else None
