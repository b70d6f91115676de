"""Google Cloud Pub/Sub: a pull subscription."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery, RedeliveryLimits, Source
from tape.errors import MissingExtra, SourceError, SourceMisconfigured, SourceMissing, SourceUnavailable

OPEN_S = 5.0
CALL_S = 30.0
# A message of a stream is redelivered after this time unless it is acknowledged.
LEASE_S = 60
KEEPALIVE_S = 30.0
# How long to wait for the service to end a stream.
CLOSE_TIMEOUT_S = 2.0
# The service rejects larger requests.
IDS_AT_ONCE = 1_000
MAX_DELAY_S = 600
# The minimum of a dead-letter policy, where the policy cannot be read.
MIN_ATTEMPTS = 5
_UNKNOWN_DELIVERIES_KEPT = 100_000


class PubSubSource(Source):
    """Reads `subscription`, `projects/<project>/subscriptions/<name>`.

    Each poll is a call that waits for messages; `streaming: true` keeps a stream open instead, on which messages arrive
    as they are published. `endpoint` (else PUBSUB_EMULATOR_HOST) is another address than Google's: with `http://` or
    without a scheme it is an emulator and no credentials are sent. Needs
    `pip install 'tape[pubsub]'`.
    """

    # The shortest acknowledgement deadline of a subscription is 10 s.
    renew_every_s = 3.0

    def __init__(self, settings: SourceSettings) -> None:
        try:
            self._service = importlib.import_module("google.pubsub_v1.services.subscriber")
            self._transport = importlib.import_module("google.pubsub_v1.services.subscriber.transports.grpc_asyncio")
            self._types = importlib.import_module("google.pubsub_v1.types")
            self._errors = importlib.import_module("google.api_core.exceptions")
        except ImportError as error:
            raise MissingExtra("subscriptions to Pub/Sub", "pubsub") from error
        self.subscription = settings.required("subscription", " (projects/<p>/subscriptions/<s>)")
        parts = self.subscription.split("/")
        if len(parts) != 4 or (parts[0], parts[2]) != ("projects", "subscriptions") or not (parts[1] and parts[3]):
            raise settings.wrong(f"requires 'subscription' (projects/<p>/subscriptions/<s>), not {self.subscription!r}")
        self._endpoint = settings.text("endpoint") or os.environ.get("PUBSUB_EMULATOR_HOST", "")
        self._token = settings.text("token")
        # A key file of Google has this `type`.
        is_key = settings.text("type") == "service_account"
        self._account = settings.everything() if is_key else settings.mapping("service_account")
        self._is_streaming = settings.flag("streaming")
        self._client: Any = None
        self._seen: Counter[str] = Counter()
        self._max_attempts = MIN_ATTEMPTS
        self._keeps_ms = 0
        self._arrived: deque[Any] = deque()
        self._news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_leaving = asyncio.Event()
        self._broke: Exception | None = None

    async def open(self) -> None:
        """Connect, and check that the subscription exists."""
        await self._disconnect()
        # Looking for credentials may use the network: not on the event loop.
        self._client = await asyncio.to_thread(self._connect) if self._needs_credentials else self._connect()
        # An identity may consume a subscription without the right to get it, so acknowledge an invalid receipt.
        try:
            with self._translate_errors(), contextlib.suppress(self._errors.InvalidArgument):
                await self._client.acknowledge(subscription=self.subscription, ack_ids=["none"], timeout=OPEN_S)
        except SourceError:
            await self._disconnect()
            raise
        await self._read_limits()

    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        if self._client is None:
            raise SourceUnavailable(f"Pub/Sub {self.subscription} is not connected.")
        if self._is_streaming:
            await self._from_stream(limit, wait_s)
        elif not self._arrived:
            await self._pull(limit, wait_s)
        return [self._delivery(self._arrived.popleft()) for _ in range(min(limit, len(self._arrived)))]

    async def ack(self, receipts: Sequence[str]) -> None:
        for some in _chunks(receipts):
            with self._translate_errors():
                await self._ready.acknowledge(subscription=self.subscription, ack_ids=some, timeout=CALL_S)

    async def renew(self, receipts: Sequence[str]) -> None:
        for some in _chunks(receipts):
            with self._translate_errors():
                await self._ready.modify_ack_deadline(
                    subscription=self.subscription, ack_ids=some, ack_deadline_seconds=LEASE_S, timeout=CALL_S
                )

    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        for some in _chunks(receipts):
            with self._translate_errors():
                await self._ready.modify_ack_deadline(
                    subscription=self.subscription,
                    ack_ids=some,
                    ack_deadline_seconds=min(int(delay_s), MAX_DELAY_S),
                    timeout=CALL_S,
                )

    async def release(self) -> None:
        """End the stream and return its messages."""
        await self._stop_reading()
        waiting = [each.ack_id for each in self._arrived]
        self._arrived.clear()
        await self.nack(waiting)

    async def close(self) -> None:
        with contextlib.suppress(SourceUnavailable, SourceMissing):
            await self.release()
        await self._disconnect()

    async def _read_limits(self) -> None:
        """Read the redelivery limits; without the right to get the subscription, the defaults are used."""
        self._max_attempts, self._keeps_ms = MIN_ATTEMPTS, 0
        with contextlib.suppress(self._errors.GoogleAPICallError, self._errors.RetryError):
            found = await self._client.get_subscription(subscription=self.subscription, timeout=OPEN_S, retry=None)
            self._max_attempts = found.dead_letter_policy.max_delivery_attempts or MIN_ATTEMPTS
            self._keeps_ms = int(found.message_retention_duration.total_seconds() * 1_000)

    # ── one call a poll ──────────────────────────────────────────────────────────────────────────

    async def _pull(self, limit: int, wait_s: float) -> None:
        with self._translate_errors(), contextlib.suppress(self._errors.DeadlineExceeded, TimeoutError):
            answer = await self._client.pull(
                subscription=self.subscription, max_messages=limit, timeout=max(wait_s, 0.05), retry=None
            )
            self._arrived.extend(answer.received_messages)

    # ── a stream ─────────────────────────────────────────────────────────────────────────────────

    async def _from_stream(self, limit: int, wait_s: float) -> None:
        if self._reading is None:
            self._broke = None
            self._is_leaving.clear()
            self._reading = asyncio.create_task(self._read(limit), name="tape-pubsub-stream")
        self._news.clear()
        if not self._arrived and self._broke is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        if not self._arrived and self._broke is not None:
            self._reading, broke = None, self._broke
            with self._translate_errors():
                raise broke

    async def _read(self, limit: int) -> None:
        request = self._types.StreamingPullRequest(
            subscription=self.subscription,
            stream_ack_deadline_seconds=LEASE_S,
            max_outstanding_messages=limit,
            client_id=uuid.uuid4().hex,
        )

        async def requests() -> AsyncIterator[Any]:
            yield request
            # The service ends a stream whose sender has ended; an empty request keeps it open.
            while not self._is_leaving.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_leaving.wait(), KEEPALIVE_S)
                    return
                yield self._types.StreamingPullRequest()

        stream: Any = None
        try:
            stream = await self._client.streaming_pull(requests=requests(), timeout=None)
            async for answer in stream:
                self._arrived.extend(answer.received_messages)
                self._news.set()
            raise self._errors.ServiceUnavailable("the stream ended")
        except Exception as error:
            self._broke = error
            self._news.set()
        finally:
            if stream is not None:
                stream.cancel()  # otherwise the service continues to send

    async def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            self._is_leaving.set()
            await asyncio.wait([reading], timeout=CLOSE_TIMEOUT_S)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    # ── both ─────────────────────────────────────────────────────────────────────────────────────

    def _delivery(self, received: Any) -> Delivery:
        message = received.message
        attributes = dict(message.attributes)
        attempt = int(received.delivery_attempt) or None
        # The service counts attempts only with a dead-letter topic; otherwise this process counts.
        self._seen[message.message_id] += 1
        if len(self._seen) > _UNKNOWN_DELIVERIES_KEPT:
            self._seen.clear()
        published = message.publish_time
        return Delivery(
            message_id=message.message_id,
            body=bytes(message.data),
            receipt=received.ack_id,
            headers=tuple(attributes.items()),
            metadata={
                "messageId": message.message_id,
                "publishTime": published.isoformat() if published else None,
                "deliveryAttempt": attempt,
                "ackId": received.ack_id,
            },
            ordering_key=message.ordering_key,
            deliveries=attempt or self._seen[message.message_id],
            redelivery=RedeliveryLimits(
                # With a dead-letter topic attempts are counted, and there is a last one.
                max(self._max_attempts - attempt, 0) if attempt else None,
                int(published.timestamp() * 1_000) + self._keeps_ms if published and self._keeps_ms else None,
            ),
        )

    @property
    def _needs_credentials(self) -> bool:
        return not self._endpoint or self._endpoint.startswith("https://")

    @property
    def _ready(self) -> Any:
        if self._client is None:
            raise SourceUnavailable(f"Pub/Sub {self.subscription} is not connected.")
        return self._client

    def _connect(self) -> Any:
        options: dict[str, Any] = {}
        if self._endpoint:
            options["host"] = self._endpoint.partition("://")[2] or self._endpoint
        if not self._needs_credentials:
            grpc = importlib.import_module("grpc.aio")
            options = {"channel": grpc.insecure_channel(options["host"].rstrip("/"))}
        elif self._token:
            options["credentials"] = importlib.import_module("google.oauth2.credentials").Credentials(self._token)
        elif self._account:
            accounts = importlib.import_module("google.oauth2.service_account")
            try:
                options["credentials"] = accounts.Credentials.from_service_account_info(self._account)
            except ValueError as error:
                raise SourceMisconfigured(
                    f"subscription[pubsub]: 'service_account' is not a key file: {error}."
                ) from error
        transport = self._transport.SubscriberGrpcAsyncIOTransport(**options)
        return self._service.SubscriberAsyncClient(transport=transport)

    async def _disconnect(self) -> None:
        await self._stop_reading()
        self._arrived.clear()
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # nothing depends on an orderly close
                await client.transport.close()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of the client into errors of sources."""
        errors = self._errors
        try:
            yield
        except errors.NotFound as error:
            raise SourceMissing(f"subscription[pubsub]: {self.subscription} not found: {error.message}.") from error
        except (errors.PermissionDenied, errors.Unauthenticated) as error:
            raise SourceUnavailable(f"Pub/Sub denies access to {self.subscription}: {error.message}.") from error
        except (errors.GoogleAPICallError, errors.RetryError) as error:
            raise SourceUnavailable(f"Pub/Sub {self.subscription}: {error}.") from error


def _chunks(receipts: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(receipts), IDS_AT_ONCE):
        yield list(receipts[start : start + IDS_AT_ONCE])
