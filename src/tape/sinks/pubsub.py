"""Entries as messages on a Google Cloud Pub/Sub topic."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tape.errors import InvalidInput, MissingExtra, SinkHeldBack, SinkRejected, SinkUnavailable
from tape.sinks.sink import body_of, event_id_of

# What will not get better by trying again, by the names of google.api_core.exceptions.
_PERMANENT = ("BadRequest", "NotFound", "Forbidden", "Unauthorized", "InvalidArgument", "PermissionDenied")


class PubSubSink:
    """Publishes with `ordering_key = run_id` and the attributes `tape-event-id` (`<run_id>/<seq>`) and `kind`.

    Needs `pip install 'tape[pubsub]'`. Subscriptions need message ordering enabled to see a run in order.
    `PUBSUB_EMULATOR_HOST` is honoured, as everywhere with Google's client.
    """

    def __init__(self, project: str, topic: str, *, timeout_s: float = 60.0, publisher: Any = None) -> None:
        for name, value in (("project", project), ("topic", topic)):
            if not value or "/" in value:
                raise InvalidInput(f"{name} {value!r} must be the bare name, such as 'tape-events'.")
        try:
            pubsub = importlib.import_module("google.cloud.pubsub_v1")
            self._errors = importlib.import_module("google.api_core.exceptions")
        except ImportError as error:
            raise MissingExtra("PubSubSink", "pubsub") from error
        self._publisher = publisher or pubsub.PublisherClient(
            publisher_options=pubsub.types.PublisherOptions(enable_message_ordering=True)
        )
        self._topic = self._publisher.topic_path(project, topic)
        self._timeout = timeout_s

    def publish(self, entry: Any) -> None:
        """Return when the topic has the entry."""
        (error,) = self.publish_batch([entry])
        if error is not None:
            raise error

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """Publish entries together; Pub/Sub keeps those of a run in order."""
        sent: list[Any] = []
        for entry in entries:
            attributes = {"tape-event-id": event_id_of(entry), "kind": entry.kind}
            try:
                sent.append(
                    self._publisher.publish(self._topic, body_of(entry), ordering_key=entry.run_id, **attributes)
                )
            except Exception as error:  # a key that is paused after a failure, or a message that is too large
                sent.append(error)
        outcomes: list[Exception | None] = []
        failed: dict[str, Any] = {}
        for entry, message in zip(entries, sent, strict=True):
            outcome = self._outcome(message)
            if outcome is not None:
                if entry.run_id in failed:
                    outcome = SinkHeldBack(entry, failed[entry.run_id])
                else:
                    failed[entry.run_id] = entry
            outcomes.append(outcome)
        for run_id in failed:
            self._publisher.resume_publish(self._topic, run_id)
        return outcomes

    def close(self) -> None:
        """Send what is on its way and disconnect."""
        self._publisher.stop()

    def _outcome(self, message: Any) -> Exception | None:
        try:
            if isinstance(message, Exception):
                raise message
            message.result(timeout=self._timeout)
        except Exception as error:
            told = f"{self._topic}: {type(error).__name__}: {error}"
            if isinstance(error, tuple(getattr(self._errors, name) for name in _PERMANENT)):
                return SinkRejected(told)
            if type(error).__name__ == "MessageTooLargeError":
                return SinkRejected(told)
            return SinkUnavailable(told)
        return None
