"""Entries as messages of NATS JetStream."""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from tape.errors import InvalidInput, MissingExtra, SinkHeldBack, SinkRejected, SinkUnavailable
from tape.sinks.sink import body_of, event_id_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class NatsSink:
    """Publishes with `Nats-Msg-Id: <run_id>/<seq>`, on which a stream deduplicates by itself, and the header `kind`.

    The subject is that of the entry with dots, `/tape/order/paid/42` as `tape.order.paid.42`, unless one is given. A
    stream must take it. With `jetstream=False` messages are sent to whoever listens, and nothing says that anybody
    did. Needs `pip install 'tape[nats]'`.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        subject: str = "",
        *,
        jetstream: bool = True,
        timeout_s: float = 5.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        if timeout_s <= 0:
            raise InvalidInput(f"timeout_s {timeout_s!r} must be more than 0.")
        try:
            self._nats = importlib.import_module("nats")
            self._errors = importlib.import_module("nats.js.errors")
        except ImportError as error:
            raise MissingExtra("NatsSink", "nats") from error
        self._servers = servers if isinstance(servers, str) else list(servers)
        self._subject = subject
        self._jetstream = jetstream
        self._timeout = timeout_s
        self._options = options or {}
        self._connection: Any = None
        self._stream: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tape-nats", daemon=True)
        self._thread.start()

    def publish(self, entry: Any) -> None:
        """Return when the stream has the entry."""
        (error,) = self.publish_batch([entry])
        if error is not None:
            raise error

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """Publish entries, several runs at once; an entry leaves when the one before it in its run has arrived."""
        return self._wait(self._publish(entries))

    def close(self) -> None:
        """Disconnect."""
        if self._loop.is_closed():
            return
        self._wait(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _publish(self, entries: Sequence[Any]) -> list[Exception | None]:
        try:
            await self._connect()
        except Exception as error:
            unreachable = SinkUnavailable(f"NATS at {self._servers} cannot be reached: {error}.")
            return [unreachable] + [SinkHeldBack(entry, entries[0]) for entry in entries[1:]]
        outcomes: list[Exception | None] = [None] * len(entries)
        runs: dict[str, list[int]] = {}
        for position, entry in enumerate(entries):
            runs.setdefault(entry.run_id, []).append(position)

        async def publish_run(positions: list[int]) -> None:
            for at, position in enumerate(positions):
                try:
                    await self._send(entries[position])
                except Exception as error:
                    outcomes[position] = self._outcome(error)
                    for behind in positions[at + 1 :]:
                        outcomes[behind] = SinkHeldBack(entries[behind], entries[position])
                    return

        if self._jetstream:
            await asyncio.gather(*map(publish_run, runs.values()))
        else:  # one connection keeps the order, and one flush says that the server has all
            await publish_run(list(range(len(entries))))
            await self._connection.flush(self._timeout)
        return outcomes

    async def _send(self, entry: Any) -> None:
        headers = {"Nats-Msg-Id": event_id_of(entry), "tape-event-id": event_id_of(entry), "kind": entry.kind}
        subject = self._subject or subject_of(entry)
        if self._jetstream:
            await self._stream.publish(subject, body_of(entry), timeout=self._timeout, headers=headers)
        else:
            await self._connection.publish(subject, body_of(entry), headers=headers)

    async def _connect(self) -> None:
        if self._connection is not None and not self._connection.is_closed:
            return
        # Whoever hands entries over tries again; a client that reconnects on its own would keep them waiting.
        options = {"connect_timeout": self._timeout, "allow_reconnect": False, "error_cb": _note} | self._options
        self._connection = await asyncio.wait_for(self._nats.connect(self._servers, **options), 2 * self._timeout)
        self._stream = self._connection.jetstream()

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _outcome(self, error: Exception) -> Exception:
        told = f"NATS at {self._servers}: {type(error).__name__}: {error}"
        if isinstance(error, self._errors.NoStreamResponseError):
            return SinkUnavailable(f"{told}. Is there a stream for the subject?")
        if isinstance(error, self._errors.BadRequestError) or type(error).__name__ in (
            "MaxPayloadError",
            "BadSubjectError",
        ):
            return SinkRejected(told)
        return SinkUnavailable(told)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _note(error: Exception) -> None:
    log.debug("NATS: %s", error)


def subject_of(entry: Any) -> str:
    """The subject of an entry as NATS spells it: segments become tokens, and a dot within one becomes %2E."""
    return ".".join(segment.replace(".", "%2E") for segment in entry.subject.strip("/").split("/"))
