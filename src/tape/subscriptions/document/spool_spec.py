"""The `spool` block of a subscription, as values: where messages wait while what they need is down."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
# Bytes: a number, or a text like 50Gi.
Size: TypeAlias = Annotated[int, Meta(ge=1, extra={"form": "size"})]

GIBIBYTE = 1 << 30
# How `bucket` may be written in full, per backend.
BUCKET_SCHEMES = {"gcs": "gs://", "s3": "s3://"}


class DownstreamSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that runs need, and how to tell whether it is there."""

    name: Annotated[Text, Meta(description="Its name; a pool of the same name is routed to it.")]
    type: Annotated[
        Literal["http", "tcp", "nats", "passive"],
        Meta(description="How it is asked; `passive` goes by the outcome of dispatches.", extra={"alias": "probe"}),
    ] = "http"
    target: Annotated[Text, Meta(description="URL or host:port to ask.")] = ""


class CircuitSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a downstream counts as down, and when it is tried again."""

    trip_after: Annotated[Count, Meta(description="Failures in a row that open it.")] = 5
    probe_after_ms: Annotated[int, Meta(ge=0, description="How long it stays open before one message is tried.")] = (
        30_000
    )
    probe_interval_ms: Annotated[Count, Meta(description="Time between active probes.")] = 5_000
    downstream: Annotated[
        tuple[DownstreamSpec, ...], Meta(description="What is watched; one passive `default` without it.")
    ] = ()


class RetentionSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may wait, and how long."""

    max_age_hours: Annotated[Count | None, Meta(description="Age that ends in a dead letter; unlimited.")] = None
    max_bytes: Annotated[Size, Meta(description="Size of what may wait.")] = GIBIBYTE
    on_full: Annotated[
        Literal["stop_acking", "drop_to_dlq", "alert_only"], Meta(description="What happens beyond that.")
    ] = "stop_acking"


class DrainSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How what waited is replayed."""

    on_recovery: Annotated[
        Literal["ordered_then_live", "interleave"], Meta(description="The backlog first, or beside what arrives.")
    ] = "ordered_then_live"
    rate_per_sec: Annotated[Count | None, Meta(description="Replays per second; unlimited.")] = None
    max_replay_attempts: Annotated[Count, Meta(description="Attempts before an item is a dead letter.")] = 5


class SpoolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where messages wait while what they need is down."""

    mode: Annotated[
        Literal["off", "buffer_and_ack", "hybrid"],
        Meta(description="Let the source redeliver, buffer at once, or buffer when it lasts."),
    ] = "off"
    backend: Annotated[
        Literal["nats_object", "local_disk", "gcs", "s3", "azure", "memory"],
        Meta(description="What they are written to."),
    ] = "nats_object"
    bucket: Annotated[
        Text, Meta(description="Bucket, `name/prefix` or in full as `gs://name/prefix`; not for local_disk.")
    ] = ""
    path: Annotated[Text, Meta(description="Folder, for local_disk.")] = ""
    credential: Annotated[Text, Meta(description="Alias of the bucket's credential.", extra={"alias": "auth"})] = ""
    ordering: Annotated[Literal["global", "per_key", "none"], Meta(description="What order a replay keeps.")] = (
        "per_key"
    )
    ordering_key: Annotated[
        Text, Meta(description="Header, or field of the message, that names the lane; the source's key without it.")
    ] = ""
    hybrid_escalate_after_ms: Annotated[
        int, Meta(ge=0, description="How long `hybrid` leaves messages to their source at most.")
    ] = 30_000
    circuit: Annotated[CircuitSpec, Meta(description="When something counts as down.")] = CircuitSpec()
    retention: Annotated[RetentionSpec, Meta(description="How much may wait.")] = RetentionSpec()
    drain: Annotated[DrainSpec, Meta(description="How it is replayed.")] = DrainSpec()

    @property
    def bucket_name(self) -> str:
        """The bucket alone."""
        return self._bucket.partition("/")[0]

    @property
    def prefix(self) -> str:
        """What stands after the bucket, without slashes around it."""
        return self._bucket.partition("/")[2].strip("/")

    @property
    def _bucket(self) -> str:
        return self.bucket.removeprefix(BUCKET_SCHEMES.get(self.backend, ""))
