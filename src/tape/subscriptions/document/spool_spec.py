"""The `spool` block of a subscription: buffering while a downstream is unavailable."""

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
    """A service that runs depend on, and how it is probed."""

    name: Annotated[Text, Meta(description="Name; the runs of a pool with this name depend on it.")]
    type: Annotated[
        Literal["http", "tcp", "nats", "passive"],
        Meta(description="Kind of probe; `passive` uses the outcomes of runs only.", extra={"alias": "probe"}),
    ] = "http"
    target: Annotated[Text, Meta(description="URL or host:port to probe.")] = ""


class CircuitSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The circuit breaker: when a downstream counts as unavailable, and when it is probed."""

    trip_after: Annotated[Count, Meta(description="Failures in a row that open it.")] = 5
    probe_after_ms: Annotated[
        int, Meta(ge=0, description="How long it stays open before one message is sent as a probe.")
    ] = 30_000
    probe_timeout_ms: Annotated[
        Count, Meta(description="How long the outcome of a probe is waited for before another message is tried.")
    ] = 30_000
    probe_interval_ms: Annotated[Count, Meta(description="Time between active probes.")] = 5_000
    downstream: Annotated[
        tuple[DownstreamSpec, ...], Meta(description="The downstreams. Default: one passive `default`.")
    ] = ()


class RetentionSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Size and age limits of the spool."""

    max_age_hours: Annotated[
        Count | None, Meta(description="Older messages become dead letters. Default: unlimited.")
    ] = None
    max_bytes: Annotated[Size, Meta(description="Size limit of the spool.")] = GIBIBYTE
    on_full: Annotated[
        Literal["stop_acking", "drop_to_dlq", "alert_only"], Meta(description="What to do when it is full.")
    ] = "stop_acking"


class DrainSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How spooled messages are replayed."""

    on_recovery: Annotated[
        Literal["ordered_then_live", "interleave"],
        Meta(description="Replay the backlog before new messages, or interleaved with them."),
    ] = "ordered_then_live"
    rate_per_sec: Annotated[Count | None, Meta(description="Replays per second. Default: unlimited.")] = None
    max_replay_attempts: Annotated[Count, Meta(description="Attempts before an item is a dead letter.")] = 5


class SpoolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Buffer for messages while a downstream is unavailable."""

    mode: Annotated[
        Literal["off", "buffer_and_ack", "hybrid"],
        Meta(description="Let the source redeliver, buffer at once, or buffer when the outage lasts."),
    ] = "off"
    backend: Annotated[
        Literal["nats_object", "local_disk", "gcs", "s3", "azure", "memory"],
        Meta(description="Storage of the spool."),
    ] = "nats_object"
    bucket: Annotated[
        Text, Meta(description="Bucket, `name/prefix` or in full as `gs://name/prefix`; not for local_disk.")
    ] = ""
    path: Annotated[Text, Meta(description="Folder, for local_disk.")] = ""
    credential: Annotated[Text, Meta(description="Alias of the bucket's credential.", extra={"alias": "auth"})] = ""
    ordering: Annotated[
        Literal["global", "per_key", "none"],
        Meta(description="Which runs take turns, live and in a replay: all, those of one ordering key, or none."),
    ] = "per_key"
    ordering_key: Annotated[
        Text, Meta(description="Header or field of the message that is the ordering key. Default: the source's key.")
    ] = ""
    hybrid_escalate_after_ms: Annotated[
        int, Meta(ge=0, description="How long `hybrid` leaves messages at their source before it buffers.")
    ] = 30_000
    circuit: Annotated[CircuitSpec, Meta(description="Circuit breaker.")] = CircuitSpec()
    retention: Annotated[RetentionSpec, Meta(description="Size and age limits.")] = RetentionSpec()
    drain: Annotated[DrainSpec, Meta(description="Replay of the spool.")] = DrainSpec()

    @property
    def bucket_name(self) -> str:
        """The name of the bucket."""
        return self._bucket.partition("/")[0]

    @property
    def prefix(self) -> str:
        """The path after the bucket's name, without leading and trailing slashes."""
        return self._bucket.partition("/")[2].strip("/")

    @property
    def _bucket(self) -> str:
        return self.bucket.removeprefix(BUCKET_SCHEMES.get(self.backend, ""))
