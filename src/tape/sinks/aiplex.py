"""Entries in batches to an AIPlex ingestion endpoint."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from tape.errors import InvalidInput, TapeError
from tape.sinks.http import HttpTarget
from tape.sinks.sink import Body, event_id_of


class AIPlexSink:
    """POSTs entries together with the identity of the agent that caused them.

    A body is `{"tenant_id", "agent_id", "plane", "actor", "subject", "aiplex_instance_id", "events": […]}`, each event
    as a webhook gets it, with its id as `event_id`. Entries wait until there are `batch_size` of them, until
    `flush_interval_s` has passed, or until `flush()`, which the relay calls before it moves its cursor.
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
        """Put an entry into the batch. An error of a flush in the background is raised here, and the batch is kept."""
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
        """Return when the target has every entry. If it raises, the entries are kept."""
        with self._lock:
            self._cancel_timer()
            while self._waiting:
                batch = self._waiting[: self._batch_size]
                events = [{"event_id": event_id_of(each), **_fields(each)} for each in batch]
                self._target.post(msgspec.json.encode({**self._identity, "events": events}), {})
                del self._waiting[: len(batch)]

    def discard(self) -> None:
        """Forget what waits: the relay hands the same entries over again."""
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


def _fields(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Body.__struct_fields__}
