"""What serves calls without a listener: database, hub, matcher and the services behind the RPCs.

A server adds gRPC, HTTP and subscriptions; an embedded engine (`tape.embedded`) calls the methods in its own process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tape.archive import open_archive
from tape.base.clock import now_ms
from tape.base.config import Settings
from tape.base.telemetry.metrics import Metrics
from tape.base.url_mask import mask_urls
from tape.engine.executions.dedup import forget_claims
from tape.engine.fanout.hub import Hub
from tape.engine.ledgers.gate_times import GATES
from tape.engine.ledgers.timer_times import TIMERS
from tape.engine.predicate_budget import PredicateBudget
from tape.engine.reactions.matcher import Matcher
from tape.engine.reactions.retention import purge_tasks
from tape.engine.reactions.stranded_tasks import release_stranded
from tape.engine.reactions.task_broker import TaskBroker
from tape.engine.scheduler import Scheduler
from tape.engine.schedules.occurrences import SCHEDULES
from tape.engine.security.artifacts import Artifacts
from tape.engine.security.audit import Audit
from tape.engine.security.key_ring import KeyRing
from tape.engine.security.redaction import TenantRedactors
from tape.engine.security.revoked_tokens import delete_expired
from tape.engine.security.screening import DraftScreen
from tape.engine.security.service_keys import delete_ended
from tape.engine.security.tenant_aliases import TenantAliases
from tape.engine.security.wallet import Wallet, master_keys
from tape.errors import ArchiveDamaged, ArchiveUnreachable, TapeError
from tape.journal.appender import read_head
from tape.journal.epochs import close_cut
from tape.journal.journal import Journal, delete_expired_requests
from tape.proto import tape_pb2 as pb
from tape.server.access import Access
from tape.server.admission import Admission, TenantLimits
from tape.server.client_certificates import ClientCertificates
from tape.server.document_kinds import KINDS
from tape.server.grpc.access import RpcAccess
from tape.server.grpc.advance import AdvanceService
from tape.server.grpc.catalog import CatalogService
from tape.server.grpc.dead_letters import DeadLettersService
from tape.server.grpc.effects import EffectsService
from tape.server.grpc.forks import ForksService
from tape.server.grpc.gates import GatesService
from tape.server.grpc.info import InfoService
from tape.server.grpc.journal import JournalService
from tape.server.grpc.methods import Methods, UnaryCalls, bind_methods
from tape.server.grpc.reactions import ReactionsService
from tape.server.grpc.runs import RunsService
from tape.server.grpc.schedules import SchedulesService
from tape.server.grpc.sessions import SessionsService
from tape.server.grpc.tasks import TasksService
from tape.server.grpc.timers import TimersService
from tape.server.grpc.values import ValuesService
from tape.store import SqliteLimits, WriterLimits, open_database
from tape.store.tail import TailLoss, find_loss

if TYPE_CHECKING:
    from tape.engine.security.identity import Authenticator

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 600.0


class ServerCore:
    """The part of a process that serves calls; `methods` are the RPCs, however a call arrives."""

    def __init__(self, settings: Settings, owner: str, authenticator: Authenticator | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.database = open_database(
            settings.store,
            limits=WriterLimits(queue_operations=settings.queue_operations, queue_bytes=settings.queue_bytes),
            metrics=self.metrics,
            readers=settings.readers,
            sqlite_limits=SqliteLimits(settings.sqlite_wal_bytes, settings.sqlite_cache_bytes),
            witness=settings.witness,
            accept_loss=settings.accept_loss,
        )
        self.journal = Journal(self.database, settings.max_payload_bytes)
        self.archive = open_archive(settings.lake, dict(settings.lake_options)) if settings.lake else None
        budget = PredicateBudget(self.metrics, settings.predicate_cpu_ms_per_s)
        self.hub = Hub(self.database, archive=self.archive, predicate_budget=budget, epoch_margin=settings.epoch_margin)
        self.audit = Audit(self.journal)
        self.artifacts = Artifacts(settings.artifact_store, settings.artifact_threshold_bytes)
        redactors = TenantRedactors(settings.safe_type_names, settings.redaction, settings.redaction_key)
        self.journal.screen = DraftScreen(redactors, self.artifacts, self.audit, self.metrics)
        self.wallet = Wallet(self.database, master_keys(settings.wallet_key, settings.store))
        self.keys = KeyRing(self.database)
        self.aliases = TenantAliases(self.database)
        self.access = Access(
            authenticator,
            self.audit,
            self.keys,
            self.aliases,
            settings.internal_token,
            ClientCertificates(settings.tls_clients),
            requires_keys=settings.require_keys,
        )
        self.journal.shares_runs = self.access.is_open
        self.admission = Admission(
            TenantLimits(**{name: getattr(settings, name) for name in TenantLimits._fields}), self.metrics
        )
        self.task_broker = TaskBroker(self.database)
        self.matcher = Matcher(self.hub, self.task_broker, owner)
        self._journal_service = JournalService(self.journal, self.hub, self.admission)
        self._scheduler = Scheduler(self.database, (GATES, TIMERS, SCHEDULES))
        self._tasks: list[asyncio.Task[None]] = []

    def bind_methods(self, describe: Callable[[], pb.ServerInfo]) -> Methods:
        """The RPCs; `describe` says how this process can be called."""
        access = RpcAccess(self.access, self.admission)
        calls = UnaryCalls(self.settings.grpc_max_concurrent_calls)
        return bind_methods(self._services(describe), self.metrics, access, calls)

    def _services(self, describe: Callable[[], pb.ServerInfo]) -> Sequence[Any]:
        return (
            self._journal_service,
            ValuesService(self.journal, self.hub),
            RunsService(self.journal),
            ForksService(self.journal),
            GatesService(self.journal),
            TimersService(self.journal),
            SchedulesService(self.journal),
            EffectsService(self.journal),
            SessionsService(self.journal),
            ReactionsService(self.journal, self.hub.predicate_budget),
            TasksService(self.journal, self.task_broker),
            DeadLettersService(
                self.journal, self.task_broker, partial(self.wallet.use, to="a caller's look at dead letters")
            ),
            CatalogService(self.journal, KINDS),
            AdvanceService(self.journal),
            InfoService(self.journal, describe),
        )

    async def start(self) -> None:
        """Start what calls need, after the database was opened."""
        await self._close_cut()
        await self.keys.start()
        await self.aliases.start()
        await self.hub.start()
        await self.task_broker.start()
        if self.settings.match_reactions:
            await self.matcher.start()

    def start_tasks(self) -> None:
        """Start the background tasks: what fires by itself, and what keeps the store small."""
        supervise = self.metrics.background.supervise
        self._tasks.append(asyncio.create_task(supervise("housekeeping", self._run_housekeeping)))
        self._tasks.append(asyncio.create_task(supervise("store maintenance", self.database.maintain)))
        self._tasks.append(asyncio.create_task(supervise("scheduler", self._scheduler.run)))

    def end_append_streams(self) -> None:
        """Answer accepted appends, then end their streams."""
        self._journal_service.end_append_streams()

    async def end_streams(self) -> None:
        """Stop the matcher, and end the other streams with a status."""
        await self.matcher.close()
        await self.task_broker.close()
        await self.hub.close()

    async def stop_tasks(self) -> None:
        """Stop the background tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Finish commits and close the database, after `end_streams` and `stop_tasks`."""
        await self.keys.close()
        await self.aliases.close()
        await self.audit.close()
        self.wallet.close()
        await self.database.close()

    async def _close_cut(self) -> None:
        """Continue above the entries that the database lost, if the loss is accepted."""
        loss = await self._find_archived_loss() or self.database.witness.accepted
        if loss is None:
            if self.settings.accept_loss:
                log.warning("accept_loss is set and nothing was lost: remove it, or the next loss goes unnoticed")
            return
        # A file of one machine knows the last number; other servers of a PostgreSQL may have given out more.
        margin = 0 if self.database.dialect == "sqlite" else self.settings.epoch_margin
        known, epoch, cause = loss.known.global_seq, loss.known.epoch, f"accepted at the start: {loss}"
        note = await self.database.write(
            lambda tx: close_cut(tx, last_known=known, margin=margin, cause=cause, last_epoch=epoch)
        )
        self.metrics.tail_lost.inc(max(known - loss.head.global_seq, 0))
        log.warning("%s; the journal continues at entry %d", loss, note.global_seq)

    async def _find_archived_loss(self) -> TailLoss | None:
        """What the journal lost of the entries that the archive has. Raises TailLost unless the loss is accepted."""
        if self.archive is None:
            return None
        head = await self.database.read(read_head)
        try:
            tail = await asyncio.to_thread(self.archive.newer_tail, head)
        except (ArchiveDamaged, ArchiveUnreachable) as error:
            log.warning("the end of the journal is not compared with the archive: %s", error)
            return None
        accepted = self.database.witness.accepted
        if tail is None or (accepted is not None and accepted.known.global_seq >= tail.global_seq):
            return None
        loss = await self.database.read(lambda reader: find_loss(reader, tail))
        if loss is not None and not self.settings.accept_loss:
            raise loss.error(mask_urls(self.settings.store), f"the archive {mask_urls(self.settings.lake)}")
        return loss

    async def _run_housekeeping(self) -> None:
        while True:
            try:
                await delete_expired_requests(self.database)
                await self.wallet.delete_retired()
                await purge_tasks(self.database, self.settings.keep_tasks_h)
                await self.database.write(lambda tx: forget_claims(tx, now_ms()))
                await self.database.write(lambda tx: delete_ended(tx, now_ms()))
                await self.database.write(lambda tx: delete_expired(tx, now_ms()))
                await release_stranded(self.database)
                await self.hub.gaps.refresh()
            except TapeError as error:
                log.warning("housekeeping failed, retrying in %.0f s: %s", HOUSEKEEPING_S, error)
            await asyncio.sleep(HOUSEKEEPING_S)
