"""Continuity: whether the database still has what this process knows of the journal.

A process remembers the last entry that it has committed or read, and compares it with the database on every new
connection of its writer, before the first write. A database that lost entries (a replica that was behind took over, a
backup was put in place) is cut: the process closes the cut in that transaction and begins a new epoch, so that no
number is given out twice. Another process may have closed the cut already: then its epoch is adopted. A database with
another journal is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from tape.base.telemetry.metrics import Metrics
from tape.errors import StoreDamaged, StoreError, StoreReplaced, StoreUnavailable
from tape.journal.appender import Head, RunKey, read_head
from tape.journal.epochs import DEFAULT_MARGIN, Epoch, close_cut, read_epochs
from tape.model.entry import Entry
from tape.store import Database, Reader, Transaction

log = logging.getLogger(__name__)

# Entries that a process remembers, to find the last one that it has in common with the database, and the runs of those
# that are lost. About 10 MB.
MAX_REMEMBERED = 32_768
CAUSE = "the database lost entries under a running server"

_REPLACED = (
    "The database was replaced under this server: it has {found}, the server knows the journal {known}. Nothing is"
    " written to it. Restart the server if the database is the right one."
)

# same: the database has the last known entry. adopted: another process has closed the cut. cut: the database ends
# before the last known entry. diverged: it has another entry of that number, and no epoch says so. replaced: it has
# another journal.
Verdict = Literal["same", "adopted", "cut", "diverged", "replaced"]


class Known(msgspec.Struct, frozen=True):
    """The last entry that a process knows, and the journal and epoch that it belongs to."""

    journal_id: str
    epoch: int
    global_seq: int
    chain: bytes


class Divergence(msgspec.Struct, frozen=True):
    """Entries that a process knows and the database no longer has: those after `common`, up to `last_known`."""

    common: int
    last_known: int
    resumes_at: int


class _Found(msgspec.Struct, frozen=True):
    """What a check has found, until its transaction is durable."""

    known: Known
    divergence: Divergence | None


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of an entry. Of one that was there when the process began, the run is not known."""

    global_seq: int
    chain: bytes
    run: RunKey | None = None
    seq: int = 0


def judge(known: Known, head: Head, epochs: Iterable[Epoch], chain: bytes | None) -> Verdict:
    """Compare what is known with a database: its head, its epochs and its chain value at the last known number."""
    if head.journal_id != known.journal_id:
        return "replaced"
    if known.global_seq <= head.global_seq:
        is_pruned = chain is None and known.global_seq < head.oldest
        if is_pruned or chain == known.chain:
            return "same" if head.epoch == known.epoch else "adopted"
        if any(_explains(each, known) for each in epochs):
            return "adopted"
        return "diverged"
    return "cut"


def find_common(head: Head, memory: Sequence[Remembered], chain_at: Callable[[int], bytes | None]) -> int:
    """The last entry of the database that is remembered as it is there. `memory` is in order.

    Entries after the first difference all differ. Between two remembered entries the earlier one is taken, unless the
    database ends there.
    """

    def differs(entry: Remembered) -> bool:
        return entry.global_seq >= head.oldest and chain_at(entry.global_seq) != entry.chain

    first = bisect_right(memory, False, key=differs)
    if first == len(memory) or head.global_seq < memory[first].global_seq:
        return head.global_seq
    return memory[first - 1].global_seq if first else memory[0].global_seq - 1


class Continuity:
    """What this process knows of the journal. `begin()` it before the first connection of the writer is used."""

    def __init__(self, database: Database, metrics: Metrics, margin: int = DEFAULT_MARGIN) -> None:
        self._database = database
        self._metrics = metrics
        self._margin = margin
        self._lock = threading.Lock()
        self._known: Known | None = None
        self._memory: deque[Remembered] = deque(maxlen=MAX_REMEMBERED)
        self._found: _Found | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_divergence: Callable[[Divergence], None] = lambda divergence: None
        self.on_suspicion: Callable[[], None] = lambda: None

    async def begin(self) -> Head:
        """Remember the end of the journal, and check every connection from now on."""
        self._loop = asyncio.get_running_loop()
        head, tail = await self._database.read(_read_end)
        with self._lock:
            self._memory.extend(tail)
            self._known = Known(head.journal_id, head.epoch, head.global_seq, head.chain)
        self._metrics.epoch.set(head.epoch)
        hooks = self._database.hooks
        hooks.writer_connected.append(self._check_writer)
        hooks.committed.append(self._commit)
        hooks.reader_connected.append(self._check_reader)
        return head

    def end(self) -> None:
        """Check no further connections."""
        hooks = self._database.hooks
        if self._check_writer in hooks.writer_connected:
            hooks.writer_connected.remove(self._check_writer)
            hooks.committed.remove(self._commit)
            hooks.reader_connected.remove(self._check_reader)

    @property
    def epoch(self) -> int:
        """The epoch of the journal, as far as this process knows."""
        return self._known.epoch if self._known is not None else 1

    def observe(self, entries: Sequence[Entry]) -> None:
        """Remember entries that were committed or read."""
        if not entries:
            return
        with self._lock:
            self._memory.extend(
                [
                    Remembered(entry.global_seq, entry.chain, (entry.run_id, entry.tenant), entry.seq)
                    for entry in entries
                ]
            )
            known, last = self._known, entries[-1]
            if known is not None and last.global_seq > known.global_seq:
                self._known = Known(known.journal_id, known.epoch, last.global_seq, last.chain)

    def is_continued(self, reader: Reader, position: int, chain: bytes | None) -> bool:
        """Whether the database that a reader sees still has what was read up to a position."""
        known, head = self._known, read_head(reader)
        if known is None:
            return True
        if (head.journal_id, head.epoch) != (known.journal_id, known.epoch) or head.global_seq < position:
            return False
        found = head.chain if head.global_seq == position else _chain_at(reader, position)
        return chain is None or found is None or found == chain

    # ── on the threads of the database ───────────────────────────────────────────────────────────

    def _check_reader(self, reader: Reader) -> None:
        """Refuse a connection to a database that lacks what is known, until the writer has made its check."""
        known = self._known
        assert known is not None
        head = _checked_head(reader, known)
        is_same = head.global_seq > known.global_seq or (head.global_seq, head.chain) == (known.global_seq, known.chain)
        if head.epoch != known.epoch or not is_same:
            self._call(self.on_suspicion)
        if head.epoch < known.epoch or not is_same:
            raise StoreUnavailable(
                f"The database ends with entry {head.global_seq} of epoch {head.epoch}, this server knows"
                f" {known.global_seq} of epoch {known.epoch}: it compares the two before it reads on. Try again."
            )

    def _check_writer(self, tx: Transaction) -> None:
        """Compare what is known with the database, and close a cut, before anything else is written."""
        self._found = None
        known = self._known
        assert known is not None
        head = _checked_head(tx, known)
        epochs = read_epochs(tx) if head.epoch > 1 else []
        verdict = judge(known, head, epochs, _chain_at(tx, known.global_seq))
        if verdict == "same":
            return
        with self._lock:
            memory = sorted(self._memory, key=lambda entry: entry.global_seq)
        common = find_common(head, memory, lambda global_seq: _chain_at(tx, global_seq))
        lost = [entry for entry in memory if entry.global_seq > common]
        run_seqs: dict[RunKey, int] = {}
        for entry in lost:
            if entry.run is not None:
                run_seqs[entry.run] = max(run_seqs.get(entry.run, 0), entry.seq)
        last_known, resumes_at = known.global_seq, head.global_seq + 1
        now = Known(head.journal_id, head.epoch, head.global_seq, head.chain)
        opening: Entry | None = None
        if verdict != "adopted":
            opening = self._close(tx, known, common, self._margin, run_seqs)
        else:
            resumes_at = next((each.resumes_at for each in epochs if _explains(each, known)), resumes_at)
            if _has_lower_seq(tx, run_seqs):  # the process that closed the cut knew less about these runs
                opening = self._close(tx, known, common, 0, run_seqs)
        if opening is not None:
            now = Known(head.journal_id, read_head(tx).epoch, opening.global_seq, opening.chain)
            resumes_at = opening.global_seq if verdict != "adopted" else resumes_at
        is_affected = last_known > common
        self._found = _Found(now, Divergence(common, last_known, resumes_at) if is_affected else None)
        if is_affected:
            log.error(
                "the database lost entries (%s): it has %d in epoch %d, this server knows %d in epoch %d; the last"
                " common entry is %d, %d runs are affected, numbers go on at %d in epoch %d",
                verdict,
                head.global_seq,
                head.epoch,
                last_known,
                known.epoch,
                common,
                len(run_seqs),
                resumes_at,
                now.epoch,
            )

    def _close(self, tx: Transaction, known: Known, common: int, margin: int, run_seqs: Mapping[RunKey, int]) -> Entry:
        return close_cut(
            tx,
            last_known=known.global_seq,
            margin=margin,
            cause=CAUSE,
            run_seqs=run_seqs,
            last_epoch=known.epoch,
            common=common,
        )

    def _commit(self, announcements: list[Any]) -> None:
        """Remember what a transaction has made durable, and what its check has found."""
        found, self._found = self._found, None
        if found is not None:
            with self._lock:
                if (divergence := found.divergence) is not None:
                    kept = [entry for entry in self._memory if entry.global_seq <= divergence.common]
                    self._memory = deque(kept, MAX_REMEMBERED)
                self._memory.append(Remembered(found.known.global_seq, found.known.chain))
                self._known = found.known
            self._metrics.epoch.set(found.known.epoch)
            if announcements:
                self._metrics.cuts_closed.inc()
            if divergence is not None:
                self._call(self.on_divergence, divergence)
        self.observe(announcements)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


def _explains(epoch: Epoch, known: Known) -> bool:
    """Whether a newer epoch names the last known entry as lost."""
    return epoch.epoch > known.epoch and epoch.cut_after < known.global_seq < epoch.resumes_at


def _has_lower_seq(tx: Transaction, run_seqs: Mapping[RunKey, int]) -> bool:
    """Whether a run would go on with a seq that was given out before."""
    rows = tx.lookup("tape_run_heads", "run_id, tenant, seq", ("run_id", "tenant"), list(run_seqs))
    present = {(run_id, tenant): seq for run_id, tenant, seq in rows}
    return any(present.get(run, 0) < seq for run, seq in run_seqs.items())


def _checked_head(reader: Reader | Transaction, known: Known) -> Head:
    """The head, if the database has the known journal."""
    try:
        head = read_head(reader)
    except (StoreError, AssertionError) as error:
        if isinstance(error, StoreError) and type(error) is not StoreError:
            raise
        raise StoreReplaced(_REPLACED.format(found="no journal", known=known.journal_id)) from error
    if head.journal_id != known.journal_id:
        raise StoreReplaced(_REPLACED.format(found=f"the journal {head.journal_id}", known=known.journal_id))
    return head


def _chain_at(reader: Reader | Transaction, global_seq: int) -> bytes | None:
    row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", global_seq)
    return None if row is None else row[0]


def _read_end(reader: Reader) -> tuple[Head, list[Remembered]]:
    """The head and some of the newest entries: the last, the one before, and so on in doubling steps."""
    head = read_head(reader)
    numbers = [head.global_seq]
    while (earlier := head.global_seq - (1 << len(numbers) - 1)) >= head.oldest:
        numbers.append(earlier)
    found = [(number, _readable_chain_at(reader, number)) for number in reversed(numbers)]
    return head, [Remembered(number, chain) for number, chain in found if chain is not None]


def _readable_chain_at(reader: Reader, global_seq: int) -> bytes | None:
    """The chain value of an entry; None if it cannot be read: a damaged entry does not keep a server from starting."""
    try:
        return _chain_at(reader, global_seq)
    except StoreDamaged:
        return None
