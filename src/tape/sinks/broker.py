"""A sink that publishes to a broker: the part that NatsSink, KafkaSink and PubSubSink share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tape.brokers.publisher import Publisher
from tape.errors import PublishFailed, PublishRejected, SinkHeldBack, SinkRejected, SinkUnavailable
from tape.model.message import BodyFormat, check_body_format, run_key_of, to_message

T = TypeVar("T")


class BrokerSink:
    """Publishes entries through a publisher, which runs on an event loop in a thread of its own."""

    def __init__(self, publisher: Publisher, topic_of: Callable[[Any], str], body: BodyFormat) -> None:
        self._body = check_body_format(body)
        self._publisher = publisher
        self._topic_of = topic_of
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tape-publisher", daemon=True)
        self._thread.start()

    def publish(self, entry: Any) -> None:
        """Return when the broker has stored the entry."""
        (error,) = self.publish_batch([entry])
        if error is not None:
            raise error

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """Publish entries, several runs at once and each run in order."""
        return self._run(self._publish(entries)) if entries else []

    def close(self) -> None:
        """Wait for entries in flight, then disconnect."""
        if self._loop.is_closed():
            return
        self._run(self._publisher.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _publish(self, entries: Sequence[Any]) -> list[Exception | None]:
        try:
            await self._publisher.connect()
        except PublishFailed as error:
            return [SinkUnavailable(str(error)), *(SinkHeldBack(entry, entries[0]) for entry in entries[1:])]
        outcomes: list[Exception | None] = [None] * len(entries)
        runs: dict[object, list[int]] = {}
        for index, entry in enumerate(entries):
            runs.setdefault(run_key_of(entry), []).append(index)

        async def publish_run(indexes: list[int]) -> None:
            run = [entries[index] for index in indexes]
            for index, outcome in zip(indexes, await self._publish_run(run), strict=True):
                outcomes[index] = outcome

        await asyncio.gather(*map(publish_run, runs.values()))
        try:
            await self._publisher.flush()
        except PublishFailed as error:
            return [outcome or SinkUnavailable(str(error)) for outcome in outcomes]
        return outcomes

    async def _publish_run(self, entries: list[Any]) -> list[Exception | None]:
        """Publish the entries of one run; those after the first failure are held back, or count as held back."""
        if self._publisher.keeps_order:
            started = [self._start(entry) for entry in entries]
            outcomes = [await self._outcome(each) for each in started]
        else:
            outcomes = []
            for entry in entries:
                outcomes.append(await self._outcome(self._start(entry)))
                if outcomes[-1] is not None:
                    break
        failed = next((index for index, outcome in enumerate(outcomes) if outcome is not None), None)
        if failed is None:
            return outcomes
        return outcomes[: failed + 1] + [SinkHeldBack(entry, entries[failed]) for entry in entries[failed + 1 :]]

    def _start(self, entry: Any) -> asyncio.Future[None]:
        return self._publisher.start(self._topic_of(entry), to_message(entry, self._body))

    async def _outcome(self, published: asyncio.Future[None]) -> Exception | None:
        try:
            await published
        except PublishRejected as error:
            return SinkRejected(str(error))
        except PublishFailed as error:
            return SinkUnavailable(str(error))
        return None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
