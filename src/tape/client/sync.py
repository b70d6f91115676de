"""The client for ordinary code: the asyncio client on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from tape.client.aio import AsyncTapeClient
from tape.client.channel import DEFAULT_URL
from tape.journal.entry import Draft, Entry
from tape.proto import tape_pb2 as pb

T = TypeVar("T")


class TapeClient:
    """A connection to one server, safe to share between threads. Use with `with`, or call `close()`."""

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tape-client", daemon=True)
        self._thread.start()
        self._client: AsyncTapeClient = self._wait(self._connect())

    def __enter__(self) -> TapeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let appends that are on their way arrive, then disconnect."""
        if self._loop.is_closed():
            return
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ── the journal ──────────────────────────────────────────────────────────────────────────────

    def append(self, subject: str, payload: Any = None, **fields: Any) -> int:
        """Append one event; its `global_seq` once it is durable. Threads share messages and commits."""
        return self._wait(self._client.append(subject, payload, **fields))

    def append_many(self, drafts: Sequence[Draft]) -> list[int]:
        """Append drafts, all or none, next to each other in the order; their `global_seq`s."""
        return self._wait(self._client.append_many(drafts))

    def head(self) -> pb.JournalHead:
        """Both ends of the journal."""
        return self._wait(self._client.head())

    def follow(self, subject_pattern: str = "", **options: Any) -> Iterator[Entry]:
        """Every matching entry after a cursor, then live, without end; see `AsyncTapeClient.follow`."""
        return self._iterate(self._client.follow(subject_pattern, **options))

    def subscribe_by_subject(self, **request: Any) -> Iterator[pb.EventEntry]:
        """Matching entries one by one, as the RPC sends them."""
        return self._iterate(self._client.subscribe_by_subject(**request))

    def subscribe_events(self, **request: Any) -> Iterator[pb.EventEntry]:
        """Entries one by one, from a time or a global_seq, as the RPC sends them."""
        return self._iterate(self._client.subscribe_events(**request))

    def subscribe_run(self, **request: Any) -> Iterator[pb.JournalEntry]:
        """One run's entries from a seq on, as the RPC sends them."""
        return self._iterate(self._client.subscribe_run(**request))

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    def write_value(self, **request: Any) -> pb.ValueRecord:
        """Write a value; see `AsyncTapeClient.write_value`."""
        return self._wait(self._client.write_value(**request))

    def get_value(self, *, namespace: str, key: str) -> pb.GetValueResponse:
        """The value as it stands, and whether it is there."""
        return self._wait(self._client.get_value(namespace=namespace, key=key))

    def delete_value(self, *, namespace: str, key: str) -> pb.DeleteValueResponse:
        """Delete a value."""
        return self._wait(self._client.delete_value(namespace=namespace, key=key))

    def watch_value(self, **request: Any) -> Iterator[pb.ValueEvent]:
        """Every version above `from_version`, in order, then each new one."""
        return self._iterate(self._client.watch_value(**request))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> AsyncTapeClient:
        return AsyncTapeClient(self.url)  # a channel belongs to the loop it is made on

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _iterate(self, stream: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T:
            return await anext(stream)

        async def leave() -> None:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

        try:
            while True:
                try:
                    yield self._wait(following())
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_closed():
                self._wait(leave())
