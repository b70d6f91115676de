"""The targets of publish reactions."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tape.errors import InvalidTarget

SCHEMES = ("pubsub", "nats", "kafka")


class PublishTarget(NamedTuple):
    """A broker (for Pub/Sub, a project) and the subject or topic there."""

    scheme: str
    broker: str
    name: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.broker.rpartition('@')[2]}/{self.name}"  # no password in messages


def parse_target(text: str) -> PublishTarget:
    """The target of `pubsub://project/topic`, `nats://host:port/subject` or `kafka://broker:port/topic`."""
    parts = urlsplit(text)
    target = PublishTarget(parts.scheme, parts.netloc, unquote(parts.path.lstrip("/")))
    if target.scheme not in SCHEMES or not target.broker or not target.name or parts.query or parts.fragment:
        raise InvalidTarget(
            f"publish_target {text!r} must look like pubsub://project/topic, nats://host:port/subject or"
            " kafka://broker:port/topic."
        )
    return target
