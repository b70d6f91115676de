"""The lifecycle of subscriptions: registered, active, paused, draining, deactivated. Each change is a journal entry.

Plain functions on a transaction. The row and its entry are written in one transaction. Paths are qualified names.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tape.base.clock import now_ms
from tape.engine import catalog
from tape.engine.reactions.downstreams import release_all
from tape.errors import IllegalAction, NotASubscription, UnknownSubscription
from tape.journal.appender import append
from tape.model.entry import checked
from tape.model.execution_ids import MAX_ID, new_id
from tape.model.payload import to_json
from tape.model.tenant_names import display, is_visible, range_of, visible_prefix
from tape.store import Reader, Transaction
from tape.subscriptions import events
from tape.subscriptions.document.validator import KIND
from tape.subscriptions.events import Verb, subscription_ref

MAX_LIST = 1_000
# Reasons of a hold that are kept, and characters of each.
MAX_REASONS = 20
MAX_REASON = 500


class SubscriptionState(StrEnum):
    """The state of a subscription."""

    REGISTERED = "REGISTERED"
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    DRAINING = "DRAINING"
    DEACTIVATED = "DEACTIVATED"


class Action(NamedTuple):
    """A lifecycle action: the event it emits, the state it leads to, the states it is legal in."""

    verb: Verb
    state: SubscriptionState
    legal_from: tuple[SubscriptionState, ...]


ACTIONS = {
    "activate": Action(
        "activated",
        SubscriptionState.ACTIVE,
        (
            SubscriptionState.REGISTERED,
            SubscriptionState.PAUSED,
            SubscriptionState.DEACTIVATED,
            SubscriptionState.ACTIVE,
        ),
    ),
    "pause": Action("paused", SubscriptionState.PAUSED, (SubscriptionState.ACTIVE, SubscriptionState.PAUSED)),
    "resume": Action("resumed", SubscriptionState.ACTIVE, (SubscriptionState.PAUSED, SubscriptionState.ACTIVE)),
    "drain": Action(
        "draining",
        SubscriptionState.DRAINING,
        (SubscriptionState.ACTIVE, SubscriptionState.PAUSED, SubscriptionState.DRAINING),
    ),
    "deactivate": Action("deactivated", SubscriptionState.DEACTIVATED, tuple(SubscriptionState)),
}


class Registration(msgspec.Struct, frozen=True):
    """A registration of a subscription and its state: a row of tape_subscriptions."""

    subscription_id: int
    path: str
    catalog_id: int
    state: str
    last_event_type: str
    updated_at_ms: int
    held_reasons: str = ""
    held_at_ms: int = 0

    @property
    def holds(self) -> tuple[str, ...]:
        """Why it is held: its configuration lets no run start. Empty if it is not held."""
        return msgspec.json.decode(self.held_reasons, type=tuple[str, ...]) if self.held_reasons else ()

    @property
    def is_live(self) -> bool:
        """Whether it is not deactivated."""
        return self.state != SubscriptionState.DEACTIVATED


_COLUMNS = ", ".join(Registration.__struct_fields__)


def register(tx: Transaction, path: str) -> Registration:
    """Register the subscription of a path. Returns the live registration unchanged if there is one."""
    resource = catalog.fetch(tx, path)
    if resource is None:
        raise UnknownSubscription(f"Subscription not found: {display(path)}")
    if resource.kind != KIND:
        raise NotASubscription(f"Catalog entry '{display(path)}' is kind '{resource.kind}', not '{KIND}'")
    live = find_live(tx, path)
    if live is not None:
        return live
    subscription_id = new_id()
    while _exists(tx, subscription_id):  # another process can have generated the same id
        subscription_id = new_id()
    return _write(tx, subscription_id, path, resource.catalog_id, "registered", SubscriptionState.REGISTERED)


def act(tx: Transaction, subscription_id: int, action: str) -> Registration:
    """Apply an action to a subscription. Raises IllegalAction if its state does not allow it."""
    wanted = ACTIONS.get(action)
    if wanted is None:
        raise IllegalAction(f"Unknown subscription action '{action}'")
    before = require(tx, subscription_id)
    if before.state not in wanted.legal_from:
        allowed = ", ".join(f'"{state}"' for state in wanted.legal_from)
        raise IllegalAction(f"Cannot '{action}' a subscription in state '{before.state}' (allowed from [{allowed}])")
    if not before.is_live and wanted.state != SubscriptionState.DEACTIVATED:
        successor = find_live(tx, before.path)
        if successor is not None:
            raise IllegalAction(
                f"Cannot '{action}' subscription {subscription_id}: '{display(before.path)}' is registered anew as"
                f" {successor.subscription_id}; act on that one"
            )
    if wanted.state == SubscriptionState.DEACTIVATED:
        release_all(tx, before.path, now_ms())
    changed = _write(tx, subscription_id, before.path, before.catalog_id, wanted.verb, wanted.state)
    if not before.holds or not changed.is_live:
        return changed
    # The process that holds it ends the hold.
    return _store(tx, msgspec.structs.replace(changed, held_reasons=before.held_reasons, held_at_ms=before.held_at_ms))


def set_hold(tx: Transaction, subscription_id: int, reasons: Sequence[str], *, emitter: str = "") -> Registration:
    """Hold a subscription for reasons, or release it (none). An event is appended if that changes anything."""
    before = require(tx, subscription_id)
    kept = [reason[:MAX_REASON] for reason in reasons[:MAX_REASONS]]
    text = to_json(kept) if kept else ""
    if text == before.held_reasons or (kept and not before.is_live):
        return before
    ref = subscription_ref(before.path, subscription_id)
    event = events.held(ref, kept, emitter=emitter) if kept else events.released(ref, emitter=emitter)
    entry = append(tx, [checked(event.draft())])[0]
    since_ms = (before.held_at_ms or entry.ts_ms) if kept else 0
    return _store(tx, msgspec.structs.replace(before, held_reasons=text, held_at_ms=since_ms))


def find(reader: Reader | Transaction, subscription_id: int) -> Registration | None:
    """A registration by its id; None if it does not exist for the caller."""
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_subscriptions WHERE subscription_id = ?", subscription_id)
    return Registration(*row) if row is not None and is_visible(row[1]) else None


def _exists(tx: Transaction, subscription_id: int) -> bool:
    return tx.one("SELECT 1 FROM tape_subscriptions WHERE subscription_id = ?", subscription_id) is not None


def find_live(reader: Reader | Transaction, path: str) -> Registration | None:
    """The registration of a path that is not deactivated."""
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_subscriptions WHERE path = ? AND state <> 'DEACTIVATED'", path)
    return None if row is None else Registration(*row)


def find_activated(reader: Reader | Transaction, path: str) -> Registration | None:
    """The live registration of a path if it was activated, else the newest deactivated one."""
    row = reader.one(
        f"SELECT {_COLUMNS} FROM tape_subscriptions WHERE path = ? AND state <> 'REGISTERED'"
        " ORDER BY CASE state WHEN 'DEACTIVATED' THEN 1 ELSE 0 END, subscription_id DESC LIMIT 1",
        path,
    )
    return None if row is None else Registration(*row)


def list_activated_paths(reader: Reader | Transaction) -> frozenset[str]:
    """The paths that `find_activated` has a registration of."""
    rows = reader.query("SELECT DISTINCT path FROM tape_subscriptions WHERE state <> 'REGISTERED'")
    return frozenset(path for (path,) in rows)


def require(reader: Reader | Transaction, subscription_id: int) -> Registration:
    """A registration by its id. Raises UnknownSubscription."""
    found = find(reader, subscription_id)
    if found is None:
        raise UnknownSubscription(f"Subscription {subscription_id} not registered")
    return found


def list_registrations(
    reader: Reader | Transaction, *, path: str = "", before: int | None = None, limit: int = MAX_LIST
) -> list[Registration]:
    """Registrations that exist for the caller, newest first: of one path or of all, with ids below `before`."""
    of_path, values = (" AND path = ?", [path]) if path else ("", [])
    if prefix := visible_prefix():
        of_path, values = f"{of_path} AND path >= ? AND path < ?", [*values, *range_of(prefix)]
    rows = reader.query(
        f"SELECT {_COLUMNS} FROM tape_subscriptions WHERE subscription_id < ?{of_path}"
        " ORDER BY subscription_id DESC LIMIT ?",
        MAX_ID if before is None else before,
        *values,
        limit,
    )
    return [Registration(*row) for row in rows]


def _write(
    tx: Transaction, subscription_id: int, path: str, catalog_id: int, verb: Verb, state: SubscriptionState
) -> Registration:
    event = events.lifecycle(subscription_ref(path, subscription_id), verb, state, catalog_id)
    entry = append(tx, [checked(event.draft())])[0]
    return _store(tx, Registration(subscription_id, path, catalog_id, state.value, event.event_type, entry.ts_ms))


def _store(tx: Transaction, registration: Registration) -> Registration:
    row = msgspec.structs.astuple(registration)
    tx.upsert("tape_subscriptions", ("subscription_id",), Registration.__struct_fields__, [row])
    return registration
