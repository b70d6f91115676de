"""The payload of a command that begins many runs which are kept as a summary.

What their commands have in common is written once. A message is written once, too, although its data stands twice in
the payload of a run: in `message`, and at the top. `fold` leaves out what `unfold` can add.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tape.base.telemetry.tracing import parse_traceparent

SUMMARY = "summary"
# What the payload of such a command begins with, and no other.
MARK = '{"record":"summary",'
# Keys of a run's payload that the data of a message cannot replace.
RESERVED = ("message", "subscription", "source")
_MAPPINGS = ("headers", "attributes", "metadata")


class SummaryPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is one run's own: its message, or the payload as it was sent."""

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


class SummaryCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of the entry. `path` is qualified; `order_scope` precedes the ordering keys of the runs."""

    path: str
    version: int
    catalog_id: str
    pool: str
    parent_execution_id: str = ""
    subscription: str = ""
    source: str = ""
    downstream: str = ""
    order_scope: str = ""
    runs: list[SummaryPart]

    @property
    def record(self) -> str:
        """What is kept of the runs."""
        return SUMMARY

    def to_json(self) -> str:
        """The payload as text."""
        return MARK + msgspec.json.encode(self).decode()[1:]

    def command_of(self, index: int, run_id: str) -> dict[str, Any]:
        """The command of one run, as one that is recorded in full has it."""
        part = self.runs[index]
        payload = part.payload
        if part.message is not None:
            payload = unfold(part.message, part.message_id, self.subscription, self.source)
        more = {
            "parent_execution_id": self.parent_execution_id,
            "message_id": part.message_id,
            "priority": part.priority,
            "trace": part.trace,
            "subscription": self.subscription,
            "downstream": self.downstream,
            "ordering_key": f"{self.order_scope}:{part.ordering_key}" if part.ordering_key else "",
        }
        return {
            "execution_id": run_id,
            "record": SUMMARY,
            "path": self.path,
            "version": self.version,
            "catalog_id": self.catalog_id,
            "pool": self.pool,
            **{name: value for name, value in more.items() if value},
            "payload": payload or {},
        }


def fold(payload: dict[str, Any], message_id: str, subscription: str, source: str) -> dict[str, Any] | None:
    """The message of a payload without what `unfold` adds; None if the payload has more than that."""
    message = payload.get("message")
    if not isinstance(message, dict) or "data" not in message:
        return None
    folded = {
        name: value
        for name, value in message.items()
        if not (name == "id" and value == message_id) and not (name in _MAPPINGS and value == {})
    }
    return folded if _text(unfold(folded, message_id, subscription, source)) == _text(payload) else None


def unfold(message: dict[str, Any], message_id: str, subscription: str, source: str) -> dict[str, Any]:
    """The payload of the run of a message, with the data of the message at the top."""
    full = {"id": message_id, "data": None, **{name: {} for name in _MAPPINGS}, **message}
    payload: dict[str, Any] = {"message": full, "subscription": subscription, "source": source}
    data = message["data"]
    if isinstance(data, dict):
        return payload | {name: value for name, value in data.items() if name not in RESERVED}
    return payload | {"body": data}


def _text(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
