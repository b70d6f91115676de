"""Dead letters in the journal: messages that were rejected too often, and entries that a relay's sink rejected.

An entry stays when its dead letter is redriven or dropped; a row beside the journal records that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.engine.catalog import fetch
from tape.errors import InvalidDocument, NotFound, TapeError
from tape.journal.appender import read_head
from tape.journal.entries import SELECT, entries_of
from tape.journal.reader import select_visible
from tape.model.entry import Entry
from tape.model.principal import SYSTEM, acting_as, current_principal
from tape.model.tenant_names import display, name_within
from tape.server.dead_letters.dead_letter import DeadLetter, DeadLetterQuery, Page, Unreachable, cut
from tape.store import Database, Reader, Transaction
from tape.subscriptions import lifecycle
from tape.subscriptions.dispatch.in_server import WriterDispatch
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import subscription_ref
from tape.subscriptions.message import SourceMessage, decode_body, normalize_headers
from tape.subscriptions.routing import DedupKey, resolve

_MESSAGES = "/tape/subscription/message.dead_lettered/"
# The run ids that relays and fan-out jobs append their dead letters to.
_RELAYS = "dead:"
# A redriven message is recognized for 7 days, if its subscription has no dedup of its own.
_REDRIVE_WINDOW_S = 7 * 24 * 3600


class _JournalOrigin:
    """Entries in a range of a column, newest first, without those that are settled."""

    name = ""
    _column = ""
    _prefix = ""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, query: DeadLetterQuery, after: str, limit: int) -> Page:
        """The next entries."""
        if query.reaction_id or (query.subscription and self.name == "relay"):
            return Page((), None)
        before = int(after) if after.isdecimal() and len(after) < 20 else (1 << 62)
        entries, last = await self._database.read(lambda reader: self._read(reader, before, limit))
        shown = []
        for entry in entries:
            found = self._dead_letter(entry)
            is_wanted = found is not None and query.subscription in ("", self._path(entry))
            if found is not None and is_wanted and query.matches(found):
                shown.append(found)
        return Page(shown, last)

    async def find(self, key: str) -> DeadLetter:
        """One entry. Raises NotFound unless it is a dead letter that is not settled."""
        found = self._dead_letter(await self._entry(key))
        if found is None:
            raise self._not_found(key)
        return found

    async def drop(self, keys: Sequence[str], reason: str) -> Mapping[str, str]:
        """Record that dead letters are dropped; their entries stay in the journal."""
        failures: dict[str, str] = {}
        for key in keys:
            try:
                entry = await self._entry(key)
                await self._settle(entry.global_seq, f"dropped: {reason}" if reason else "dropped")
            except TapeError as error:
                failures[key] = str(error)
        return failures

    async def unreachable(self, query: DeadLetterQuery) -> Sequence[Unreachable]:
        """Nothing: what is in the journal is here."""
        return ()

    async def _entry(self, key: str) -> Entry:
        if not key.isdecimal() or len(key) > 18:
            raise self._not_found(key)
        entries, _ = await self._database.read(lambda reader: self._read(reader, int(key) + 1, 1))
        if not entries or entries[0].global_seq != int(key):
            raise self._not_found(key)
        return entries[0]

    def _not_found(self, key: str) -> NotFound:
        return NotFound(f"There is no dead letter {self.name}/{key[:100]}; see `tape dead-letters list`.")

    async def _settle(self, global_seq: int, action: str) -> None:
        def write(tx: Transaction) -> None:
            row = (global_seq, action[:500].replace("\0", ""), now_ms())
            tx.upsert("tape_settled_dead_letters", ("global_seq",), ("global_seq", "action", "settled_at_ms"), [row])
            # Those of entries that retention has removed are needed no longer.
            tx.execute("DELETE FROM tape_settled_dead_letters WHERE global_seq < ?", read_head(tx).oldest)

        await self._database.write(write)

    def _read(self, reader: Reader, before: int, limit: int) -> tuple[list[Entry], str | None]:
        """Entries before a global_seq that the caller sees, and the cursor after them."""
        selection = select_visible(current_principal())
        tenants, values = "", list[Any]()
        if selection.tenants is not None:
            tenants = f" AND tenant IN ({', '.join('?' * len(selection.tenants))})"
            values = list(selection.tenants)
        rows = reader.query(
            f"{SELECT} WHERE {self._column} >= ? AND {self._column} < ? AND global_seq < ?{tenants}"
            " AND global_seq NOT IN (SELECT global_seq FROM tape_settled_dead_letters)"
            " ORDER BY global_seq DESC LIMIT ?",
            self._prefix,
            self._prefix[:-1] + chr(ord(self._prefix[-1]) + 1),
            before,
            *values,
            limit,
        )
        entries, _ = entries_of(reader, rows)
        last = str(rows[-1][0]) if len(rows) == limit else None
        return [entry for entry in entries if selection.matches(entry)], last

    def _dead_letter(self, entry: Entry) -> DeadLetter | None:
        raise NotImplementedError

    def _path(self, entry: Entry) -> str:
        return name_within(entry.tenant, str(_fields(entry).get("subscription", "")))


class MessageOrigin(_JournalOrigin):
    """Messages that were rejected on each delivery. Their event has the whole message."""

    name = "message"
    _column = "subject"
    _prefix = _MESSAGES

    def __init__(self, database: Database, max_payload_bytes: int) -> None:
        super().__init__(database)
        self._max_bytes = max_payload_bytes

    async def redrive(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Route messages again and start their runs, with their ids and ordering keys."""
        failures: dict[str, str] = {}
        for key in keys:
            try:
                if reason := await self._start(await self._entry(key)):
                    failures[key] = reason
            except TapeError as error:
                failures[key] = str(error)
        return failures

    async def _start(self, entry: Entry) -> str:
        """Start the run of a message; why not, if it cannot be started."""
        found = self._dead_letter(entry)
        if found is None or not found.can_redrive:
            return "The event has no message body: send the message again at its source."
        path = self._path(entry)
        subscription, subscription_id = await self._database.read(lambda reader: _subscription(reader, path))
        plan = resolve(subscription, _message(subscription, _fields(entry)["message"]))
        if plan.dedup is None:
            plan = msgspec.structs.replace(plan, dedup=DedupKey(f"dead-letter/{entry.global_seq}", _REDRIVE_WINDOW_S))
        with acting_as(SYSTEM):  # as the runtime of the subscription, which the caller may see
            dispatch = WriterDispatch(self._database, subscription_ref(path, subscription_id), self._max_bytes)
            (answer,) = await dispatch([plan])
        if not answer.has_run:
            return answer.error or answer.outcome
        await self._settle(entry.global_seq, f"redriven as {answer.run_id}")
        return ""

    def _dead_letter(self, entry: Entry) -> DeadLetter | None:
        fields = _fields(entry)
        message = fields.get("message")
        if not isinstance(message, dict):
            return None  # its spool holds it
        has_body = message.get("data") is not None or "bytes" not in message
        payload = msgspec.json.encode(message.get("data")).decode()
        return DeadLetter(
            id=f"message/{entry.global_seq}",
            origin="message",
            dead_at_ms=entry.ts_ms,
            reason=cut(fields.get("reason", "")),
            subscription=display(self._path(entry)),
            subject=entry.subject,
            message_id=str(fields.get("message_id", "")),
            ordering_key=str(message.get("ordering_key", "")),
            attempts=_number(fields.get("attempts")),
            size_bytes=len(payload.encode()) if has_body else _number(message.get("bytes")),
            can_redrive=has_body,
            redrive="The message is routed again and becomes a run, with the same message id and ordering key."
            if has_body
            else "Impossible: the message was too large for the journal. Send it again at its source.",
            payload=payload,
        )


class RelayOrigin(_JournalOrigin):
    """Entries that the sink of a relay or fan-out job rejected, where those are appended to the journal."""

    name = "relay"
    _column = "run_id"
    _prefix = _RELAYS

    async def redrive(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Impossible: the sink is that of another process."""
        return dict.fromkeys(keys, _NOT_HERE)

    async def unreachable(self, query: DeadLetterQuery) -> Sequence[Unreachable]:
        """Files that relays write on their own machines."""
        if query.subscription or query.reaction_id:
            return ()
        return (
            Unreachable(
                "relay",
                "files",
                "Relays with --policy dead_letter and a file keep rejected entries on their own machine:"
                " `tape dead-letters list --file FILE` reads one there.",
            ),
            Unreachable(
                "ingest",
                "files",
                "Ingest jobs keep rejected rows in the folder of --rejects:"
                " `tape dead-letters list --rejects FOLDER` reads it.",
            ),
        )

    def _dead_letter(self, entry: Entry) -> DeadLetter | None:
        fields = _fields(entry)
        if "error" not in fields or "global_seq" not in fields:
            return None
        return DeadLetter(
            id=f"relay/{entry.global_seq}",
            origin="relay",
            dead_at_ms=entry.ts_ms,
            reason=cut(fields["error"]),
            subject=str(fields.get("subject", "")),
            message_id=str(fields["global_seq"]),
            attempts=1,
            size_bytes=len(entry.payload_json.encode()),
            can_redrive=False,
            redrive=_NOT_HERE,
            payload=entry.payload_json,
        )


_NOT_HERE = (
    "Not by the server: only the relay has the sink. `tape relay --sink … --redrive SUBJECT` delivers the dead letters"
    " of a subject again."
)


def _fields(entry: Entry) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(entry.payload_json)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


def _subscription(reader: Reader, path: str) -> tuple[Subscription, int]:
    resource = fetch(reader, path)
    if resource is None:
        raise NotFound(f"The catalog has no subscription {display(path)!r} any more.")
    try:
        subscription = parse_subscription(resource.content, path)
    except InvalidDocument as error:
        raise NotFound(f"The document of {display(path)!r} is invalid: {error}") from error
    live = lifecycle.find_live(reader, path)
    return subscription, 0 if live is None else live.subscription_id


def _message(subscription: Subscription, fields: dict[str, Any]) -> SourceMessage:
    """The message of an event, as its source delivered it."""
    attributes = fields.get("attributes") or {}
    shown = fields.get("headers") or attributes
    pairs = [(name, text) for name, value in shown.items() for text in (value if isinstance(value, list) else [value])]
    return SourceMessage(
        message_id=str(fields.get("id", "")),
        source=subscription.spec.source,
        body=_body(fields.get("data")),
        headers=normalize_headers((str(name), str(text)) for name, text in pairs),
        attributes=attributes,
        metadata=fields.get("metadata") or {},
        received_at_ms=now_ms(),
        ordering_key=str(fields.get("ordering_key", "")),
    )


def _body(data: Any) -> bytes | None:
    """Bytes that a playbook sees as this data."""
    if data is None:
        return None
    if isinstance(data, str) and decode_body(data.encode()) == data:
        return data.encode()
    return msgspec.json.encode(data)
