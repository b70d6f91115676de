"""Appending to the journal, durably and once per request id; both ends of the journal."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice

import msgspec

from tape.base.clock import now_ms
from tape.errors import InvalidInput, PayloadTooLarge, RequestConflict, SubjectNotGranted
from tape.journal.appender import Appender, Head, read_head
from tape.model.entry import MAX_PAYLOAD_BYTES, Draft, check_id, checked
from tape.model.principal import Principal, current_principal
from tape.model.reserved import is_reserved, refuse_reserved
from tape.store import Database, Reader, Transaction

# Size of an entry without its payload, for the limits of the writer.
ENTRY_OVERHEAD_BYTES = 512
# Drafts that are checked before other calls get their turn on the event loop.
DRAFTS_AT_ONCE = 64
# A repeated request is recognized for this long.
REQUEST_RETENTION_MS = 24 * 3600 * 1000
# Records of requests that are looked through in one statement.
REQUESTS_AT_ONCE = 10_000

# Request id and tenant.
_RequestKey = tuple[str, str]


Screen = Callable[[Sequence[Draft]], Awaitable[list[Draft]]]


class Part(msgspec.Struct, frozen=True):
    """Which drafts of a request are sent again by themselves: the number of its drafts, and where these began."""

    of: int
    at: int

    def name(self, request_id: str) -> str:
        """The request id of the part, if it is appended by itself."""
        return f"{request_id}#{self.at}"


class AppendRequest(msgspec.Struct, frozen=True):
    """Drafts to append together, all or none. A request id, unique in its tenant, makes a repetition harmless.

    With a digest, a repetition must have the same content; without one the first write wins.
    """

    drafts: list[Draft]
    request_id: str = ""
    digest: bytes = b""
    # Whether drafts without a tenant get that of their run, also if a client chose its id.
    inherits_tenant: bool = False
    part: Part | None = None
    # Whether the entries of a run are numbered over all tenants.
    shares_runs: bool = False

    @property
    def tenant(self) -> str:
        """The tenant that the request id belongs to: as sent, because a later repetition may inherit another."""
        return self.drafts[0].tenant


class Journal:
    """Appends to one database's journal."""

    def __init__(self, database: Database, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self.database = database
        self.max_payload_bytes = max_payload_bytes
        # On a server without keys tenants are labels, and the entries of a run are numbered over all of them.
        self.shares_runs = False
        # What drafts go through before they are stored, if anything.
        self.screen: Screen | None = None
        # Called when a principal that may appends entries of a reserved kind, with their number.
        self.on_reserved: Callable[[Principal, int], None] = lambda principal, count: None

    async def append(
        self,
        drafts: Sequence[Draft],
        *,
        request_id: str = "",
        of_client: bool = False,
        first_write_wins: bool = False,
        inherits_tenant: bool = False,
        part: Part | None = None,
    ) -> range:
        """Append drafts in one operation; the `global_seq`s they got, once that is durable.

        All or none: a bad draft refuses the whole request before anything is written. Drafts of a client are checked
        against its write grants, and cannot be of a reserved kind unless the client is the system. A known request id
        with other content is a RequestConflict, unless the first write wins. With `inherits_tenant` a draft without a
        tenant gets that of its run. A `part` of a request that was sent before is appended unless the request was.
        """
        return await self.submit(
            await self.prepare(
                drafts,
                request_id=request_id,
                of_client=of_client,
                first_write_wins=first_write_wins,
                inherits_tenant=inherits_tenant,
                part=part,
            )
        )

    async def prepare(
        self,
        drafts: Sequence[Draft],
        *,
        request_id: str = "",
        of_client: bool = False,
        first_write_wins: bool = False,
        inherits_tenant: bool = False,
        part: Part | None = None,
    ) -> AppendRequest:
        """The first half of `append`: check and screen drafts, so that only the database can still refuse them."""
        check_id("request_id", request_id)
        if part is not None:
            _check_part(part, request_id, len(drafts))
        digest = b"" if first_write_wins or not request_id else _digest(drafts)
        good = await self._prepared(drafts, of_client)
        return AppendRequest(good, request_id, digest, inherits_tenant, part, self.shares_runs)

    async def append_each(
        self,
        drafts: Sequence[Draft],
        request_ids: Sequence[str],
        *,
        of_client: bool = False,
        inherits_tenant: bool = False,
    ) -> list[int]:
        """Append drafts in order, each with a request id of its own: those that were appended before are not repeated.

        A bad draft refuses all of them before anything is written. Of Tape's own drafts the first write wins.
        """
        digests = [_digest([draft]) if of_client else b"" for draft in drafts]
        good = await self._prepared(drafts, of_client)
        requests = (
            AppendRequest([draft], key, digest, inherits_tenant, shares_runs=self.shares_runs)
            for draft, key, digest in zip(good, request_ids, digests, strict=True)
        )
        answers = await asyncio.gather(*map(self.submit, requests), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer  # the others are durable; a repetition of the call finds them
        return [answer[0] for answer in answers if isinstance(answer, range)]

    async def _prepared(self, drafts: Sequence[Draft], of_client: bool) -> list[Draft]:
        if not drafts:
            raise InvalidInput("drafts is empty; send at least one.")
        good = []
        principal, reserved = current_principal(), 0
        for index, draft in enumerate(drafts):
            if index % DRAFTS_AT_ONCE == DRAFTS_AT_ONCE - 1:
                await asyncio.sleep(0)  # other calls are served between the parts of a large one
            try:
                good.append(checked(draft, self.max_payload_bytes))
                if of_client:
                    principal.check_write(good[-1].subject)
                    if principal.may_append_reserved:
                        reserved += is_reserved(good[-1])
                    else:
                        refuse_reserved(good[-1])
            except (InvalidInput, SubjectNotGranted) as error:
                if len(drafts) == 1:
                    raise
                raise type(error)(f"drafts[{index}]: {error}") from error
        if reserved:
            self.on_reserved(principal, reserved)
        return good if self.screen is None else await self.screen(good)

    async def submit(self, request: AppendRequest) -> range:
        """The second half of `append`: the `global_seq`s of prepared drafts, once they are durable."""
        size = sum(len(draft.payload_json) for draft in request.drafts) + len(request.drafts) * ENTRY_OVERHEAD_BYTES
        if size > self.database.max_operation_bytes:
            raise PayloadTooLarge(
                f"{len(request.drafts)} drafts have about {size} bytes together; this server takes"
                f" {self.database.max_operation_bytes} at once (queue_bytes). Append them in several requests."
            )
        answer = await self.database.write_bulk(append_requests, request, size)
        if isinstance(answer, RequestConflict):
            raise answer
        return answer

    async def head(self) -> Head:
        """Both ends of the journal."""
        return await self.database.read(read_head)


def append_requests(tx: Transaction, requests: Sequence[AppendRequest]) -> list[range | RequestConflict]:
    """Append several requests at once; a repeated request gets its first answer, or a conflict."""
    done = _find_answers(tx, [name for request in requests for name in _names(request)])
    appender = tx.enlist(Appender)
    resolved = {
        inherits: iter(
            appender.inherit_tenants(
                [draft for request in requests if request.inherits_tenant is inherits for draft in request.drafts],
                from_client_runs=inherits,
            )
        )
        for inherits in (False, True)
    }
    drafts: list[Draft] = []
    shared: list[Draft] = []
    start = appender.global_seq + 1
    answers: list[range | RequestConflict] = []
    for request in requests:
        given = list(islice(resolved[request.inherits_tenant], len(request.drafts)))
        request_id = request.request_id
        key = (request.tenant, request_id)
        known = done.get(key) or done.get((None, request_id)) if request_id else None
        if request.part is not None and (known is None or known.is_replaced):
            if known is None:
                done[key] = _Answered(range(0), b"")
                appender.record_request(request_id, request.tenant, range(0), b"")
            request_id = request.part.name(request_id)
            key = (request.tenant, request_id)
            known = done.get(key)
        if known is not None:
            answers.append(known.answer_to(request))
            continue
        answer = range(start + len(drafts), start + len(drafts) + len(request.drafts))
        drafts += given
        if request.shares_runs:
            shared += given
        answers.append(answer)
        if request_id:
            done[key] = _Answered(answer, request.digest)
            appender.record_request(request_id, request.tenant, answer, request.digest)
    if shared:
        appender.share_runs(shared)
    appender.number(drafts)
    return answers


def _names(request: AppendRequest) -> tuple[str, ...]:
    """The request ids under which the answer of a request may be recorded."""
    if not request.request_id:
        return ()
    return (request.request_id, request.part.name(request.request_id)) if request.part else (request.request_id,)


def _check_part(part: Part, request_id: str, drafts: int) -> None:
    if not request_id:
        raise InvalidInput(f"part_of is {part.of} and request_id is empty; a part needs the request_id of the whole.")
    if part.at + drafts > part.of:
        raise InvalidInput(f"part_at {part.at} and {drafts} drafts are more than part_of {part.of}.")


class _Answered(msgspec.Struct, frozen=True):
    """A request that was carried out, or that is replaced by its parts: then it has no numbers."""

    global_seqs: range
    digest: bytes

    @property
    def is_replaced(self) -> bool:
        """Whether the parts of the request are appended, so that it never will be."""
        return not self.global_seqs

    def answer_to(self, request: AppendRequest) -> range | RequestConflict:
        """The recorded answer, if the content is the same as far as both sides know it."""
        if request.part is not None and len(self.global_seqs) == request.part.of:
            return self.global_seqs[request.part.at : request.part.at + len(request.drafts)]
        if self.is_replaced:
            return RequestConflict(
                f"request_id {request.request_id!r}: a part of this request was appended by itself meanwhile; nothing"
                " was written. Append the other parts with their own request ids."
            )
        if self.digest and request.digest and self.digest != request.digest:
            return RequestConflict(
                f"request_id {request.request_id!r} was used for other content (global_seq {self.global_seqs.start});"
                " nothing was written. Use a new request_id for new content."
            )
        return self.global_seqs


async def delete_expired_requests(database: Database) -> int:
    """Delete the records of requests older than 24 hours; how many.

    No index leads to them, because each append would pay for it: the records are read in slices, beside the writer.
    """
    before = now_ms() - REQUEST_RETENTION_MS
    removed = 0
    first: _RequestKey = ("", "")
    while True:
        last, has_expired = await database.read(partial(_read_slice, first=first, before=before))
        if has_expired:
            removed += await database.write(partial(_delete_slice, first=first, last=last, before=before))
        if last is None:
            return removed
        first = last


_SLICE = "(request_id, tenant) > (?, ?) AND (request_id, tenant) <= (?, ?) AND ts_ms < ?"
_WHOLE_REST = "(request_id, tenant) > (?, ?) AND ts_ms < ?"


def _read_slice(reader: Reader, first: _RequestKey, before: int) -> tuple[_RequestKey | None, bool]:
    """The last key of a slice of records, None if it is the last slice, and whether one of them has expired."""
    sql = (
        "SELECT request_id, tenant FROM tape_append_requests WHERE (request_id, tenant) > (?, ?)"
        " ORDER BY request_id, tenant LIMIT 1 OFFSET ?"
    )
    last = reader.one(sql, *first, REQUESTS_AT_ONCE - 1)
    condition, params = (_SLICE, (*first, *last)) if last else (_WHOLE_REST, first)
    found = reader.one(f"SELECT 1 FROM tape_append_requests WHERE {condition} LIMIT 1", *params, before)
    return (last[0], last[1]) if last else None, found is not None


def _delete_slice(tx: Transaction, first: _RequestKey, last: _RequestKey | None, before: int) -> int:
    condition, params = (_SLICE, (*first, *last)) if last else (_WHOLE_REST, first)
    return tx.execute(f"DELETE FROM tape_append_requests WHERE {condition}", *params, before)


def _find_answers(tx: Transaction, request_ids: list[str]) -> dict[tuple[str | None, str], _Answered]:
    """Known requests by tenant and id; those from before ids had tenants answer any, under None."""
    if not request_ids:
        return {}
    condition, values = tx.is_any("request_id", request_ids)
    rows = tx.query(
        "SELECT request_id, tenant, first_global_seq, entries, digest, any_tenant FROM tape_append_requests"
        f" WHERE {condition}",
        values,
    )
    return {
        (None if any_tenant else tenant, request_id): _Answered(range(first, first + entries), bytes(digest))
        for request_id, tenant, first, entries, digest, any_tenant in rows
    }


def _digest(drafts: Sequence[Draft]) -> bytes:
    """What the content of a request is recognized by: never its time, trace or identity."""
    content = [(draft.subject, draft.run_id, draft.payload_json) for draft in drafts]
    return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()
