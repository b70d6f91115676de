"""`kind: subscription`: a step that polls a source, or settles the messages of an earlier poll."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from tape.brokers import Delivery, Source, known_sources, open_source
from tape.brokers.settings import source_hosts
from tape.documents.document import Fields
from tape.errors import SourceError, SourceMisconfigured, StepFailed
from tape.model.tenant_names import name_within
from tape.playbooks.templates import is_template
from tape.playbooks.tools import ToolCall
from tape.subscriptions.api_client import TOKEN_VARIABLE, Control
from tape.subscriptions.document.spec import CONNECTION_KEYS, MAX_BATCH, HeadersSpec
from tape.subscriptions.message import message_fields, message_of
from tape.subscriptions.secrets import Reveal

OPERATIONS = ("poll", "ack", "nack", "term")
MAX_WAIT_MS = 60_000
AckMode = Literal["on_success", "auto", "manual", "defer", "none"]
_ACK_WORDS: dict[str, AckMode] = {
    "on_success": "on_success",
    "auto": "auto",
    "true": "auto",
    "manual": "manual",
    "false": "manual",
    "defer": "defer",
    "deferred": "defer",
    "none": "none",
    "peek": "none",
}
_OWN_KEYS = ("kind", "source", "operation", "auth", "batch", "timeout_ms", "ack", "ack_ids", "nack_delay_ms")


class SubscriptionTool:
    """`operation: poll` returns `count` and `messages`; `ack`, `nack` and `term` settle the `ack_ids` of a poll.

    With `ack: on_success` (the default) messages are acknowledged once they are recorded in the run. If the worker dies
    before that, the next poll gets them; if it dies after that, the worker that resumes the run has them. With `defer`
    nothing is acknowledged, and `ack_ids` are for a later step.
    """

    def __init__(self, reveal: Reveal | None = None) -> None:
        self._reveal = reveal or _from_server

    def check(self, fields: Fields) -> None:
        """Check the source, the operation and the connection settings."""
        fields.node.mapping(*_OWN_KEYS, *CONNECTION_KEYS, "options", "service_account")
        for name, allowed, default in (("source", known_sources(), None), ("operation", (*OPERATIONS, "nak"), "poll")):
            given = fields.text(name) if default is None else fields.text(name, default)
            if given and not is_template(given):
                fields.at(name).choice(allowed) if name in fields else None
        for name in ("batch", "timeout_ms", "nack_delay_ms"):
            if name in fields and not is_template(fields.value(name)):
                fields.whole(name)
        if "ack" in fields and not is_template(fields.value("ack")):
            try:
                ack_mode(fields.value("ack"))
            except SourceMisconfigured as error:
                fields.at("ack").wrong(str(error))

    async def call(self, call: ToolCall) -> Any:
        """Poll the source, or settle receipts."""
        config = call.config
        operation = config.get("operation", "poll")
        operation = "nack" if operation == "nak" else operation
        if operation not in OPERATIONS:
            raise SourceMisconfigured(
                f"subscription: unsupported operation {operation!r}. Supported: {', '.join(OPERATIONS)}."
            )
        if operation == "poll":
            return await self._poll(call)
        return await self._settle(call, operation)

    async def _poll(self, call: ToolCall) -> dict[str, Any]:
        config = call.config
        source_name, mode = str(config.get("source", "")), ack_mode(config.get("ack"))
        batch = min(max(_whole(config, "batch", 100), 1), MAX_BATCH)
        wait_s = min(_whole(config, "timeout_ms", 1_000), MAX_WAIT_MS) / 1_000
        async with self._opened(call) as source:

            async def fetch() -> dict[str, Any]:
                found = await source.poll(batch, wait_s)
                shows = mode == "defer" or source_name == "pubsub"
                return {
                    "messages": [_shown(source_name, delivery, shows) for delivery in found],
                    "receipts": [delivery.receipt for delivery in found],
                }

            if mode not in ("on_success", "auto"):
                fetched = await fetch()
                await source.release()
                given = mode == "defer" or source_name == "pubsub"
                return _polled(source_name, mode, fetched, is_acked=False, shows_ids=given)
            # The messages are recorded in the run before they are acknowledged.
            fetched = await _recorded(call, {"source": source_name, "batch": batch}, fetch)
            try:
                await source.ack(fetched["receipts"])
                is_acked = bool(fetched["receipts"]) or source_name == "nats"
            except SourceError:
                # The source redelivers them; the run has recorded them already.
                is_acked = False
            return _polled(source_name, mode, fetched, is_acked=is_acked, shows_ids=False)

    async def _settle(self, call: ToolCall, operation: str) -> dict[str, Any]:
        config = call.config
        receipts = config.get("ack_ids") or []
        if not isinstance(receipts, list) or not all(isinstance(each, str) for each in receipts):
            raise SourceMisconfigured("subscription: 'ack_ids' must be a list of texts, as a poll gave them.")
        errors: list[str] = []
        if receipts:
            async with self._opened(call) as source:
                if not source.settles_elsewhere:  # vocabulary: public attribute of sources
                    raise SourceMisconfigured(
                        f"subscription[{config['source']}]: source does not support out-of-band {operation}"
                        " (deferred-ack). Let the poll acknowledge: ack: on_success."
                    )
                errors = await _settle_all(source, operation, receipts, _whole(config, "nack_delay_ms", 0) / 1_000)
        disposed = len(receipts) - len(errors)
        return {
            "status": "partial" if errors else "success",
            "source": config.get("source"),
            "operation": operation,
            "requested": len(receipts),
            "disposed": disposed,
            "errors": errors,
            "metrics": {"tape_subscription_messages_disposed_total": disposed, "source": config.get("source")},
        }

    @asynccontextmanager
    async def _opened(self, call: ToolCall) -> Any:
        alias, kind = call.config.get("auth"), str(call.config.get("source", ""))
        connection = {name: value for name, value in call.config.items() if name not in _OWN_KEYS}
        hosts = source_hosts(kind, connection)
        # Whatever alias the step names, it gets a secret of the run's own tenant.
        credential = await self._reveal(name_within(call.run.tenant, str(alias)), hosts) if alias else None
        source = open_source(kind, connection, credential)
        try:
            await source.open()
            yield source
        finally:
            await source.close()


async def _recorded(call: ToolCall, request: dict[str, Any], fetch: Callable[[], Awaitable[Any]]) -> Any:
    """The recorded fetch of a step, by this worker or an earlier one. Failed attempts are skipped."""
    for attempt in itertools.count(1):
        failure: list[SourceError] = []

        async def act(failure: list[SourceError] = failure) -> Any:
            try:
                return await fetch()
            except SourceError as error:
                failure.append(error)
                raise

        try:
            return await call.host.perform(f"{call.key}/fetched{attempt}", call.step, request, act)
        except (StepFailed, SourceError):
            if failure:
                raise failure[0] from None
    raise AssertionError("attempts do not end")


async def _settle_all(source: Source, operation: str, receipts: list[str], delay_s: float) -> list[str]:
    """Settle receipts in one call; if it fails, one by one. Returns the errors."""

    async def settle(some: list[str]) -> None:
        if operation == "nack":
            await source.nack(some, delay_s)
        else:
            await (source.ack if operation == "ack" else source.term)(some)

    try:
        await settle(receipts)
    except SourceError:
        errors = []
        for receipt in receipts:
            try:
                await settle([receipt])
            except SourceError as error:
                errors.append(str(error))
        return errors
    return []


def ack_mode(given: Any) -> AckMode:
    """The ack mode of a step's `ack` value."""
    if given is None or given is True:
        return "on_success"
    if given is False:
        return "manual"
    if isinstance(given, str) and given.lower() in _ACK_WORDS:
        return _ACK_WORDS[given.lower()]
    raise SourceMisconfigured(
        f"Invalid subscription 'ack' value {given!r}. Valid: on_success, auto, manual, defer, none."
    )


def _shown(source: str, delivery: Delivery, shows_receipt: bool) -> dict[str, Any]:
    message = message_of(source, delivery, shows_receipt=shows_receipt)
    data = "" if message.body == b"" else message.data
    return message_fields(message, HeadersSpec(), data)


def _polled(source: str, mode: AckMode, fetched: dict[str, Any], *, is_acked: bool, shows_ids: bool) -> dict[str, Any]:
    count = len(fetched["messages"])
    return {
        "status": "success",
        "source": source,
        "operation": "poll",
        "count": count,
        "messages": fetched["messages"],
        "acked": is_acked,
        "ack_mode": mode,
        "ack_ids": fetched["receipts"] if shows_ids else [],
        "metrics": {"tape_subscription_messages_fetched_total": count, "source": source},
    }


def _whole(config: dict[str, Any], name: str, default: int) -> int:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SourceMisconfigured(f"subscription: {name!r} must be a whole number of at least 0, not {value!r}.")
    return value


async def _from_server(alias: str, hosts: Sequence[str]) -> Any:
    """A secret of the server's wallet; needs the internal token."""
    control = Control(os.environ.get("TAPE_SERVER_URL", "http://127.0.0.1:7879"), os.environ.get(TOKEN_VARIABLE, ""))
    try:
        return await asyncio.to_thread(control.credential, alias, hosts)
    finally:
        control.close()
