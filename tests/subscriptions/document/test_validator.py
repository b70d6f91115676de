"""The validator reports all errors of a document at once and accepts every document of the docs."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import msgspec
import pytest

from tape.errors import InvalidDocument, Problem
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tests.subscriptions.documents import (
    AMQP,
    CONTINUOUS_PULL,
    DIRECTIVES,
    EXAMPLES,
    KAFKA_PULL,
    MQTT,
    NATS,
    SCHEDULED_DRAIN,
    SQS,
    WEBHOOK,
    WEBHOOK_PUSH,
)


def problems(text: str) -> list[Problem]:
    with pytest.raises(InvalidDocument) as raised:
        parse_subscription(text)
    return raised.value.problems


def nats(block: str) -> str:
    return NATS + textwrap.indent(block, "  ")


def messages(text: str) -> list[str]:
    return [problem.message for problem in problems(text)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_of_the_design_is_good(name: str) -> None:
    parse_subscription(EXAMPLES[name])
    parse_subscription(nats(DIRECTIVES))


def test_a_document_becomes_values_with_its_aliases_and_sizes() -> None:
    spec = parse_subscription(CONTINUOUS_PULL).spec
    assert (spec.source, spec.mode, spec.activation, spec.auth) == ("pubsub", "pull", "continuous", "pubsub_iot")
    assert (spec.max_in_flight, spec.batch_max, spec.runtime.pool) == (1000, 500, "iot")
    assert (spec.spool.credential, spec.spool.bucket_name, spec.spool.prefix) == (
        "gcs_spool",
        "acme-noetl-spool",
        "iot",
    )
    assert (spec.spool.retention.max_bytes, spec.spool.drain.rate_per_sec) == (50 << 30, 200)
    assert [rule.controls for rule in spec.headers.directives] == ["dispatch.execution_pool", "idempotency_key"]
    assert spec.scaling is not None
    assert spec.scaling.keda.max == 20
    assert parse_subscription(SCHEDULED_DRAIN).spec.cadence == "*/1 * * * *"
    kafka = parse_subscription(KAFKA_PULL).spec
    assert (kafka.runtime.target, kafka.runtime.concurrency, kafka.runtime.max_instances) == ("cloud-run", 80, 50)
    ingress = parse_subscription(WEBHOOK_PUSH).spec.ingress
    assert ingress is not None
    assert (ingress.listener, ingress.verify.signature_scheme) == ("stripe", "stripe")


def test_what_is_not_said_has_its_default() -> None:
    subscription = parse_subscription(NATS)
    spec = subscription.spec
    assert (subscription.path, subscription.name) == ("subscriptions/orders", "orders")
    assert (spec.activation, spec.runtime.batch, spec.runtime.timeout_ms, spec.max_in_flight) == (
        ("continuous", 100, 1000, None)
    )
    assert (spec.dispatch.payload_from, spec.dedup.enabled, spec.dedup.window_secs) == ("message.json", False, 300)
    assert (spec.spool.mode, spec.spool.backend, spec.spool.ordering) == ("off", "nats_object", "per_key")
    assert (spec.spool.circuit.trip_after, spec.spool.retention.max_bytes) == (5, 1 << 30)


def test_off_is_a_mode_and_not_false() -> None:
    assert parse_subscription(nats("spool: {mode: off}")).spec.spool.mode == "off"


def test_all_problems_are_reported_with_path_line_value_and_the_nearest_key() -> None:
    text = """\
kind: Subscription
metadata: {path: subscriptions/orders}
spec:
  source: natz
  mode: pul
  dispach: {playbook: x}
  dedup: {enabled: 1, window_secs: 0}
  headers:
    directives:
      - {header: x-route, controls: dispatch.playbok}
  spool: {mode: buffer_and_ack, backend: s3}
"""
    found = [(problem.path, problem.line, problem.message, problem.value) for problem in problems(text)]
    assert found == [
        ("spec.dispatch", 3, "subscription spec requires a 'dispatch' block", None),
        (
            "spec.source",
            4,
            'subscription \'source\' must be one of ["pubsub", "nats", "kafka", "mqtt", "sqs", "amqp", "webhook"],'
            " got 'natz'; did you mean 'nats'?",
            "natz",
        ),
        ("spec.mode", 5, "subscription 'mode' must be 'pull' or 'push', got 'pul'; did you mean 'pull'?", "pul"),
        ("spec.dispach", 6, "is not a known key; did you mean 'dispatch'?", None),
        ("spec.dedup.enabled", 7, "subscription 'dedup.enabled' must be a boolean", 1),
        ("spec.dedup.window_secs", 7, "subscription 'dedup.window_secs' must be a positive integer", 0),
        (
            "spec.headers.directives[0].controls",
            10,
            "subscription 'headers.directives[0].controls' must be one of [\"dispatch.playbook\","
            ' "dispatch.execution_pool", "priority", "idempotency_key", "content_type", "schema_hint"],'
            " got 'dispatch.playbok'; did you mean 'dispatch.playbook'?",
            "dispatch.playbok",
        ),
        ("spec.spool.bucket", 11, "subscription 'spool.backend' 's3' requires a non-empty 'bucket'", None),
    ]


def test_a_sentence_that_names_its_field_ends_with_the_value() -> None:
    twice = "spool: {circuit: {downstream: [{name: a, type: passive}, {name: a, type: passive}]}}"
    emitted = problems(nats(f"dedup: {{enabled: 1, window_secs: 0}}\n{twice}\n"))
    assert [str(each).partition(": ")[2] for each in emitted] == [
        "subscription 'dedup.enabled' must be a boolean, got 1.",
        "subscription 'dedup.window_secs' must be a positive integer, got 0.",
        "spool.circuit.downstream name 'a' is duplicated.",
    ]


def without(text: str, line: str) -> str:
    kept = [each for each in text.splitlines() if not each.strip().startswith(line)]
    assert len(kept) < len(text.splitlines())
    return "\n".join(kept)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Subscription\nmetadata: {path: p}", "kind: Subscription requires a 'spec' block"),
        (without(NATS, "source"), "subscription spec requires 'source'"),
        (without(NATS, "mode"), "subscription spec requires 'mode' (pull | push)"),
        (without(NATS, "dispatch"), "subscription spec requires a 'dispatch' block"),
        (NATS.replace("domain/ingest_order", '""'), "subscription 'dispatch.playbook' is required"),
        (NATS.replace("{playbook: domain/ingest_order}", "{}"), "subscription 'dispatch.playbook' is required"),
        (
            nats("activation: hourly"),
            "subscription 'activation' must be one of [\"continuous\", \"scheduled\"], got 'hourly'",
        ),
        (without(NATS, "stream"), "subscription[nats] requires 'stream'"),
        (without(NATS, "consumer"), "subscription[nats] requires 'consumer'"),
        (without(NATS, "url"), "NATS connection requires 'url' or an 'auth' credential alias with a 'url' field"),
        (
            without(CONTINUOUS_PULL, "subscription:"),
            "subscription[pubsub] requires 'subscription' (projects/<p>/subscriptions/<s>)",
        ),
        (without(KAFKA_PULL, "topic"), "subscription[kafka] requires 'topic'"),
        (without(KAFKA_PULL, "group"), "subscription[kafka] requires 'group'"),
        (
            without(KAFKA_PULL, "auth"),
            "subscription[kafka] requires 'brokers' (string or array of host:port)"
            " or an 'auth' credential alias with 'brokers'",
        ),
        (
            NATS.replace("ingest_order}", "ingest_order, batch_dispatch: yes}"),
            "subscription 'dispatch.batch_dispatch' must be a boolean",
        ),
        (
            NATS.replace("ingest_order}", "ingest_order, batch_max: 0}"),
            "subscription 'dispatch.batch_max' must be a positive integer",
        ),
        (
            NATS.replace("ingest_order}", "ingest_order, batch_max: 1001}"),
            "subscription 'dispatch.batch_max' must be <= 1000 (the server batch cap)",
        ),
        *((nats(f"{block}: null"), f"subscription '{block}' must be a mapping") for block in ("dedup", "limits")),
        *((nats(f"{block}: null"), f"subscription '{block}' must be a mapping") for block in ("headers", "spool")),
        (nats("limits: {max_in_flight: -1}"), "subscription 'limits.max_in_flight' must be a positive integer"),
        (nats("headers: {directives: {}}"), "subscription 'headers.directives' must be a list"),
        (
            nats("headers: {directives: [{header: a}]}"),
            "subscription 'headers.directives[0]' requires 'header' and 'controls'",
        ),
        (
            nats("headers: {directives: [{header: X-Route, controls: dispatch.playbook, allowed: []}]}"),
            "directive header 'X-Route' controls 'dispatch.playbook' but declares no non-empty 'allowed:' value list —"
            " a routing directive must constrain its targets",
        ),
        (
            nats("headers: {directives: [{header: a, controls: dispatch.execution_pool, allowed: [iot, Fast Lane]}]}"),
            "is not a pool; it must be lower-case letters, digits, - and _, at most 63 of them",
        ),
        (
            NATS.replace("ingest_order}", "ingest_order, execution_pool: IoT}"),
            "subscription 'dispatch.execution_pool' must be lower-case letters, digits, - and _, at most 63 of them,"
            " got 'IoT'",
        ),
        (
            nats("headers: {directives: [{header: a, controls: priority, map: {high: Fast}}]}"),
            "subscription 'headers.directives[0].map.high' must be lower-case letters, digits, - and _, at most 63 of"
            " them, got 'Fast'",
        ),
        (
            nats("headers: {directives: [{header: a, controls: priority}]}"),
            "directive header 'a' controls 'priority' but declares no non-empty 'map:' (value → pool) —"
            " a priority directive must map to allowed pools",
        ),
        (
            nats("headers: {directives: [{header: a, controls: content_type, map: {a: b}}]}"),
            "is for controls: priority alone",
        ),
        (
            nats('headers: {directives: [{header: "a b", controls: content_type}]}'),
            "subscription 'headers.directives[0].header' must be the name of a header, got 'a b'",
        ),
        (
            nats("spool: {mode: on}"),
            'subscription \'spool.mode\' must be one of ["off", "buffer_and_ack", "hybrid"], got \'on\'',
        ),
        (
            nats("spool: {mode: hybrid, backend: local_disk}"),
            "subscription 'spool.backend' 'local_disk' requires a non-empty 'path'",
        ),
        (
            nats("spool: {mode: hybrid, backend: s3, bucket: gs://b}"),
            "does not go with spool.backend 's3', whose bucket begins with s3://",
        ),
        (
            nats("spool: {mode: hybrid, bucket: gs://b}"),
            "does not go with spool.backend 'nats_object', whose bucket has only a name",
        ),
        (
            nats("spool: {ordering: global, drain: {on_recovery: interleave}}"),
            "subscription 'spool.drain.on_recovery: interleave' is unsafe with 'ordering: global';"
            " use 'ordered_then_live' or 'per_key'/'none'",
        ),
        (
            nats("spool: {circuit: {downstream: [{name: a, type: passive}, {name: a, type: passive}]}}"),
            "spool.circuit.downstream name 'a' is duplicated",
        ),
        (
            nats("spool: {circuit: {downstream: [{name: a, probe: tcp}]}}"),
            "spool.circuit.downstream 'a' probe 'tcp' requires a 'target'",
        ),
        (
            nats("spool: {circuit: {downstream: [{type: passive}]}}"),
            "spool.circuit.downstream[].name is required",
        ),
        (
            nats("spool: {retention: {max_bytes: lots}}"),
            "subscription 'spool.retention.max_bytes' must be a positive integer or a size like 50Gi"
            " (k M G T P, Ki Mi Gi Ti Pi)",
        ),
        (
            nats("spool: {auth: a, credential: b}"),
            "is another name of 'credential', which is given too; keep one of them",
        ),
        (
            nats("runtime: {max_in_flight: 1}\nlimits: {max_in_flight: 2}"),
            "differs from limits.max_in_flight, which is 2; keep one of them",
        ),
        (nats("topic: t"), "is a key of source kafka and mqtt, not of nats"),
        (MQTT.replace("  client_id: tape-orders\n", ""), "subscription[mqtt] requires 'client_id'"),
        (
            MQTT.replace("  url: mqtts://broker.example.com\n", ""),
            "MQTT connection requires 'url' or an 'auth' credential alias with a 'url' field",
        ),
        (
            MQTT.replace("mqtts://", "nats://"),
            "must begin with mqtt:// or mqtts:// and a host, for example mqtt://broker.example.com",
        ),
        (MQTT.replace("example.com", "example.com/path"), "must end after the host and the port"),
        (MQTT.replace("orders/+/new", "orders/#/new"), "may have # only as its last level, as in sensors/#"),
        (
            MQTT.replace("orders/+/new", "orders/a+/new"),
            "may have + only as a whole level, as in sensors/+/temperature",
        ),
        (MQTT.replace("orders/+/new", "$share//a"), "must be $share/<group>/<filter>, with a group without + and #"),
        (
            MQTT + "  protocol: mqtt3.1.1\n  session_expiry_secs: 60\n",
            "is for protocol: mqtt5; with MQTT 3.1.1 the broker's own setting says how long it keeps a session",
        ),
        (
            MQTT.replace("mqtts://", "mqtt://") + "  tls: {ca: ca.pem}\n",
            "does not go with mqtt://, which does not encrypt; use mqtts://",
        ),
        (
            MQTT.replace("mode: pull", "mode: push"),
            "does not go with source mqtt, which is fetched from; use mode: pull",
        ),
        (SQS.replace("  region: eu-central-1\n", ""), "subscription[sqs] requires 'region'"),
        (
            SQS.replace("eu-central-1", "Frankfurt"),
            "subscription 'region' must be a region of AWS, like eu-central-1, got 'Frankfurt'",
        ),
        (
            SQS + "  account: '12'\n",
            "subscription 'account' must be an AWS account id of 12 digits, in quotes, got '12'",
        ),
        (SQS + "  vhost: v\n", "is a key of source amqp, not of sqs"),
        (AMQP + "  exchange: e\n", "has no effect without create: true"),
        (AMQP + "  create: true\n  routing_key: e\n", "has no effect without 'exchange'"),
        (AMQP.replace("  queue: orders\n", ""), "subscription[amqp] requires 'queue'"),
        (nats("cadence: '* * * * *'"), "has no effect without activation: scheduled"),
        (
            nats("activation: scheduled"),
            "subscription 'activation: scheduled' requires a 'cadence', like '*/5 * * * *'",
        ),
        (
            nats("activation: scheduled\ncadence: 61 * * * *"),
            "subscription 'cadence' is not a cron expression: the minute '61' has '61'; it takes 0 to 59",
        ),
        (NATS.replace("nats\n", "webhook\n", 1), "does not go with source webhook, which delivers; use mode: push"),
        (
            NATS.replace("pull", "push"),
            "subscription 'mode: push' requires an 'ingress' block (gateway_path + verify)",
        ),
        (
            WEBHOOK.replace("/ingress/hook", "ingress/hook"),
            "subscription 'ingress.gateway_path' must be an absolute path starting with '/' whose last segment has"
            " letters, digits and . _ ~ - only, got 'ingress/hook'",
        ),
        (without(WEBHOOK, "gateway_path"), "subscription 'ingress.gateway_path' is required for push"),
        (without(WEBHOOK, "verify"), "subscription 'ingress' requires a 'verify' block (push always verifies)"),
        (
            WEBHOOK.replace("{type: hmac_sha256, header: x-signature, secret: hook_secret}", "{}"),
            "subscription 'ingress.verify.type' is required",
        ),
        (
            WEBHOOK.replace("hmac_sha256, header: x-signature, secret: hook_secret", "none"),
            'subscription \'ingress.verify.type\' must be one of ["hmac_sha256", "bearer", "pubsub_oidc",'
            ' "signature", "basic", "mtls"], got'
            " 'none' ('none' is not allowed — push ingress always verifies)",
        ),
        (
            WEBHOOK.replace("header: x-signature, ", ""),
            "subscription 'ingress.verify.header' is required for verify.type 'hmac_sha256'",
        ),
        (
            WEBHOOK.replace("type: hmac_sha256, header: x-signature, secret: hook_secret", "type: bearer"),
            "subscription 'ingress.verify.secret' is required for verify.type 'bearer'",
        ),
        (
            WEBHOOK.replace("hook_secret}", "hook_secret, audience: a}"),
            "has no effect with verify.type 'hmac_sha256'; leave it out",
        ),
        (nats("scaling: {keda: {min: 5, max: 2}}"), "is more than scaling.keda.max, which is 2"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    assert message in messages(text)


ON_SPARK = without(NATS, "consumer") + "\n  runtime: {target: spark}\n"


def test_a_log_runs_on_spark_without_a_durable_consumer_or_with_one_to_begin_at() -> None:
    assert parse_subscription(ON_SPARK).spec.runtime.target == "spark"
    more = (
        "  consumer: orders\n  subject: orders.eu\n  spool: {mode: off, ordering: none}\n  limits: {max_in_flight: 9}\n"
    )
    assert parse_subscription(ON_SPARK + more).spec.spool.ordering == "none"
    assert parse_subscription(NATS + "  runtime: {target: spark, batch: 9}\n").spec.consumer == "orders"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CONTINUOUS_PULL.replace("target: dedicated-pool", "target: spark"),
            "does not go with source pubsub, whose messages have no offsets",
        ),
        (WEBHOOK + "  runtime: {target: spark}\n", "push deliveries come to the server or a gateway"),
        (ON_SPARK + "  spool: {mode: hybrid, backend: local_disk, path: x}\n", "the source is the buffer"),
        (ON_SPARK + "  spool: {ordering_key: device}\n", "has no effect with runtime.target spark, which has no spool"),
        (ON_SPARK + "  create: true\n", "needs no durable consumer"),
        (ON_SPARK + "  activation: scheduled\n  cadence: '* * * * *'\n", "let your scheduler start `tape pipeline"),
        (ON_SPARK + "  scaling: {keda: {max: 3}}\n", "the cores of the executors decide"),
        (ON_SPARK.replace("target: spark", "target: spark, timeout_ms: 5"), "waits for nothing"),
        (ON_SPARK.replace("target: spark", "target: spark, concurrency: 5"), "the cores of the executors decide"),
        (ON_SPARK.replace("target: spark", "target: spark, max_instances: 5"), "how many executors there are"),
        (ON_SPARK.replace("order}", "order, batch_dispatch: false}"), "always handed over in batches"),
    ],
)
def test_what_does_not_go_with_spark_is_said_with_the_way_out(text: str, message: str) -> None:
    assert any(message in str(problem) for problem in problems(text)), problems(text)


def test_another_kind_is_rejected() -> None:
    assert messages(NATS.replace("kind: Subscription", "kind: Playbook")) == [
        "expected 'kind: Subscription', got 'Playbook'"
    ]


@pytest.mark.parametrize("text", ["", "[]", "kind: Subscription", "spec: {}", ": :", "kind: Subscription\nspec: 3"])
def test_what_is_no_document_is_refused_and_breaks_nothing(text: str) -> None:
    assert problems(text)


def test_a_spec_survives_being_written_as_json() -> None:
    for text in EXAMPLES.values():
        subscription = parse_subscription(text)
        back: Any = msgspec.json.decode(msgspec.json.encode(subscription), type=Subscription, strict=False)
        assert back == subscription


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dispatch": {"playbook": "p", "on_failure": "nack"}}, "has no effect without dispatch.ack: on_completion"),
        (
            {
                "dispatch": {"playbook": "p", "ack": "on_completion", "on_failure": "nack"},
                "dedup": {"enabled": True},
            },
            "would be a duplicate of its failed run",
        ),
        (
            {"dispatch": {"playbook": "p", "ack": "on_completion"}, "source": "webhook", "mode": "push"},
            "does not go with mode: push",
        ),
        (
            {"dispatch": {"playbook": "p", "ack": "on_completion"}, "runtime": {"target": "spark"}},
            "offsets are stored with the runs",
        ),
    ],
)
def test_acknowledgement_on_completion_is_refused_where_it_cannot_be_kept(
    changes: dict[str, Any], problem: str
) -> None:
    spec = {"source": "nats", "mode": "pull", "url": "nats://x", "stream": "S", "consumer": "c"} | changes
    text = json.dumps({"kind": "Subscription", "metadata": {"path": "s"}, "spec": spec})
    with pytest.raises(InvalidDocument, match=problem):
        parse_subscription(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            WEBHOOK.replace("handle_hook}", "handle_hook, batch: {max: 5}}"),
            ["is for mode: pull; a delivery is answered"],
        ),
        (
            NATS.replace("order}", "order, batch: {}, batch_dispatch: true, batch_max: 5, payload_from: message.body}"),
            [
                "one request already; leave it out",
                "use dispatch.batch.max for the messages of one run",
                "the payload of a batch is the list `messages`",
            ],
        ),
        (
            NATS.replace("order}", "order, batch: {max: 50}}") + "  limits: {max_in_flight: 49}\n",
            ["is less than dispatch.batch.max, which is 50"],
        ),
        (
            NATS.replace("order}", "order, batch: {lanes: 4}}") + "  spool: {ordering: global}\n",
            ["has no effect without spool.ordering: per_key"],
        ),
        (NATS.replace("order}", "order, batch: {max: 0}}"), ["batch.max"]),
        (NATS.replace("order}", "order, batch: {max: 1001}}"), ["batch.max"]),
        (NATS.replace("order}", "order, batch: {linger_ms: -1}}"), ["batch.linger_ms"]),
        (
            NATS.replace("order}", "order, batch: {}}") + "  runtime: {target: spark}\n",
            ["does not go with runtime.target spark"],
        ),
        (NATS.replace("order}", "order, record: some}"), ["dispatch.record"]),
    ],
)
def test_a_batch_that_makes_no_sense_is_named(text: str, wrong: list[str]) -> None:
    found = [f"{problem.path} {problem.message}" for problem in problems(text)]
    assert len(found) == len(wrong), found
    assert all(part in each for part, each in zip(wrong, found, strict=True)), found


def test_a_batch_has_defaults_and_goes_with_a_summary() -> None:
    spec = parse_subscription(NATS.replace("order}", "order, batch: {}, record: summary}")).spec
    assert spec.dispatch.batch is not None
    assert (spec.dispatch.batch.max, spec.dispatch.batch.linger_ms, spec.dispatch.batch.lanes) == (100, 50, 1)
    assert (spec.dispatch.record, spec.dispatch_batch) == ("summary", 1_000)
