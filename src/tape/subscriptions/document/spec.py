"""The `spec` of `kind: Subscription`: types, limits, descriptions and defaults of its fields.

The validator, the JSON Schema and the reference table in the docs are made from these declarations.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tape.brokers.registry import own_sources
from tape.playbooks.pools import POOL_PATTERN, POOL_RULE
from tape.subscriptions.document.spool_spec import Count, Size, SpoolSpec, Text
from tape.subscriptions.document.verify_spec import WEB_ADDRESS, VerifySpec

SourceName: TypeAlias = Literal["pubsub", "nats", "kafka", "mqtt", "sqs", "amqp", "webhook"]
Pool: TypeAlias = Annotated[str, Meta(pattern=f"^{POOL_PATTERN}$", extra={"means": POOL_RULE.removeprefix("must be ")})]

MAX_BATCH = 1_000
# Messages in flight with `dispatch.ack: on_completion`, unless the document has a limit.
MAX_AWAITED = 1_000
# The keys of a source's connection, and which source understands them.
CONNECTION_KEYS: dict[str, tuple[SourceName, ...]] = {
    "url": ("nats", "mqtt", "amqp"),
    "user": ("nats", "kafka", "mqtt", "sqs", "amqp"),
    "password": ("nats", "kafka", "mqtt", "sqs", "amqp"),
    "token": ("nats", "sqs"),
    "stream": ("nats",),
    "consumer": ("nats",),
    "subject": ("nats",),
    "create": ("nats", "amqp"),
    "subscription": ("pubsub",),
    "endpoint": ("pubsub", "sqs"),
    "streaming": ("pubsub",),
    "client_id": ("mqtt",),
    "protocol": ("mqtt",),
    "session_expiry_secs": ("mqtt",),
    "queue": ("sqs", "amqp"),
    "region": ("sqs",),
    "account": ("sqs",),
    "visibility_secs": ("sqs",),
    "vhost": ("amqp",),
    "exchange": ("amqp",),
    "routing_key": ("amqp",),
    "brokers": ("kafka",),
    "topic": ("kafka", "mqtt"),
    "group": ("kafka",),
    "security_protocol": ("kafka",),
    "sasl_mechanism": ("kafka",),
    "tls": ("nats", "kafka", "mqtt", "amqp"),
    "options": ("kafka",),
}


class TlsSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the connection to a broker is encrypted."""

    ca: Annotated[Text, Meta(description="File with the certificates to trust; the system's without it.")] = ""
    cert: Annotated[Text, Meta(description="File with the client's certificate.")] = ""
    key: Annotated[Text, Meta(description="File with the client's key.")] = ""


class RuntimeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where and how a pull subscription runs."""

    target: Annotated[
        Literal["local", "dedicated-pool", "cloud-run", "spark"],
        Meta(
            description="`local` runs inside `tape serve`, `spark` as `tape pipeline run subscription`; the others are"
            " processes of `tape subscription run`."
        ),
    ] = "dedicated-pool"
    pool: Annotated[Pool, Meta(description="Name of the pool of runtimes that runs it.")] = ""
    batch: Annotated[int, Meta(ge=1, le=MAX_BATCH, description="Messages asked for at once.")] = 100
    timeout_ms: Annotated[int, Meta(ge=1, description="How long one fetch waits for messages.")] = 1_000
    max_in_flight: Annotated[Count | None, Meta(description="The same as `limits.max_in_flight`.")] = None
    server_url: Annotated[
        str,
        Meta(
            pattern=WEB_ADDRESS,
            extra={"means": "an http:// or https:// address"},
            description="Where a runtime outside dispatches to.",
        ),
    ] = ""
    concurrency: Annotated[Count | None, Meta(description="Dispatches at once in one process; unlimited.")] = None
    max_instances: Annotated[Count | None, Meta(description="Processes at most, for what deploys them.")] = None


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How messages are put together to one run."""

    max: Annotated[int, Meta(ge=1, le=MAX_BATCH, description="Messages of one run at most.")] = 100
    linger_ms: Annotated[
        int, Meta(ge=0, le=60_000, description="How long a batch waits for more messages after its first one.")
    ] = 50
    lanes: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="With `spool.ordering: per_key`: keys are spread over so many lanes, and the batches of a lane"
            " run one after the other.",
        ),
    ] = 1


class DispatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The playbook that a message runs."""

    playbook: Annotated[Text, Meta(description="Path of the playbook in the catalog, or of a registered function.")]
    payload_from: Annotated[
        Literal["message.json", "message.body", "message.attributes"],
        Meta(description="What of the message is put at the top of the run's payload."),
    ] = "message.json"
    execution_pool: Annotated[Pool, Meta(description="Pool of the run; from the playbook's path without it.")] = ""
    ack: Annotated[
        Literal["on_accept", "on_completion"],
        Meta(
            description="When a message is acknowledged: when its run is durable, or when the run has ended well. With"
            " both, also when the message is in the spool."
        ),
    ] = "on_accept"
    on_failure: Annotated[
        Literal["dead_letter", "nack"],
        Meta(description="What becomes of a message whose run failed for good, with `ack: on_completion`."),
    ] = "dead_letter"
    batch_dispatch: Annotated[bool, Meta(description="Several messages in one request to the server.")] = False
    batch_max: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_BATCH)] | None,
        Meta(description="Messages in one such request; `runtime.batch` without it."),
    ] = None
    batch: Annotated[
        BatchSpec | None,
        Meta(description="One run for many messages, with a result for each. Default: a run for each."),
    ] = None
    record: Annotated[
        Literal["full", "summary"],
        Meta(
            description="What the journal keeps of a run: `full` its begin, each step and its end; `summary` one entry"
            " for the begin and one for the end, shared by runs that begin or end together, and only steps that are"
            " not idempotent."
        ),
    ] = "full"


class DedupSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether duplicates of a message within a window are dropped."""

    enabled: Annotated[bool, Meta(description="Whether deduplication is on.")] = False
    window_secs: Annotated[Count, Meta(description="Window in seconds within which an equal key is a duplicate.")] = 300


class LimitsSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of the dispatch; further messages stay at their source."""

    max_in_flight: Annotated[
        Count | None,
        Meta(
            description="Messages in flight: fetched, not acknowledged yet. Default: unlimited; 1,000 with"
            " `dispatch.ack: on_completion`."
        ),
    ] = None
    max_dispatch_per_sec: Annotated[Count | None, Meta(description="Runs started per second. Default: unlimited.")] = (
        None
    )


ControlledSetting: TypeAlias = Literal[
    "dispatch.playbook", "dispatch.execution_pool", "priority", "idempotency_key", "content_type", "schema_hint"
]
ROUTING: frozenset[str] = frozenset({"dispatch.playbook", "dispatch.execution_pool"})


class HeaderRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A header that controls routing, and its allowed values."""

    header: Annotated[
        str,
        Meta(
            pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
            extra={"means": "the name of a header"},
            description="Name of the header, in any case.",
        ),
    ]
    controls: Annotated[ControlledSetting, Meta(description="What its value sets.")]
    allowed: Annotated[
        tuple[Text, ...], Meta(description="The values it may have; a rule that routes needs them.")
    ] = ()
    map: Annotated[dict[str, Pool], Meta(description="Value to pool, for `priority`.")] = {}


class TraceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which trace context of a message its run inherits."""

    propagate: Annotated[
        Literal["none", "w3c"], Meta(description="`w3c` passes on traceparent, tracestate and baggage.")
    ] = "none"
    baggage_allowlist: Annotated[tuple[Text, ...], Meta(description="Keys of the baggage that pass.")] = ()


class HeadersSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which headers control routing, and which are data."""

    normalize: Annotated[bool, Meta(description="Put the headers into `message.headers`, names in lower case.")] = True
    directives: Annotated[
        tuple[HeaderRule, ...], Meta(description="The headers that control routing; no other does.")
    ] = ()
    trace: Annotated[TraceSpec, Meta(description="Trace context.")] = TraceSpec()
    passthrough: Annotated[
        Literal["data", "none"], Meta(description="`none` hides headers without a rule from the playbook.")
    ] = "data"


class IngressSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The endpoint of a push subscription."""

    gateway_path: Annotated[
        str,
        Meta(
            pattern=r"^/([^\s?#]*/)?[A-Za-z0-9._~-]+/?$",
            description="Path they are posted to; its last segment is the listener.",
        ),
    ]
    verify: Annotated[VerifySpec, Meta(description="Every delivery is verified.")]
    max_body_bytes: Annotated[Size, Meta(description="Size of a body at most.")] = 2 << 20
    public_url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
            extra={"means": "an http:// or https:// address without a query"},
            description="Address of `gateway_path`'s root as senders know it, for signatures over the URL.",
        ),
    ] = ""

    @property
    def listener(self) -> str:
        """The last segment of `gateway_path`, what `/ingress/{listener}` is called with."""
        return self.gateway_path.rstrip("/").rpartition("/")[2]


class KedaSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers for a KEDA scaler of the runtime."""

    trigger: Annotated[Text, Meta(description="Type of the KEDA trigger. Default: that of the source.")] = ""
    metadata: Annotated[
        dict[str, Text], Meta(description="More metadata of the trigger, for example `account` of nats-jetstream.")
    ] = {}
    min: Annotated[int, Meta(ge=0, description="Replicas at least.")] = 1
    max: Annotated[Count, Meta(description="Replicas at most.")] = 10
    lag_threshold: Annotated[Count, Meta(description="Waiting messages per replica.")] = 100


class ScalingSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a deployment scales the runtime."""

    keda: Annotated[KedaSpec, Meta(description="For KEDA.")] = KedaSpec()


class SubscriptionSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `spec` of a subscription."""

    source: Annotated[
        SourceName, Meta(description="Kind of the source; one of your own by its name.", extra={"more": own_sources})
    ]
    mode: Annotated[
        Literal["pull", "push"], Meta(description="`pull`: Tape polls the source. `push`: the source sends deliveries.")
    ]
    activation: Annotated[
        Literal["continuous", "scheduled"], Meta(description="A continuous pull, or a bounded drain at each cadence.")
    ] = "continuous"
    cadence: Annotated[Text, Meta(description="When a scheduled drain runs, as cron: `*/5 * * * *`.")] = ""
    auth: Annotated[Text, Meta(description="Alias of the source's credential in the wallet.")] = ""

    url: Annotated[
        Text, Meta(description="Address of the broker: `nats://`, `mqtt://`, `mqtts://`, `amqp://` or `amqps://`.")
    ] = ""
    user: Annotated[Text, Meta(description="User at the broker; the access key id of SQS.")] = ""
    password: Annotated[
        Text, Meta(description="Its password (the secret access key of SQS), or an alias of the wallet.")
    ] = ""
    token: Annotated[
        Text, Meta(description="Token at the broker (the session token of SQS), or an alias of the wallet.")
    ] = ""
    stream: Annotated[Text, Meta(description="JetStream stream.")] = ""
    consumer: Annotated[Text, Meta(description="Durable pull consumer of the stream; on Spark, where to begin.")] = ""
    subject: Annotated[Text, Meta(description="Filter of a consumer that `create` makes, or of what Spark reads.")] = ""
    create: Annotated[
        bool, Meta(description="Create the durable consumer (NATS) or the queue (AMQP) if it does not exist.")
    ] = False
    subscription: Annotated[
        str,
        Meta(
            pattern=r"^projects/[^/]+/subscriptions/[^/]+$",
            extra={"means": "projects/<p>/subscriptions/<s>"},
            description="Pub/Sub subscription.",
        ),
    ] = ""
    endpoint: Annotated[Text, Meta(description="Address of Pub/Sub or SQS, for an emulator.")] = ""
    streaming: Annotated[bool, Meta(description="Hold a streaming pull open instead of asking again.")] = False
    brokers: Annotated[
        tuple[Text, ...],
        Meta(description="Kafka brokers, host:port; a list or a text with commas.", extra={"form": "commas"}),
    ] = ()
    topic: Annotated[Text, Meta(description="Kafka topic, or topic filter of MQTT.")] = ""
    group: Annotated[Text, Meta(description="Kafka consumer group.")] = ""
    security_protocol: Annotated[
        Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"], Meta(description="Security protocol of Kafka.")
    ] = "plaintext"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], Meta(description="SASL mechanism of Kafka.")
    ] = "PLAIN"
    client_id: Annotated[Text, Meta(description="Name of the MQTT session, unique at the broker.")] = ""
    protocol: Annotated[Literal["mqtt5", "mqtt3.1.1"], Meta(description="Version of MQTT.")] = "mqtt5"
    session_expiry_secs: Annotated[
        Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)] | None,
        Meta(
            description="How long an MQTT 5 broker keeps the session without a connection. Default: 604,800 (a week)."
        ),
    ] = None
    queue: Annotated[Text, Meta(description="SQS or AMQP queue.")] = ""
    region: Annotated[
        str,
        Meta(
            pattern=r"^[a-z]{2,}(-[a-z0-9]+)+$",
            extra={"means": "a region of AWS, like eu-central-1"},
            description="AWS region of the queue.",
        ),
    ] = ""
    account: Annotated[
        str,
        Meta(
            pattern=r"^[0-9]{12}$",
            extra={"means": "an AWS account id of 12 digits, in quotes"},
            description="AWS account of the queue. Default: the credential's.",
        ),
    ] = ""
    visibility_secs: Annotated[
        Annotated[int, Meta(ge=1, le=43_200)] | None,
        Meta(description="Visibility time-out of a received SQS message, renewed while it is held. Default: 30."),
    ] = None
    vhost: Annotated[Text, Meta(description="AMQP virtual host. Default: `/`.")] = ""
    exchange: Annotated[Text, Meta(description="Exchange that `create` binds the AMQP queue to.")] = ""
    routing_key: Annotated[Text, Meta(description="Routing key of that binding.")] = ""
    tls: Annotated[TlsSpec | None, Meta(description="Encryption of the connection.")] = None

    options: Annotated[
        dict[str, Text],
        Meta(description="More settings: librdkafka's for Kafka, its own for a source of yours."),
    ] = {}

    runtime: Annotated[RuntimeSpec, Meta(description="Where and how it runs.")] = RuntimeSpec()
    dispatch: Annotated[DispatchSpec, Meta(description="The playbook that a message runs.")]
    dedup: Annotated[DedupSpec, Meta(description="Deduplication.")] = DedupSpec()
    limits: Annotated[LimitsSpec, Meta(description="Limits of the dispatch.")] = LimitsSpec()
    headers: Annotated[HeadersSpec, Meta(description="Headers for routing and as data.")] = HeadersSpec()
    spool: Annotated[SpoolSpec, Meta(description="Buffer for messages while a downstream is unavailable.")] = (
        SpoolSpec()
    )
    scaling: Annotated[ScalingSpec | None, Meta(description="For the deployment of the runtime.")] = None
    ingress: Annotated[IngressSpec | None, Meta(description="Endpoint of deliveries (`mode: push`).")] = None

    @property
    def max_in_flight(self) -> int | None:
        """The limit of messages in flight: `limits.max_in_flight` or `runtime.max_in_flight`.

        A message that is acknowledged on completion is in flight until then: without a limit, 1,000 are.
        """
        declared = self.limits.max_in_flight or self.runtime.max_in_flight
        return declared or (MAX_AWAITED if self.dispatch.ack == "on_completion" else None)

    @property
    def dispatch_batch(self) -> int:
        """Messages in one dispatch request: 1 without `batch_dispatch` and `batch`."""
        if self.dispatch.batch is not None:
            return MAX_BATCH
        return self.batch_max if self.dispatch.batch_dispatch else 1

    @property
    def batch_max(self) -> int:
        """Maximum messages of a batch request."""
        return self.dispatch.batch_max or self.runtime.batch


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A validated `kind: Subscription` document. `path` is its name in the catalog."""

    path: str
    name: str
    spec: SubscriptionSpec
    labels: dict[str, Any] = {}

    @property
    def playbooks(self) -> tuple[str, ...]:
        """The playbook of `dispatch`, then those that headers can choose."""
        chosen = (
            name
            for rule in self.spec.headers.directives
            if rule.controls == "dispatch.playbook"
            for name in rule.allowed
        )
        return tuple(dict.fromkeys((self.spec.dispatch.playbook, *chosen)))
