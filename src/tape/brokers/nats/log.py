"""A JetStream stream as a log with one partition, whose offsets are the stream's sequences."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec

from tape.brokers.log import Log, LogRange, OffsetDelivery, first_offset
from tape.brokers.nats.connection import (
    addresses_of,
    connect,
    disconnect,
    header_pairs,
    import_nats,
    login_options,
    new_client,
)
from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery
from tape.errors import SourceMisconfigured, SourceMissing, SourceReplaced, SourceUnavailable

T = TypeVar("T")

NANOSECONDS = 1_000_000_000
BATCH = 500
REQUEST_TIMEOUT_S = 10.0
# The server removes an inactive consumer after this time.
INACTIVE_S = 60
_END_STATUSES = ("404", "408")


class NatsLog(Log):
    """Reads `stream` by sequence, through an ephemeral consumer without acknowledgements.

    `subject` filters; `consumer` names a durable consumer at whose position reading starts. A stream that removes
    acknowledged messages cannot be read this way. Needs `pip install 'tape[nats]'`.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._nats = import_nats("subscriptions to NATS")
        self.stream = settings.required("stream")
        self._durable = settings.text("consumer")
        self._filter = settings.text("subject")
        self._servers = settings.texts("url")
        if not self._servers:
            raise settings.wrong("requires 'url', or an 'auth' credential with a 'url'")
        self._login = login_options(settings)
        self._where = f"subscription[nats] at {addresses_of(self._servers)}"
        self._loop = asyncio.Runner()
        self._connection: Any = None

    def ranges(self) -> dict[str, LogRange]:
        """The stream's first and last sequence. The partition has the time of creation in its name."""
        partition, available = self._run(self._stream_info())
        return {partition: available}

    def committed_offsets(self) -> dict[str, int]:
        """The sequence up to which the durable consumer has acknowledged every message."""
        if not self._durable:
            return {}
        partition, _ = self._run(self._stream_info())
        info = self._run(self._request(f"CONSUMER.INFO.{self.stream}.{self._durable}", f"consumer {self._durable!r}"))
        return {partition: info["ack_floor"]["stream_seq"] + 1}

    def read(
        self, partition: str, begin: int, end: int, *, fail_on_loss: bool = True
    ) -> Iterator[list[OffsetDelivery]]:
        """Messages by sequence. Deleted and filtered ones are skipped."""
        begin = self._check(partition, begin, end, fail_on_loss)
        while begin < end:
            reading = _Pull(self._connection)
            try:
                self._run(reading.open(self._make_consumer(begin)))
                while begin < end and not reading.is_torn:
                    deliveries = [_offset_delivery(message) for message in self._run(reading.more())]
                    after = reading.following(deliveries, begin, end)
                    if after - begin != len(deliveries):
                        self._check(partition, begin, end, fail_on_loss)  # deleted one by one, or removed by retention?
                    begin = after
                    yield [each for each in deliveries if each.offset < end]
            finally:
                with contextlib.suppress(SourceUnavailable):
                    self._run(reading.close())

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._loop.run(disconnect(connection))
        self._loop.close()

    def _check(self, partition: str, begin: int, end: int, fail_on_loss: bool) -> int:
        found, available = self._run(self._stream_info())
        if found != partition:
            raise SourceReplaced(f"{self._where}: stream {self.stream!r} is {found!r} now; {partition!r} was read.")
        return first_offset(partition, begin, end, available, self._where, fail_on_loss=fail_on_loss)

    async def _stream_info(self) -> tuple[str, LogRange]:
        info = await self._request(f"STREAM.INFO.{self.stream}", f"stream {self.stream!r}")
        retention, state = info["config"].get("retention", "limits"), info["state"]
        if retention != "limits":
            raise SourceMisconfigured(
                f"{self._where}: stream {self.stream!r} has the retention {retention!r}, which removes"
                " acknowledged messages; reading by sequence acknowledges nothing. Use a stream with 'limits', or"
                " another runtime.target."
            )
        return f"{self.stream}@{info['created']}", LogRange(max(state["first_seq"], 1), state["last_seq"] + 1)

    def _make_consumer(self, begin: int) -> Callable[[], Awaitable[str]]:
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": begin,
            "ack_policy": "none",
            "inactive_threshold": INACTIVE_S * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
            **({"filter_subject": self._filter} if self._filter else {}),
        }
        body = msgspec.json.encode({"stream_name": self.stream, "config": config})

        async def make() -> str:
            made = await self._request(f"CONSUMER.CREATE.{self.stream}", f"a consumer on {self.stream!r}", body)
            return f"{self.stream}.{made['name']}"

        return make

    async def _request(self, what: str, target: str, body: bytes = b"") -> dict[str, Any]:
        await self._connect()
        answer = await self._connection.request(f"$JS.API.{what}", body, timeout=REQUEST_TIMEOUT_S)
        said: dict[str, Any] = msgspec.json.decode(answer.data)
        if (error := said.get("error")) is not None:
            text = f"{self._where}: {target}: {error.get('description', 'rejected')}."
            raise SourceMissing(text) if error.get("code") == 404 else SourceUnavailable(text)
        return said

    async def _connect(self) -> None:
        if self._connection is not None and self._connection.is_connected:
            return
        self._connection = new_client(self._nats)
        await connect(self._servers, self._connection, name="tape-subscription", **self._login)

    def _run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        try:
            return self._loop.run(awaited())
        except (self._nats.errors.Error, OSError, TimeoutError) as error:
            raise SourceUnavailable(f"{self._where}: {str(error) or type(error).__name__}.") from error


class _Pull:
    """One ephemeral consumer, which is asked for available messages only."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._consumer = ""
        self._inbox = connection.new_inbox()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._subscription: Any = None
        self._last = 0
        self.is_torn = False

    async def open(self, make: Callable[[], Awaitable[str]]) -> None:
        self._subscription = await self._connection.subscribe(
            self._inbox, cb=self._arrived.put, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._consumer = await make()

    async def more(self) -> list[Any]:
        """The next messages; none at the end of the stream, or when one was lost in transit."""
        request = msgspec.json.encode({"batch": BATCH, "no_wait": True})
        await self._connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self._consumer}", request, reply=self._inbox)
        found: list[Any] = []
        while len(found) < BATCH:
            message = await asyncio.wait_for(self._arrived.get(), REQUEST_TIMEOUT_S)
            if not message.reply:
                status = (message.headers or {}).get("Status", "")
                if status not in _END_STATUSES:
                    raise OSError(f"the pull was ended: {status} {(message.headers or {}).get('Description', '')}")
                break
            number = message.metadata.sequence.consumer
            if number != self._last + 1:
                self.is_torn = True
                break
            self._last = number
            found.append(message)
        return found

    def following(self, deliveries: list[OffsetDelivery], begin: int, end: int) -> int:
        """The next sequence: after the last message, where it was torn, or the end if there are none."""
        if deliveries:
            return deliveries[-1].offset + 1
        return begin if self.is_torn else end

    async def close(self) -> None:
        if self._subscription is not None and self._connection.is_connected:
            await self._subscription.unsubscribe()
            if self._consumer:
                stream, _, name = self._consumer.rpartition(".")
                await self._connection.request(
                    f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"", timeout=REQUEST_TIMEOUT_S
                )


def _offset_delivery(message: Any) -> OffsetDelivery:
    sequence = message.metadata.sequence.stream
    metadata = {"subject": message.subject, "stream_seq": sequence}
    return OffsetDelivery(
        sequence, Delivery(str(sequence), message.data, message.reply, header_pairs(message), metadata)
    )
