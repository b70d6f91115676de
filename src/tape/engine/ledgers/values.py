"""Values: small shared state with versions. Every write and deletion is on the journal.

The entries of a namespace form the run `value:<namespace>`, so each has an id of its own.
"""

from __future__ import annotations

import msgspec

from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers.tenants import own_tenant
from tape.errors import InvalidInput, PayloadTooLarge, VersionConflict
from tape.journal.appender import append
from tape.model import subject
from tape.model.entry import Draft, check_id
from tape.store import Reader, Transaction


class Value(msgspec.Struct, frozen=True):
    """A value as it stands; a deleted one keeps its version."""

    namespace: str
    key: str
    value_json: str
    version: int
    ts_ms: int
    writer: str
    deleted: bool


def get(reader: Reader | Transaction, namespace: str, key: str) -> Value | None:
    """The value of a key, also if it is deleted; None if it was never written."""
    row = reader.one(
        "SELECT value_json, version, ts_ms, writer, deleted FROM tape_values"
        " WHERE namespace = ? AND key = ? AND tenant = ?",
        namespace,
        key,
        own_tenant(),
    )
    if row is None:
        return None
    value_json, version, ts_ms, writer, deleted = row
    return Value(namespace, key, value_json, version, ts_ms, writer, bool(deleted))


def check_address(namespace: str, key: str) -> None:
    """Raise unless namespace and key can name a value."""
    if not namespace:
        raise InvalidInput("namespace is empty; give the value a namespace, for example 'treasury'.")
    check_id("namespace", namespace)
    check_id("key", key)
    subject.value_changed(namespace, key)


def check_value(value_json: str, max_bytes: int) -> None:
    """Raise unless the text can be stored."""
    if (size := len(value_json.encode())) > max_bytes:
        raise PayloadTooLarge(
            f"value_json has {size} bytes; this server takes {max_bytes} at most (max_payload_bytes)."
        )
    if "\0" in value_json:
        raise InvalidInput("value_json has a NUL character; write it as \\u0000.")


def write(
    tx: Transaction,
    namespace: str,
    key: str,
    value_json: str,
    *,
    if_version: int = -1,
    writer: str = "",
    trace: Trace = NO_TRACE,
) -> Value:
    """Write a value. With `if_version` >= 0 only if that is the current version; 0 is "not there yet"."""
    before = get(tx, namespace, key)
    version = before.version if before else 0
    if if_version >= 0 and if_version != version:
        raise VersionConflict(
            f"write_value: version conflict (have {version}, expected {if_version}) for {namespace}/{key}."
            " Read the value again, or send if_version -1 to write regardless."
        )
    payload = {
        "run_id": run_of(namespace),
        "namespace": namespace,
        "key": key,
        "version": version + 1,
        "writer": writer,
        "value": {"namespace": namespace, "key": key, "value_json": value_json, "version": version + 1},
        **_previous(before),
    }
    ts_ms = _journal(tx, subject.value_changed(namespace, key), namespace, payload, trace)
    return _store(tx, Value(namespace, key, value_json, version + 1, ts_ms, writer, deleted=False))


def delete(tx: Transaction, namespace: str, key: str, *, trace: Trace = NO_TRACE) -> Value | None:
    """Delete a value, keeping its version; None if it was never written."""
    before = get(tx, namespace, key)
    if before is None:
        return None
    payload = {
        "run_id": run_of(namespace),
        "namespace": namespace,
        "key": key,
        "version": before.version + 1,
        "deleted": True,
        **_previous(before),
    }
    ts_ms = _journal(tx, subject.value_deleted(namespace, key), namespace, payload, trace)
    return _store(tx, Value(namespace, key, "", before.version + 1, ts_ms, before.writer, deleted=True))


def run_of(namespace: str) -> str:
    """The run that a namespace's entries belong to."""
    return f"value:{namespace}"


def _previous(before: Value | None) -> dict[str, object]:
    return {
        "prev_version": before.version if before else 0,
        "prev_value_json": before.value_json if before else "",
    }


def _journal(tx: Transaction, subject: str, namespace: str, payload: dict[str, object], trace: Trace) -> int:
    draft = Draft(
        subject=subject,
        kind="value",
        run_id=run_of(namespace),
        tenant=own_tenant(),
        payload_json=msgspec.json.encode(payload).decode(),
        **trace._asdict(),
    )
    return append(tx, [draft])[0].ts_ms


def _store(tx: Transaction, value: Value) -> Value:
    columns = ("namespace", "key", "tenant", "value_json", "version", "ts_ms", "writer", "deleted")
    row = (
        value.namespace,
        value.key,
        own_tenant(),
        value.value_json,
        value.version,
        value.ts_ms,
        value.writer,
        int(value.deleted),
    )
    tx.upsert("tape_values", ("namespace", "key", "tenant"), columns, [row])
    return value
