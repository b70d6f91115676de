"""The scrubber: walks the whole journal and its archive at a bounded rate, and records damage before a reader meets it.

One server of a database runs it at a time, under a lease. It verifies the chain, compares the indexes, writes missing
checksums of entries that are proven, and replaces a checksum that alone is damaged. It goes on where it ended when the
server stopped, and begins again after an interval.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

import msgspec

from tape.base.clock import now_ms
from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.errors import ArchiveUnreachable, ServerStopping, StoreBusy, StoreFull, StoreUnavailable, TapeError
from tape.journal.appender import read_head
from tape.journal.archive_scrub import ScrubbedArchive, check_seam, scrub_archive
from tape.journal.damage import clear_damage, record_damage
from tape.journal.epochs import read_epochs
from tape.journal.findings import Finding
from tape.journal.history import Archive
from tape.journal.scrub import ScrubbedWindow, ScrubPosition, scrub_window
from tape.model.gap import JournalGap
from tape.store import Database, Reader, Transaction
from tape.store.lease import Lease, LeaseTable

log = logging.getLogger(__name__)

MAX_ENTRIES = 500
BYTES_PER_S = 4 << 20
# Checksums in one transaction, so that the writer is held for a few milliseconds.
CHECKSUMS_AT_ONCE = 100
LEASE_MS = 60_000
SAVE_S = 20.0
LEAST_PAUSE_S = 1.0
# Seconds that a window waits while operations wait to be written.
BUSY_S = 2.0
BUSY_POLL_S = 0.05
# Seconds after the start of a server: it has other things to do first.
FIRST_S = 30.0
START = ScrubPosition(0, b"")
_LEASES = LeaseTable("tape_scrub", "lease_owner", "lease_until_ms")
_UNAVAILABLE = (StoreUnavailable, StoreBusy, StoreFull, ArchiveUnreachable)


class ScrubState(msgspec.Struct, frozen=True):
    """The row of `tape_scrub`."""

    global_seq: int
    chain: bytes
    archive_seq: int
    archive_chain: bytes
    rounds: int
    finished_ms: int
    lease_owner: str
    lease_until_ms: int


def read_state(reader: Reader | Transaction) -> ScrubState:
    """The positions of the scrubber and its lease."""
    row = reader.one(f"SELECT {', '.join(ScrubState.__struct_fields__)} FROM tape_scrub WHERE id = 1")
    assert row is not None, "the migration puts the row there"
    return ScrubState(*row)


class LeaseLost(Exception):
    """Another server has the lease."""


class Scrubber:
    """Scrubs one database's journal, and the archive if there is one. `run` is a background task."""

    def __init__(
        self,
        database: Database,
        owner: str,
        *,
        entries_per_s: float,
        interval_h: float,
        archive: Archive | None = None,
        first_s: float = FIRST_S,
    ) -> None:
        self._database = database
        self._metrics = database.metrics
        self._owner = owner
        self._rate = entries_per_s
        self._interval_ms = int(interval_h * 3_600_000)
        self._archive = archive
        self._first_s = first_s
        self._position = self._archive_position = START
        self._finished_ms = 0
        self._saved_at = -math.inf
        self._metrics.scrub_round_age.set_function(self._round_age_s)

    async def run(self) -> None:
        """Scrub until cancelled; pauses while the store or the archive is unavailable."""
        if not self._rate:
            return
        await asyncio.sleep(self._first_s)
        backoff = Backoff(WHILE_UNAVAILABLE)
        while True:
            try:
                if await self._lease():
                    await self._scrub_rounds(backoff)
                await asyncio.sleep(SAVE_S)
            except LeaseLost:
                continue
            except ServerStopping:
                return
            except _UNAVAILABLE as error:
                log.info("the scrubber pauses: %s", error)
                await backoff.wait_async()

    async def close(self) -> None:
        """Save the position and release the lease."""
        try:
            if self._saved_at > -math.inf:
                await self._database.write(self._save_and_release)
        except (TapeError, LeaseLost) as error:
            log.info("the lease of the scrubber is not released, it will expire: %s", error)

    async def _scrub_rounds(self, backoff: Backoff) -> None:
        """Scrub round after round, as long as this server has the lease."""
        while True:
            while now_ms() < self._finished_ms + self._interval_ms:
                await asyncio.sleep(SAVE_S)
                await self._save()
            await self._scrub_journal()
            await self._scrub_archive()
            backoff.reset()
            self._finished_ms = now_ms()
            self._position = self._archive_position = START
            await self._database.write(self._finish)
            self._metrics.scrub_rounds.inc()
            await asyncio.sleep(LEAST_PAUSE_S)

    async def _scrub_journal(self) -> None:
        while True:
            started = time.monotonic()
            window = await self._database.read(
                lambda reader: scrub_window(reader, self._position, self._window_entries)
            )
            if window is None:
                return
            await self._apply(window)
            self._position = window.end
            self._metrics.scrubbed.set(window.end.global_seq)
            await self._pace(started, window.entries, window.bytes)
            if window.is_last:
                return

    async def _scrub_archive(self) -> None:
        archive = self._archive
        if archive is None:
            return
        epochs = await self._database.read(read_epochs)
        while True:
            started = time.monotonic()
            window = await asyncio.to_thread(
                scrub_archive, archive, self._archive_position, epochs, self._window_entries
            )
            if window is None:
                return
            await self._report_archive(window)
            self._archive_position = window.end
            await self._pace(started, window.entries, window.bytes)
            if window.is_last:
                return

    async def _apply(self, window: ScrubbedWindow) -> None:
        """Write what a window was found to need; nothing, as a rule."""
        gaps = [*window.gaps, *window.unindexed]
        if gaps or window.healed:
            new = await self._database.write(lambda tx: _record(tx, gaps, window.healed))
            for gap in gaps[:10] if new else ():
                log.error("entries %d to %d of the journal are damaged: %s", gap.first, gap.last, gap.detail)
            self._metrics.scrub_damaged.labels("journal").inc(sum(gap.last - gap.first + 1 for gap in window.gaps))
            self._metrics.scrub_damaged.labels("index").inc(sum(gap.last - gap.first + 1 for gap in window.unindexed))
        for outcome, rows in (("filled", window.missing_checksums), ("repaired", window.wrong_checksums)):
            for start in range(0, len(rows), CHECKSUMS_AT_ONCE):
                await self._wait_while_busy()
                some = rows[start : start + CHECKSUMS_AT_ONCE]
                await self._database.write(_updating_checksums(some))
                self._metrics.scrub_checksums.labels(outcome).inc(len(some))

    async def _report_archive(self, window: ScrubbedArchive) -> None:
        findings = list(window.findings)
        if window.is_last:
            seam: Finding | None = await self._database.read(lambda reader: check_seam(reader, window.end))
            findings += [seam] if seam else []
        if not findings:
            return
        gaps = [
            JournalGap(found.global_seq, found.last, "damaged", f"archive: {found.problem}: {found.detail}")
            for found in findings
        ]
        for gap in gaps[:10]:
            log.error("entries %d to %d of the archive are damaged: %s", gap.first, gap.last, gap.detail)
        self._metrics.scrub_damaged.labels("archive").inc(sum(gap.last - gap.first + 1 for gap in gaps))
        # What the journal still has is not lost; `tape verify --archive --repair` rebuilds the files from it.
        oldest = (await self._database.read(read_head)).oldest
        if lost := [gap for gap in gaps if gap.first < oldest]:
            await self._database.write(lambda tx: record_damage(tx, *lost))

    @property
    def _window_entries(self) -> int:
        return max(min(MAX_ENTRIES, int(self._rate)), 1)

    async def _pace(self, started: float, entries: int, size: int) -> None:
        """Wait until the rate allows the next window, and until nothing waits to be written."""
        due = started + max(entries / self._rate, size / BYTES_PER_S)
        await asyncio.sleep(max(due - time.monotonic(), 0))
        await self._wait_while_busy()
        if time.monotonic() - self._saved_at >= SAVE_S:
            await self._save()

    async def _wait_while_busy(self) -> None:
        for _ in range(int(BUSY_S / BUSY_POLL_S)):
            if not self._database.is_busy:
                return
            await asyncio.sleep(BUSY_POLL_S)

    # ── the row in the database ──────────────────────────────────────────────────────────────────

    async def _lease(self) -> bool:
        """Take the lease and the position; False while another server has the lease."""
        state = await self._database.read(read_state)
        self._finished_ms = state.finished_ms
        if not Lease(state.lease_owner, state.lease_until_ms).is_open_to(self._owner, now_ms(), LEASE_MS):
            self._metrics.scrubbed.set(state.global_seq)
            return False
        try:
            state = await self._database.write(self._take)
        except LeaseLost:
            return False
        self._position = ScrubPosition(state.global_seq, bytes(state.chain))
        self._archive_position = ScrubPosition(state.archive_seq, bytes(state.archive_chain))
        self._finished_ms = state.finished_ms
        self._saved_at = time.monotonic()
        return True

    async def _save(self) -> None:
        await self._database.write(self._write_positions)
        self._saved_at = time.monotonic()

    def _take(self, tx: Transaction) -> ScrubState:
        state = read_state(tx)
        now = now_ms()
        if not Lease(state.lease_owner, state.lease_until_ms).is_open_to(self._owner, now, LEASE_MS):
            raise LeaseLost
        _LEASES.grant(tx, Lease(self._owner, now + LEASE_MS), "id = 1")
        return state

    def _write_positions(self, tx: Transaction) -> None:
        self._take(tx)
        tx.execute(
            "UPDATE tape_scrub SET global_seq = ?, chain = ?, archive_seq = ?, archive_chain = ? WHERE id = 1",
            self._position.global_seq,
            self._position.chain,
            self._archive_position.global_seq,
            self._archive_position.chain,
        )

    def _finish(self, tx: Transaction) -> None:
        self._write_positions(tx)
        tx.execute("UPDATE tape_scrub SET rounds = rounds + 1, finished_ms = ? WHERE id = 1", self._finished_ms)

    def _save_and_release(self, tx: Transaction) -> None:
        self._write_positions(tx)
        _LEASES.release(tx, self._owner)

    def _round_age_s(self) -> float:
        return (now_ms() - self._finished_ms) / 1_000 if self._finished_ms else math.nan


def _record(tx: Transaction, gaps: Sequence[JournalGap], healed: Sequence[tuple[int, int]]) -> int:
    for first, last in healed:
        clear_damage(tx, first, last)
    return record_damage(tx, *gaps) if gaps else 0


def _updating_checksums(rows: Sequence[tuple[int, int]]) -> Callable[[Transaction], None]:
    return lambda tx: tx.update("tape_journal", ["global_seq"], ["global_seq", "checksum"], rows)
