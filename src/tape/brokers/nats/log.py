"""A JetStream stream as a log: one part, whose offsets are the sequences of the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec

from tape.brokers.log import Extent, Log, Placed, there_from
from tape.brokers.nats.connection import (
    addresses_of,
    connect,
    disconnect,
    header_pairs,
    import_nats,
    login_options,
    new_client,
)
from tape.brokers.settings import Settings
from tape.brokers.source import Delivery
from tape.errors import SourceMisconfigured, SourceMissing, SourceReplaced, SourceUnavailable

T = TypeVar("T")

NANOSECONDS = 1_000_000_000
AT_ONCE = 500
ANSWER_S = 10.0
# A consumer that nobody asks any more is removed by the server after this.
FORGOTTEN_S = 60
_NOTHING_MORE = ("404", "408")


class NatsLog(Log):
    """Reads `stream` by sequence, through a consumer of its own that acknowledges nothing and leaves no trace.

    `subject` filters; `consumer` names a durable one that was at work before, and whose place is where to begin. A
    stream that removes what was acknowledged cannot be read this way. Needs `pip install 'tape[nats]'`.
    """

    def __init__(self, settings: Settings) -> None:
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

    def extents(self) -> dict[str, Extent]:
        """The stream's first and last sequence. Its name in offsets has its age: one made anew is another part."""
        part, there = self._run(self._look())
        return {part: there}

    def standing(self) -> dict[str, int]:
        """What the durable consumer has acknowledged without a gap."""
        if not self._durable:
            return {}
        part, _ = self._run(self._look())
        info = self._run(self._ask(f"CONSUMER.INFO.{self.stream}.{self._durable}", f"consumer {self._durable!r}"))
        return {part: info["ack_floor"]["stream_seq"] + 1}

    def read(self, part: str, begin: int, end: int, *, fail_on_loss: bool = True) -> Iterator[list[Placed]]:
        """Messages by sequence. Those that were deleted, or that the filter leaves out, are passed over."""
        begin = self._check(part, begin, end, fail_on_loss)
        while begin < end:
            reading = _Reading(self._connection)
            try:
                self._run(reading.open(self._make_consumer(begin)))
                while begin < end and not reading.is_torn:
                    placed = [_placed(message) for message in self._run(reading.more())]
                    after = reading.following(placed, begin, end)
                    if after - begin != len(placed):
                        self._check(part, begin, end, fail_on_loss)  # deleted one by one, or passed by retention?
                    begin = after
                    yield [each for each in placed if each.offset < end]
            finally:
                with contextlib.suppress(SourceUnavailable):
                    self._run(reading.close())

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._loop.run(disconnect(connection))
        self._loop.close()

    def _check(self, part: str, begin: int, end: int, fail_on_loss: bool) -> int:
        found, there = self._run(self._look())
        if found != part:
            raise SourceReplaced(f"{self._where}: stream {self.stream!r} is {found!r} now; {part!r} was read.")
        return there_from(part, begin, end, there, self._where, fail_on_loss=fail_on_loss)

    async def _look(self) -> tuple[str, Extent]:
        info = await self._ask(f"STREAM.INFO.{self.stream}", f"stream {self.stream!r}")
        retention, state = info["config"].get("retention", "limits"), info["state"]
        if retention != "limits":
            raise SourceMisconfigured(
                f"{self._where}: stream {self.stream!r} has the retention {retention!r}, by which what is"
                " acknowledged is removed; reading by sequence acknowledges nothing. Use a stream with 'limits', or"
                " another runtime.target."
            )
        return f"{self.stream}@{info['created']}", Extent(max(state["first_seq"], 1), state["last_seq"] + 1)

    def _make_consumer(self, begin: int) -> Callable[[], Awaitable[str]]:
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": begin,
            "ack_policy": "none",
            "inactive_threshold": FORGOTTEN_S * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
            **({"filter_subject": self._filter} if self._filter else {}),
        }
        body = msgspec.json.encode({"stream_name": self.stream, "config": config})

        async def make() -> str:
            made = await self._ask(f"CONSUMER.CREATE.{self.stream}", f"a consumer on {self.stream!r}", body)
            return f"{self.stream}.{made['name']}"

        return make

    async def _ask(self, what: str, told: str, body: bytes = b"") -> dict[str, Any]:
        await self._connect()
        answer = await self._connection.request(f"$JS.API.{what}", body, timeout=ANSWER_S)
        said: dict[str, Any] = msgspec.json.decode(answer.data)
        if (error := said.get("error")) is not None:
            text = f"{self._where}: {told}: {error.get('description', 'refused')}."
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


class _Reading:
    """One consumer, asked for what is there and no more."""

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
        """The next messages; none when there are no more, or when one was lost on its way."""
        request = msgspec.json.encode({"batch": AT_ONCE, "no_wait": True})
        await self._connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self._consumer}", request, reply=self._inbox)
        found: list[Any] = []
        while len(found) < AT_ONCE:
            message = await asyncio.wait_for(self._arrived.get(), ANSWER_S)
            if not message.reply:
                status = (message.headers or {}).get("Status", "")
                if status not in _NOTHING_MORE:
                    raise OSError(f"the pull was ended: {status} {(message.headers or {}).get('Description', '')}")
                break
            number = message.metadata.sequence.consumer
            if number != self._last + 1:
                self.is_torn = True
                break
            self._last = number
            found.append(message)
        return found

    def following(self, placed: list[Placed], begin: int, end: int) -> int:
        """The sequence to go on with: behind the last message, where it was torn, or at the end if there are none."""
        if placed:
            return placed[-1].offset + 1
        return begin if self.is_torn else end

    async def close(self) -> None:
        if self._subscription is not None and self._connection.is_connected:
            await self._subscription.unsubscribe()
            if self._consumer:
                stream, _, name = self._consumer.rpartition(".")
                await self._connection.request(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", b"", timeout=ANSWER_S)


def _placed(message: Any) -> Placed:
    sequence = message.metadata.sequence.stream
    metadata = {"subject": message.subject, "stream_seq": sequence}
    return Placed(sequence, Delivery(str(sequence), message.data, message.reply, header_pairs(message), metadata))
