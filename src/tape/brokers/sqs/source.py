"""An Amazon SQS queue as a source: long polling, visibility renewed while a message is held."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery, RedeliveryLimits, Source
from tape.brokers.sqs.connection import SqsConnection
from tape.errors import SourceError, SourceMissing, SourceUnavailable

log = logging.getLogger(__name__)

# Limits of the service: messages of one call, seconds of a long poll, seconds of a visibility time-out.
AT_ONCE = 10
MAX_WAIT_S = 20
MAX_VISIBILITY_S = 43_200
VISIBILITY_SECS = 30
_PUT_BACK_KEPT = 10_000


class SqsSource(Source):
    """Reads `queue` in `region`, of the account of the credential or of `account`.

    A received message is invisible for `visibility_secs` (30), which is renewed until it is settled, up to the 12 hours
    that the service allows. A message group of a FIFO queue is the ordering key; `nack` returns its later messages too.
    Without `auth` the machine's own identity is used. Needs `pip install 'tape[sqs]'`.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._connection = SqsConnection(settings)
        self._visibility_s = settings.whole("visibility_secs", VISIBILITY_SECS, 1, MAX_VISIBILITY_S)
        self._arrived: deque[Delivery] = deque()
        # Received and not settled, in the order of receipt: receipt to message group.
        self._held: dict[str, str] = {}
        self._put_back: dict[str, None] = {}
        self._receiving: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._max_receives: int | None = None
        self._retention_ms = 0

    async def open(self) -> None:
        """Connect, and check that the queue exists."""
        await self._disconnect()
        try:
            await self._connection.open()
            await self._read_limits()
        except SourceError:
            await self._disconnect()
            raise
        self._renewing = asyncio.create_task(self._renew(), name="tape-sqs-visibility")

    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        if not self._connection.is_open:
            raise SourceUnavailable(f"{self._connection.where} is not connected.")
        if not self._arrived:
            # A long poll takes whole seconds; one that outlasts this call belongs to the next.
            if self._receiving is None:
                self._receiving = asyncio.create_task(self._receive(limit, wait_s), name="tape-sqs-receive")
            await asyncio.wait({self._receiving}, timeout=wait_s)
            if self._receiving.done():
                received, self._receiving = self._receiving, None
                received.result()
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    async def ack(self, receipts: Sequence[str]) -> None:
        failed = await self._in_batches("delete_message_batch", receipts)
        self._report(failed, [each for each in receipts if each not in self._held], "acknowledged")
        for receipt in receipts:
            self._held.pop(receipt, None)

    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        foreign = [each for each in receipts if each not in self._held]
        back = [*foreign, *self._with_later(receipts)]
        for receipt in back:
            self._held.pop(receipt, None)
            self._put_back[receipt] = None
        while len(self._put_back) > _PUT_BACK_KEPT:
            del self._put_back[next(iter(self._put_back))]
        waiting = set(back)
        self._arrived = deque(each for each in self._arrived if each.receipt not in waiting)
        delay = {"VisibilityTimeout": min(math.ceil(delay_s), MAX_VISIBILITY_S)}
        failed = await self._in_batches("change_message_visibility_batch", back, delay)
        self._report(failed, foreign, "returned")

    def will_redeliver(self, receipt: str) -> bool:
        """Whether it was returned, alone or with an earlier message of its group."""
        return receipt in self._put_back

    async def release(self) -> None:
        """Return messages that were not polled."""
        if self._receiving is not None:
            receiving, self._receiving = self._receiving, None
            with contextlib.suppress(SourceError):
                await receiving
        await self.nack([each.receipt for each in self._arrived])

    async def lag(self) -> int | None:
        """Visible messages, which the service counts approximately."""
        name = "ApproximateNumberOfMessages"
        found = await self._connection.call("get_queue_attributes", AttributeNames=[name])
        return int(found["Attributes"][name])

    async def close(self) -> None:
        with contextlib.suppress(SourceError):
            await self.release()
        await self._disconnect()

    async def _read_limits(self) -> None:
        """Read the redrive policy and the retention; without the right to read them they are not known."""
        names = ["RedrivePolicy", "MessageRetentionPeriod"]
        try:
            found = (await self._connection.call("get_queue_attributes", AttributeNames=names)).get("Attributes", {})
        except SourceUnavailable as error:
            log.warning("%s; how often messages are redelivered is not known", str(error).removesuffix("."))
            return
        policy = json.loads(found.get("RedrivePolicy") or "{}")
        self._max_receives = int(policy["maxReceiveCount"]) if "maxReceiveCount" in policy else None
        self._retention_ms = int(found.get("MessageRetentionPeriod", 0)) * 1_000

    async def _receive(self, limit: int, wait_s: float) -> None:
        wait = min(max(math.ceil(wait_s), 1), MAX_WAIT_S)
        while limit > 0:
            answer = await self._connection.call(
                "receive_message",
                MaxNumberOfMessages=min(limit, AT_ONCE),
                WaitTimeSeconds=wait,
                VisibilityTimeout=self._visibility_s,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            messages = answer.get("Messages", [])
            for message in messages:
                delivery = self._delivery(message)
                self._held[delivery.receipt] = delivery.ordering_key
                self._arrived.append(delivery)
            # A full batch: there may be more at once.
            limit, wait = limit - len(messages) if len(messages) == AT_ONCE else 0, 0

    async def _renew(self) -> None:
        """Renew the visibility of held messages, three times within its time-out."""
        visibility = {"VisibilityTimeout": self._visibility_s}
        while True:
            await asyncio.sleep(self._visibility_s / 3)
            try:
                failed = await self._in_batches("change_message_visibility_batch", list(self._held), visibility)
            except SourceError as error:
                log.warning("%s Held messages will be redelivered unless the renewal succeeds", error)
                continue
            for receipt, reason in failed.items():
                if self._held.pop(receipt, None) is not None:
                    log.warning("%s: a held message will be redelivered: %s", self._connection.where, reason)

    async def _in_batches(
        self, operation: str, receipts: Sequence[str], more: dict[str, Any] | None = None
    ) -> dict[str, str]:
        """Call a batch operation; the receipts that the service does not accept, and why."""
        failed: dict[str, str] = {}

        async def call(some: Sequence[str]) -> None:
            entries = [{"Id": str(i), "ReceiptHandle": each, **(more or {})} for i, each in enumerate(some)]
            answer = await self._connection.call(operation, Entries=entries)
            for problem in answer.get("Failed", ()):
                text = f"{problem.get('Code', '')} {problem.get('Message', '')}".strip()
                if not problem.get("SenderFault", True):
                    raise SourceUnavailable(f"{self._connection.where}: {text}.")
                failed[some[int(problem["Id"])]] = text

        await asyncio.gather(*(call(some) for some in _chunks(receipts)))
        return failed

    def _report(self, failed: dict[str, str], foreign: Iterable[str], what: str) -> None:
        """A message of this process whose time-out has passed is redelivered; an unknown receipt is an error."""
        for receipt in foreign:
            if receipt in failed:
                raise SourceMissing(
                    f"subscription[sqs]: {receipt[:40]!r} is not a receipt of queue {self._connection.queue!r}, or has"
                    f" expired: {failed[receipt]}."
                )
        for reason in failed.values():
            log.warning("%s: a message cannot be %s and is redelivered: %s", self._connection.where, what, reason)

    def _with_later(self, receipts: Sequence[str]) -> list[str]:
        """Held receipts of these, and of later messages of the same groups, which must not overtake them."""
        wanted, groups = set(receipts), set()
        found = []
        for receipt, group in self._held.items():
            if receipt in wanted or group in groups:
                found.append(receipt)
                if group:
                    groups.add(group)
        return found

    def _delivery(self, message: dict[str, Any]) -> Delivery:
        system, attributes = message.get("Attributes", {}), message.get("MessageAttributes", {})
        deliveries, sent = int(system.get("ApproximateReceiveCount", 1)), int(system.get("SentTimestamp", 0))
        return Delivery(
            message_id=message["MessageId"],
            body=message.get("Body", "").encode(),
            receipt=message["ReceiptHandle"],
            headers=tuple((name, _text(value)) for name, value in attributes.items()),
            metadata={"messageId": message["MessageId"], "attributes": dict(system)},
            ordering_key=system.get("MessageGroupId", ""),
            deliveries=deliveries,
            redelivery=RedeliveryLimits(
                None if self._max_receives is None else max(self._max_receives - deliveries, 0),
                sent + self._retention_ms if sent and self._retention_ms else None,
            ),
        )

    async def _disconnect(self) -> None:
        tasks = [task for task in (self._renewing, self._receiving) if task is not None]
        self._renewing = self._receiving = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._arrived.clear()
        self._held.clear()
        await self._connection.close()


def _text(value: dict[str, Any]) -> str:
    """A message attribute as text; bytes that are not UTF-8 are replaced."""
    if "BinaryValue" in value:
        return bytes(value["BinaryValue"]).decode(errors="replace")
    return str(value.get("StringValue", ""))


def _chunks(receipts: Sequence[str]) -> list[Sequence[str]]:
    return [receipts[start : start + AT_ONCE] for start in range(0, len(receipts), AT_ONCE)]
