"""Dead letters and quarantined items of the spools that this server reaches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.engine.catalog import fetch
from tape.errors import DamagedSpoolItem, InvalidDocument, NotFound, TapeError
from tape.journal.journal import Journal
from tape.model import subject
from tape.model.principal import current_principal
from tape.model.tenant_names import display, qualify
from tape.server.dead_letters.dead_letter import DeadLetter, DeadLetterQuery, Page, Unreachable, cut
from tape.store import Database, Reader
from tape.subscriptions import lifecycle
from tape.subscriptions.dispatch.assembly import rules_of
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import SubscriptionEvent, subscription_ref
from tape.subscriptions.secrets import reveal_within
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.credential_renewal import fields_of
from tape.subscriptions.spool.item import decode, sequence_of
from tape.subscriptions.spool.locations import open_backend, spool_hosts
from tape.subscriptions.spool.spool import Spool

# Items that are read at once: each is an object of its own.
MAX_READS = 250

Reveal = Callable[..., Awaitable[Any]]


class SpoolOrigin:
    """The dead letters of spools, or what is quarantined there: by subscription, oldest first."""

    def __init__(self, journal: Journal, reveal: Reveal, area: Area) -> None:
        self.name = "spool" if area is Area.DEAD else "quarantine"
        self._journal = journal
        self._database: Database = journal.database
        self._reveal = reveal
        self._area = area

    async def page(self, query: DeadLetterQuery, after: str, limit: int) -> Page:
        """The next items: of one subscription per page. The cursor is `<path>|<key>`."""
        if query.reaction_id:
            return Page((), None)
        path, _, key = after.rpartition("|")
        limit = min(limit, MAX_READS)
        reachable = [each for each in await self._subscriptions(query) if _unreachable(each) is None]
        for each in sorted(reachable, key=lambda each: each.path):
            if each.path < path:
                continue
            start = key if each.path == path else ""
            try:
                async with self._open(each) as spool:
                    stored = await spool.backend.page(self._area, start, limit)
                    data = await spool.backend.get_many(self._area, [one.key for one in stored])
            except TapeError:
                continue  # named among the unreachable ones
            if not stored:
                continue
            found = [
                each_one
                for one, content in zip(stored, data, strict=True)
                if content is not None and (each_one := self._dead_letter(each, one.key, content)) is not None
            ]
            last = stored[-1].key if len(stored) == limit else "~"  # after every key: the next subscription
            return Page([one for one in found if query.matches(one)], f"{each.path}|{last}")
        return Page((), None)

    async def find(self, key: str) -> DeadLetter:
        """One item. Raises NotFound."""
        subscription, name = await self._locate(key)
        async with self._open(subscription) as spool:
            content = await spool.backend.get(self._area, name)
        found = None if content is None else self._dead_letter(subscription, name, content)
        if found is None:
            raise self._not_found(key)
        return found

    async def redrive(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Move items back to their position in the spool, with 0 attempts."""
        return await self._each(keys, self._requeue)

    async def drop(self, keys: Sequence[str], reason: str) -> Mapping[str, str]:
        """Remove items for good."""

        async def remove(spool: Spool, name: str) -> str:
            await spool.backend.delete(self._area, [name])
            return ""

        return await self._each(keys, remove)

    async def unreachable(self, query: DeadLetterQuery) -> Sequence[Unreachable]:
        """Spools on the disk or in the memory of other processes, and those that do not answer."""
        if query.reaction_id:
            return ()
        found = []
        for each in await self._subscriptions(query):
            reason = _unreachable(each)
            if reason is None:
                try:
                    async with self._open(each) as spool:
                        await spool.backend.page(self._area, "", 1)
                except TapeError as error:
                    reason = str(error)
            if reason is not None:
                found.append(Unreachable(self.name, display(each.path), reason))
        return found

    # ── one item ─────────────────────────────────────────────────────────────────────────────────

    async def _each(self, keys: Sequence[str], work: Callable[[Spool, str], Awaitable[str]]) -> dict[str, str]:
        failures: dict[str, str] = {}
        for key in keys:
            try:
                subscription, name = await self._locate(key)
                async with self._open(subscription) as spool:
                    content = await spool.backend.get(self._area, name)
                    if content is None or self._dead_letter(subscription, name, content) is None:
                        raise self._not_found(key)
                    if reason := await work(spool, name):
                        failures[key] = reason
            except TapeError as error:
                failures[key] = str(error)
        return failures

    async def _requeue(self, spool: Spool, name: str) -> str:
        if self._area is Area.DEAD:
            await spool.requeue([name])
            return ""
        content = await spool.backend.get(self._area, name)
        try:
            item = decode(name, content or b"")
        except DamagedSpoolItem as error:
            return f"Impossible: {error} It can only be dropped."
        # It was mended: it goes through the dead letters, as any other.
        await spool.backend.put(Area.DEAD, [(name, item.encode())])
        await spool.requeue([name])
        await spool.backend.delete(self._area, [name])
        return ""

    def _dead_letter(self, subscription: Subscription, key: str, content: bytes) -> DeadLetter | None:
        """The dead letter of an object; None if it is of another subscription that shares the location."""
        dead_letter_id = f"{self.name}/{display(subscription.path)}/{key}"
        try:
            item = decode(key, content)
        except DamagedSpoolItem as error:
            return DeadLetter(
                id=dead_letter_id,
                origin=self.name,
                dead_at_ms=0,
                reason=cut(error),
                subscription=display(subscription.path),
                size_bytes=len(content),
                can_redrive=False,
                redrive="Impossible: it is damaged. It can only be dropped.",
                payload=content.decode(errors="replace").replace("\0", "\ufffd"),
            )
        if item.subscription != subscription.path:
            return None
        return DeadLetter(
            id=dead_letter_id,
            origin=self.name,
            dead_at_ms=item.spooled_at_ms,
            reason=cut(item.reason),
            subscription=display(subscription.path),
            message_id=item.message_id,
            ordering_key=item.ordering_key or "",
            attempts=item.attempts,
            size_bytes=len(content),
            redrive="The message goes back to its position in the spool, with 0 attempts, and is replayed within 30 s.",
            payload=msgspec.json.encode(item.message).decode(),
        )

    async def _locate(self, key: str) -> tuple[Subscription, str]:
        path, _, name = key.rpartition("/")
        if not path or sequence_of(name) is None:
            raise self._not_found(key)
        for each in await self._subscriptions(DeadLetterQuery(subscription=qualify(path))):
            if (reason := _unreachable(each)) is not None:
                raise NotFound(f"{self.name}/{key[:200]} cannot be reached: {reason}")
            return each, name
        raise self._not_found(key)

    def _not_found(self, key: str) -> NotFound:
        return NotFound(f"There is no dead letter {self.name}/{key[:200]}; see `tape dead-letters list`.")

    # ── spools ───────────────────────────────────────────────────────────────────────────────────

    async def _subscriptions(self, query: DeadLetterQuery) -> list[Subscription]:
        return await self._database.read(lambda reader: _with_spool(reader, query.subscription))

    @asynccontextmanager
    async def _open(self, subscription: Subscription) -> AsyncIterator[Spool]:
        spec = subscription.spec.spool
        credential = None
        if spec.credential:
            reveal = reveal_within(subscription.path, self._reveal)
            credential = await reveal(spec.credential, spool_hosts(spec))
        fields = fields_of(spec.credential, credential) if credential is not None else None
        backend = open_backend(spec, subscription.path, fields)
        ref = subscription_ref(subscription.path)
        try:
            yield Spool(ref, subscription.spec.source, backend, rules_of(subscription), emit=self._emit, now_ms=now_ms)
        finally:
            await backend.close()

    async def _emit(self, events: Sequence[SubscriptionEvent]) -> None:
        await self._journal.append([event.draft() for event in events])


def _with_spool(reader: Reader, path: str) -> list[Subscription]:
    """The subscriptions with a spool that exist for the caller, and whose events are granted: one of a path, or all."""
    found: dict[str, Subscription] = {}
    grants = current_principal().read_grants
    for registration in lifecycle.list_registrations(reader, path=path):
        if grants is not None and not grants.matches(_subject(registration.path)):
            continue
        if registration.path in found or (resource := fetch(reader, registration.path)) is None:
            continue
        try:
            subscription = parse_subscription(resource.content, registration.path)
        except InvalidDocument:
            continue  # registered by an older version
        if subscription.spec.spool.mode != "off":
            found[registration.path] = subscription
    return list(found.values())


def _subject(path: str) -> str:
    return subject.build("subscription", "message.dead_lettered", path.rpartition("/")[2])


def _unreachable(subscription: Subscription) -> str | None:
    """Where a spool is, if this server cannot look at it."""
    spec = subscription.spec
    if spec.spool.backend == "memory":
        return "Its spool is in the memory of the process that runs it."
    is_here = spec.mode == "push" or spec.activation == "scheduled" or spec.runtime.target == "local"
    if spec.spool.backend == "local_disk" and not is_here:
        return (
            f"Its spool is in the folder {spec.spool.path!r} of the machine that runs it:"
            " `tape spool ls FILE --part dead` reads it there."
        )
    return None
