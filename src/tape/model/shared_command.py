"""The payload of a command that many messages share: it begins a run for each of them, or one run for all (a batch).

What the commands have in common is written once. A message is written once, too, although its data stands twice in the
payload of a run of its own: in `message`, and at the top. `fold` leaves out what `unfold` can add.

The entry has the id of a block (see `execution_ids`). Without a batch, the n-th run has the id of the block plus n.
With a batch, the run of the batch has the id of the block, and the n-th message has that plus n + 1: under this id it
is found, and under this id it runs on its own if the batch has failed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tape.base.telemetry.tracing import parse_traceparent

SUMMARY = "summary"
# What the payload of such a command begins with, and no other.
MARK = '{"record":'
# Keys of a run's payload that the data of a message cannot replace.
RESERVED = ("message", "subscription", "source")
_MAPPINGS = ("headers", "attributes", "metadata")
# Keys of a message's payload that headers set: in a batch they belong to the message.
_FROM_HEADERS = ("idempotency_key", "content_type")


class SharedPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is one message's own: the message, or the payload as it was sent."""

    message_id: str = ""
    message: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    priority: str = ""
    ordering_key: str = ""
    trace: dict[str, Any] = {}

    @property
    def trace_ids(self) -> tuple[str, str]:
        """The ids of the trace and of the span that it goes on with."""
        trace = parse_traceparent(str(self.trace.get("traceparent", "")))
        return trace.trace_id, trace.span_id


class SharedCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of the entry. `path` is qualified; `order_scope` precedes the ordering keys of the runs."""

    record: str
    path: str
    version: int
    catalog_id: str
    pool: str
    parent_execution_id: str = ""
    subscription: str = ""
    source: str = ""
    downstream: str = ""
    order_scope: str = ""
    # Whether all messages are one run.
    batch: bool = False
    runs: list[SharedPart]

    def command_of(self, index: int, run_id: str) -> dict[str, Any]:
        """The command of the run of one message."""
        part = self.runs[index]
        if self.batch:
            return self._command(run_id, SUMMARY, [part])
        payload = part.payload
        if part.message is not None:
            payload = unfold(part.message, part.message_id, self.subscription, self.source)
        return self._command(run_id, self.record, [part], payload or {})

    def batch_command(self, run_id: str) -> dict[str, Any]:
        """The command of the run of all messages."""
        return self._command(run_id, self.record, self.runs)

    def _command(
        self, run_id: str, record: str, parts: Sequence[SharedPart], payload: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        first, is_alone = parts[0], len(parts) == 1
        key = first.ordering_key
        more: dict[str, Any] = {
            "parent_execution_id": self.parent_execution_id,
            "message_id": first.message_id if is_alone else "",
            "priority": first.priority,
            "trace": first.trace if is_alone else {},
            "subscription": self.subscription,
            "downstream": self.downstream,
            "ordering_key": f"{self.order_scope}:{key}" if key else "",
        }
        if payload is None:
            more["batch"] = len(parts)
            messages = [_batch_message(part) for part in parts]
            payload = {"messages": messages, "subscription": self.subscription, "source": self.source}
        return {
            "execution_id": run_id,
            "record": record,
            "path": self.path,
            "version": self.version,
            "catalog_id": self.catalog_id,
            "pool": self.pool,
            **{name: value for name, value in more.items() if value},
            "payload": payload,
        }


def fold(payload: dict[str, Any], message_id: str, subscription: str, source: str) -> dict[str, Any] | None:
    """The message of a payload without what `unfold` adds; None if the payload has more than that."""
    message = payload.get("message")
    if not isinstance(message, dict) or "data" not in message:
        return None
    folded = fold_message(message, message_id)
    return folded if _text(unfold(folded, message_id, subscription, source)) == _text(payload) else None


def fold_message(message: dict[str, Any], message_id: str) -> dict[str, Any]:
    """A message without what `_unfold_message` adds."""
    return {
        name: value
        for name, value in message.items()
        if not (name == "id" and value == message_id) and not (name in _MAPPINGS and value == {})
    }


def unfold(message: dict[str, Any], message_id: str, subscription: str, source: str) -> dict[str, Any]:
    """The payload of the run of a message, with the data of the message at the top."""
    full = _unfold_message(message, message_id)
    payload: dict[str, Any] = {"message": full, "subscription": subscription, "source": source}
    data = message["data"]
    if isinstance(data, dict):
        return payload | {name: value for name, value in data.items() if name not in RESERVED}
    return payload | {"body": data}


def _unfold_message(message: dict[str, Any], message_id: str) -> dict[str, Any]:
    return {"id": message_id, "data": None, **{name: {} for name in _MAPPINGS}, **message}


def batch_message(payload: dict[str, Any]) -> dict[str, Any]:
    """The message of a payload as the playbook of a batch sees it, with the keys that its headers set."""
    return {**payload["message"], **{name: payload[name] for name in _FROM_HEADERS if name in payload}}


def _batch_message(part: SharedPart) -> dict[str, Any]:
    """A message as the playbook of a batch sees it; the payload of an execution without a message as it is."""
    return (part.payload or {}) if part.message is None else _unfold_message(part.message, part.message_id)


def _text(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
