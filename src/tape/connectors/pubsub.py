"""Effects as messages of Google Pub/Sub, and workers that are triggered by messages."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tape.base.clock import now_ms
from tape.base.owner import new_owner
from tape.base.retry import RetryPolicy
from tape.client.sync import TapeClient
from tape.connectors.base import CompensationResult, DispatchResult, ObservationResult, described
from tape.connectors.effect_dispatcher import DEFAULT_ATTEMPTS, EffectDispatcher
from tape.connectors.templates import content_of, fill_in
from tape.errors import MissingExtra, TapeError
from tape.proto import tape_pb2 as pb

try:
    from google.api_core import exceptions as google
    from google.cloud import pubsub_v1
except ImportError as missing:
    raise MissingExtra("Pub/Sub", "pubsub") from missing

log = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S = 30.0
# Pub/Sub has rejected the message: it is not stored.
_REFUSED = (google.InvalidArgument, google.NotFound, google.PermissionDenied, google.Unauthenticated)
# The longest ack deadline of Pub/Sub.
_LONGEST_PAUSE_S = 600


@dataclass
class PubSubConnector:
    """Publishes an effect's request; it is confirmed once Pub/Sub has the message, whose id is the `external_ref`.

    The attributes `idempotency_key`, `business_key`, `run_id`, `tool_name` and `connector` go with it: Pub/Sub may
    redeliver a message, and a consumer deduplicates on the key. `ordering_key_from` is a text with blanks
    such as `{account}`, or a function of the effect. A published message can neither be observed nor compensated.
    """

    name: str
    project: str
    topic: str
    ordering_key_from: Any = None
    publisher: Any = None

    def __post_init__(self) -> None:
        if self.publisher is None:
            options = pubsub_v1.types.PublisherOptions(enable_message_ordering=self.ordering_key_from is not None)
            self.publisher = pubsub_v1.PublisherClient(publisher_options=options)

    def dispatch(self, effect: Any) -> DispatchResult:
        """Publish the effect's request and wait until Pub/Sub has it."""
        topic = self.publisher.topic_path(self.project, self.topic)
        key = self._ordering_key(effect)
        names = ("run_id", "idempotency_key", "business_key", "tool_name", "connector")
        attributes = {name: getattr(effect, name) for name in names if getattr(effect, name)}
        try:
            published = self.publisher.publish(
                topic, (effect.request_json or "{}").encode(), ordering_key=key, **attributes
            )
            message_id = published.result(timeout=PUBLISH_TIMEOUT_S)
        except _REFUSED as error:
            self._resume_ordering_key(topic, key)
            return DispatchResult("failed", error=described(error))
        except Exception as error:
            self._resume_ordering_key(topic, key)
            return DispatchResult("unknown", error=described(error))
        return DispatchResult("confirmed", external_ref=message_id, response={"message_id": message_id})

    def observe(self, effect: Any) -> ObservationResult:
        """Pub/Sub cannot look up a message: `stuck`."""
        return ObservationResult("stuck", response={"error": {"message": "Pub/Sub cannot be asked for a message."}})

    def compensate(self, obligation: Any) -> CompensationResult:
        """A published message cannot be undone: `failed`."""
        return CompensationResult("failed", error={"message": "A message that was published cannot be taken back."})

    def _ordering_key(self, effect: Any) -> str:
        if self.ordering_key_from is None:
            return ""
        if callable(self.ordering_key_from):
            return str(self.ordering_key_from(effect))
        return fill_in(str(self.ordering_key_from), effect)

    def _resume_ordering_key(self, topic: str, key: str) -> None:
        """Resume the ordering key, which the client pauses after a failure; the outbox retries."""
        if key:
            self.publisher.resume_publish(topic, key)


@dataclass
class PubSubSubscriber:
    """Dispatches the outbox effects that messages name: an outbox dispatcher that is triggered by messages.

    A message names an effect by its attributes `run_id` and `idempotency_key`, or in its body, as the relay of
    `/tape/effect/pending/**` sends it. The effect is claimed, `handle(request, attributes)` is called, and its
    `DispatchResult` is recorded; an exception means `unknown`. A message is acknowledged when its effect is settled,
    and redelivered when the effect is due again. `counts` has the number of messages by outcome.
    """

    project: str
    subscription: str
    tape_url: str
    handle: Callable[[dict[str, Any], dict[str, Any]], DispatchResult]
    claimer: str = ""
    lease_ttl_ms: int = 60000
    backoff_base_ms: int = 1000
    backoff_max_ms: int = 60000
    lru_size: int = 4096
    subscriber: Any = None
    tape_client_factory: Any = None
    max_attempts: int = field(default=DEFAULT_ATTEMPTS, kw_only=True)

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._pull: Any = None
        self._dispatcher: EffectDispatcher | None = None

    def run(self, *, block: bool = True) -> None:
        """Receive messages until `stop()` is called; with `block=False` in the background."""
        subscriber = self.subscriber = self.subscriber or pubsub_v1.SubscriberClient()
        client = (self.tape_client_factory or TapeClient)(self.tape_url)
        backoff = RetryPolicy(
            initial_interval_s=self.backoff_base_ms / 1000, max_interval_s=self.backoff_max_ms / 1000, jitter=0.2
        )
        self._dispatcher = EffectDispatcher(
            client, self.claimer or new_owner(), self.max_attempts, self.lease_ttl_ms, backoff
        )
        path = subscriber.subscription_path(self.project, self.subscription)
        self._pull = subscriber.subscribe(path, callback=self._receive)
        if block:
            self._pull.result()

    def stop(self) -> None:
        """Receive no more messages; those in flight are finished first."""
        if self._pull is not None and self._dispatcher is not None:
            self._pull.cancel()
            self._pull.result()
            self._dispatcher.client.close()
            self._pull = None

    # ── one message ──────────────────────────────────────────────────────────────────────────────

    def _receive(self, message: Any) -> None:
        try:
            outcome, pause_ms = self._work(message)
        except TapeError as error:
            log.warning("message %s failed and will be redelivered: %s", message.message_id, error)
            outcome, pause_ms = "later", self.backoff_base_ms
        with self._lock:
            self.counts[outcome] += 1
        if pause_ms:
            # It is redelivered when this deadline expires; `drop` keeps the client from extending it.
            message.modify_ack_deadline(min(-(-pause_ms // 1000), _LONGEST_PAUSE_S))
            message.drop()
        else:
            message.ack()

    def _work(self, message: Any) -> tuple[str, int]:
        """The outcome of a message, and the delay in ms until its redelivery; 0 if it is settled."""
        assert self._dispatcher is not None
        body = content_of(message.data.decode(errors="replace"))
        run_id, key = _effect_named_by(dict(message.attributes), body)
        if not key:
            log.warning("message %s names no effect and is dropped: %r", message.message_id, body)
            return "dropped", 0
        with self._lock:
            if key in self._settled:
                return "repeated", 0
        found = self._dispatcher.client.get_effect(run_id=run_id, idempotency_key=key)
        if not found.found:
            log.warning("message %s names the effect %r, which is not there: dropped", message.message_id, key)
            return "dropped", 0
        effect = found.effect
        if effect.dispatch_mode != pb.EFFECT_DISPATCH_MODE_OUTBOX:
            return "inline", 0
        if effect.status != pb.EFFECT_STATUS_PENDING:
            return self._remember(key, "repeated")
        done = self._dispatcher.send(effect, _Handling(self.handle, dict(message.attributes)))
        if done["outcome"] in ("held", "lost"):
            return done["outcome"], self.backoff_base_ms
        if done["outcome"] == "retry":
            return "retry", max(done["next_dispatch_at_ms"] - now_ms(), 1)
        return self._remember(key, done["outcome"])

    def _remember(self, key: str, outcome: str) -> tuple[str, int]:
        with self._lock:
            self._settled[key] = None
            while len(self._settled) > self.lru_size:
                self._settled.popitem(last=False)
        return outcome, 0


@dataclass
class _Handling:
    """A handler as a connector without observation and compensation."""

    handle: Callable[[dict[str, Any], dict[str, Any]], DispatchResult]
    attributes: dict[str, Any]

    def dispatch(self, effect: Any) -> DispatchResult:
        request = content_of(effect.request_json)
        return self.handle(request if isinstance(request, dict) else {"body": request}, self.attributes)

    def observe(self, effect: Any) -> ObservationResult:
        return ObservationResult("stuck", response={"error": {"message": "a handler cannot observe an effect"}})

    def compensate(self, obligation: Any) -> CompensationResult:
        return CompensationResult("failed", error={"message": "a handler cannot compensate"})


def _effect_named_by(attributes: dict[str, str], body: Any) -> tuple[str, str]:
    """The run and the key of the effect that a message names; empty without one."""
    run_id, key = attributes.get("run_id", ""), attributes.get("idempotency_key", "")
    if key or not isinstance(body, dict):
        return run_id, key
    payload = body.get("payload_json") or body.get("payload") or body
    if isinstance(payload, str):
        payload = content_of(payload)
    carried = payload if isinstance(payload, dict) else {}
    return str(body.get("run_id") or carried.get("run_id", "")), str(carried.get("idempotency_key", ""))
