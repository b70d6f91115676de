"""Entries in batches to an AIPlex ingestion endpoint."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from tape.errors import InvalidInput, TapeError
from tape.model.message import event_id_of, fields_of
from tape.sinks.http import HttpTarget


class AIPlexSink:
    """POSTs entries together with the identity of the agent that caused them.

    A body is `{"tenant_id", "agent_id", "plane", "actor", "subject", "aiplex_instance_id", "events": […]}`, each event
    with the fields of a webhook's body and its id as `event_id`. A batch is sent when it has `batch_size` entries
    (100), after `flush_interval_s` (1 s), and by `flush()`, which the relay calls before it moves its cursor.
    """

    def __init__(
        self,
        *,
        url: str = "",
        token: str = "",
        tenant_id: str = "",
        agent_id: str = "",
        plane: str = "",
        actor: str = "",
        subject: str = "",
        aiplex_instance_id: str = "",
        batch_size: int = 100,
        flush_interval_s: float = 1.0,
        max_retries: int = 5,
        initial_backoff_s: float = 0.5,
        timeout_s: float = 10.0,
        allow_private: bool = False,
    ) -> None:
        if batch_size < 1 or flush_interval_s <= 0:
            raise InvalidInput(f"batch_size {batch_size!r} and flush_interval_s {flush_interval_s!r} must be positive.")
        self._identity = {
            "tenant_id": tenant_id,
            "agent_id": agent_id,
            "plane": plane,
            "actor": actor,
            "subject": subject,
            "aiplex_instance_id": aiplex_instance_id,
        }
        headers = {"Content-Type": "application/json", "User-Agent": "tape-aiplex"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._target = HttpTarget(
            url,
            headers=headers,
            max_retries=max_retries,
            initial_backoff_s=initial_backoff_s,
            timeout_s=timeout_s,
            allow_private=allow_private,
        )
        self._batch_size = batch_size
        self._interval = flush_interval_s
        self._waiting: list[Any] = []
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._error: TapeError | None = None

    def publish(self, entry: Any) -> None:
        """Add an entry to the batch. An error of a flush in the background is raised here, and the batch is kept."""
        with self._lock:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._waiting.append(entry)
            if len(self._waiting) >= self._batch_size:
                self.flush()
            elif self._timer is None:
                self._timer = threading.Timer(self._interval, self._flush_in_background)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Return when the target has accepted every entry. If it raises, the entries are kept."""
        with self._lock:
            self._cancel_timer()
            while self._waiting:
                batch = self._waiting[: self._batch_size]
                events = [{"event_id": event_id_of(each), **fields_of(each)} for each in batch]
                self._target.post(msgspec.json.encode({**self._identity, "events": events}), {})
                del self._waiting[: len(batch)]

    def discard(self) -> None:
        """Drop the entries that were not sent: the relay delivers them again."""
        with self._lock:
            self._cancel_timer()
            self._waiting.clear()
            self._error = None

    def close(self) -> None:
        """Flush and disconnect."""
        try:
            self.flush()
        finally:
            self._target.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_in_background(self) -> None:
        with self._lock:
            self._timer = None
            try:
                self.flush()
            except TapeError as error:
                self._error = error
