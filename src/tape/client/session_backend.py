"""The server backend: mirrors a session of this process to the journal of a server."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import secrets
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.client.append_batcher import is_rejection
from tape.errors import InvalidInput, MirrorBehind, TapeError
from tape.model import subject as subjects
from tape.session.lines import parse, to_line
from tape.session.mirror import MAX_ERRORS, BackendError, BackendHealth

if TYPE_CHECKING:
    from tape.client import TapeClient
    from tape.client.gap import Gap

MAX_BATCH = 512
# The backend retries by itself, and must notice when it is closed.
APPEND_TIMEOUT_S = 1.0
RETRY = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.1, max_interval_s=5.0, jitter=0.25)


class ServerBackend:
    """Mirrors a tape to a Tape server in the background, many entries a message, in order.

    Each entry becomes `/tape/session/<kind>/<session>` in the run `run_id`, its payload the whole entry. A `run_id`
    that already has entries is continued. While the server is unavailable entries wait, up to `max_pending`; `close()`,
    and the end of the process, wait up to `close_timeout_s` for them and report what did not arrive.
    """

    # A tape does not read what it has evicted from here: entries arrive later, and reading waits for the network.
    is_remote = True

    def __init__(
        self,
        url: str = "tape://localhost:7878",
        *,
        run_id: str = "",
        session: str = "",
        user: str = "",
        tenant: str = "",
        max_pending: int = 100_000,
        close_timeout_s: float = 10.0,
    ) -> None:
        if max_pending < 1:
            raise InvalidInput(f"max_pending {max_pending!r} must be at least 1.")
        self.url = url
        self.run_id = run_id or session or f"session-{secrets.token_hex(16)}"
        self.session = session or self.run_id
        self.errors: deque[BackendError] = deque(maxlen=MAX_ERRORS)
        self.refused: list[dict[str, Any]] = []
        # Entries of the run that `read_since` skipped, because their payload is no entry of a tape.
        self.skipped = 0
        self._sender = secrets.token_hex(16)
        self._user = user
        self._tenant = tenant
        self._max_pending = max_pending
        self._close_timeout = close_timeout_s
        self._failures = 0
        self._head: int | None = None if run_id or session else 0  # else the server knows
        self._waiting: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._client: TapeClient | None = None
        self._connecting = threading.Lock()
        atexit.register(_close_at_exit, weakref.ref(self))

    @property
    def health(self) -> BackendHealth:
        """Failed attempts, waiting entries, and entries that the server rejected for good (see `refused`)."""
        return BackendHealth(self._failures, len(self._waiting), len(self.refused))

    # ── called by a tape ────────────────────────────────────────────────────────────────────────

    def append(self, entry: dict[str, Any]) -> None:
        """Queue an entry. It is durable on the server after `flush()`."""
        with self._changed:
            if len(self._waiting) >= self._max_pending:
                raise MirrorBehind(f"{len(self._waiting)} entries wait for {self.url}, as many as may (max_pending).")
            self._waiting.append(entry)
            if self._thread is None:
                self._is_closing = False
                self._thread = threading.Thread(target=self._send_all, name="tape-mirror", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """The entries that the server has, from a seq on."""
        client = self._connected()
        head = client.head().global_seq
        entries: list[dict[str, Any]] = []
        if head == 0:
            return entries
        stream = client.follow_batches(run_id=self.run_id, reconnect=False, skip_gaps=True, on_gap=self._skip)
        with contextlib.closing(stream) as batches:
            for batch in batches:
                entries += filter(None, map(self._parsed, batch.entries))
                if batch.position >= head:
                    break
        return [entry for entry in entries if entry.get("seq", -1) >= seq]

    def _skip(self, gap: Gap) -> None:
        self.skipped += gap.count
        _log().warning("run %s has no entries %d to %d: %s", self.run_id, gap.first, gap.last, gap.reason)

    def _parsed(self, event: Any) -> dict[str, Any] | None:
        """The entry of the tape in an entry of the journal; None if it has none, which is logged."""
        try:
            return parse(event.payload_json.encode())
        except ValueError as error:
            self.skipped += 1
            _log().warning("skipped the entry at global_seq %d of run %s: %s", event.global_seq, self.run_id, error)
            return None

    def head(self) -> int:
        """The seq after the newest entry that was queued."""
        with self._changed:
            if self._waiting:
                return int(self._waiting[-1]["seq"]) + 1
        if self._head is None:
            known = self.read_since(0)
            self._head = max((entry["seq"] for entry in known), default=-1) + 1
        return self._head

    def clear(self) -> None:
        """Continue in a new run. Nothing is removed from the journal."""
        self.flush()
        self.run_id = f"session-{secrets.token_hex(16)}"
        self._sender = secrets.token_hex(16)
        self._head = 0

    def flush(self) -> None:
        """Return when every entry is durable on the server; after `close_timeout_s` raise MirrorBehind."""
        deadline = time.monotonic() + self._close_timeout
        with self._changed:
            while self._waiting:
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    latest = f" ({self.errors[-1].error})" if self.errors else ""
                    raise MirrorBehind(f"{len(self._waiting)} entries have not reached {self.url}{latest}.")

    def close(self) -> None:
        """Flush and disconnect. An append connects again."""
        try:
            self.flush()
        finally:
            with self._changed:
                self._is_closing = True
                thread, self._thread = self._thread, None
                self._changed.notify_all()
            if thread is not None:
                thread.join()
            if self._client is not None:
                self._client.close()
                self._client = None

    # ── the thread that sends ────────────────────────────────────────────────────────────────────

    def _send_all(self) -> None:
        while batch := self._next_batch():
            backoff = Backoff(RETRY)
            while True:
                try:
                    self._send(batch)  # the same batch until it succeeds: its request id identifies it
                    break
                except Exception as error:
                    self._note(batch[0], error)
                with self._changed:
                    if self._changed.wait_for(lambda: self._is_closing, backoff.next_delay()):
                        return
            with self._changed:
                self._head = batch[-1]["seq"] + 1
                for _ in batch:
                    self._waiting.popleft()
                self._changed.notify_all()

    def _next_batch(self) -> list[dict[str, Any]]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            return [] if self._is_closing else list(itertools.islice(self._waiting, MAX_BATCH))

    def _send(self, batch: list[dict[str, Any]]) -> None:
        """Append a batch. Its request id says which entries it is, so that sending it again appends nothing twice."""
        client = self._connected()
        try:
            client.append_many(list(map(self._draft, batch)), request_id=self._request_id(batch), first_write_wins=True)
        except TapeError as error:
            if not is_rejection(error):
                raise
            if len(batch) == 1:  # rejected for good: the entries after it must not wait
                self.refused.append(batch[0])
                self._note(batch[0], error)
                return
            for entry in batch:
                self._send([entry])

    def _request_id(self, batch: list[dict[str, Any]]) -> str:
        return f"{self._sender}:{batch[0]['seq']}-{batch[-1]['seq']}"

    def _draft(self, entry: dict[str, Any]) -> Any:
        from tape.model.entry import Draft

        kind = str(entry.get("kind", ""))
        try:
            subject = subjects.build("session", kind, self.session)
        except TapeError:  # a kind that is no word of a subject; the payload has it as it is
            subject = subjects.build("session", "recorded", self.session, kind)
        payload = to_line(entry)[:-1].decode("ascii")
        return Draft(
            subject=subject,
            payload_json=payload,
            run_id=self.run_id,
            tenant=self._tenant,
            user=self._user,
            session=self.session,
        )

    def _connected(self) -> TapeClient:
        with self._connecting:
            if self._client is None:
                from tape.client import TapeClient

                self._client = TapeClient(self.url, append_timeout_s=APPEND_TIMEOUT_S)
            return self._client

    def _note(self, entry: dict[str, Any], error: Exception) -> None:
        self._failures += 1
        first_of_its_kind = all(type(known.error) is not type(error) for known in self.errors)
        self.errors.append(BackendError("ServerBackend", entry.get("seq", -1), error))
        if first_of_its_kind:
            _log().error("%s. The session goes on; entries wait for the server.", self.errors[-1])


def _close_at_exit(reference: weakref.ref[ServerBackend]) -> None:
    backend = reference()
    if backend is not None and backend._thread is not None:
        try:
            backend.close()
        except TapeError as error:
            _log().error("The process ends, and %s", error)


def _log() -> Any:
    import logging

    return logging.getLogger("tape.session")
