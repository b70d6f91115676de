"""The validator of `kind: Subscription`: reports all problems of a document at once.

`spec` declares each field; the rules here check combinations of fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tape.brokers.addresses import PORTS, address_problem
from tape.brokers.log import LOGS
from tape.brokers.mqtt.topics import filter_problem
from tape.documents.document import Document, Node
from tape.documents.reader import key_at, read_block
from tape.errors import InvalidCadence, InvalidDocument, Problem
from tape.model.cron import Cron
from tape.playbooks.pools import POOL_RULE, is_pool
from tape.subscriptions.document.nodes import block, items, texts, word
from tape.subscriptions.document.problem_texts import SubscriptionTexts
from tape.subscriptions.document.spec import CONNECTION_KEYS, ROUTING, Subscription, SubscriptionSpec
from tape.subscriptions.document.spool_spec import BUCKET_SCHEMES
from tape.subscriptions.document.verify_rules import check_verify

KIND = "subscription"
PUSHING = ("webhook", "pubsub")
# Required keys of each pull source; of a tuple with several, one is enough.
NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "nats": (("stream",), ("consumer",), ("url", "auth")),
    "pubsub": (("subscription",),),
    "kafka": (("brokers", "auth"), ("topic",), ("group",)),
    "mqtt": (("url", "auth"), ("topic",), ("client_id",)),
    "sqs": (("queue",), ("region",)),
    "amqp": (("url", "auth"), ("queue",)),
}
CONNECTED = tuple(NEEDED)
_NEEDED_TEXTS = {
    "url": "{source} connection requires 'url' or an 'auth' credential alias with a 'url' field",
    "subscription": "subscription[pubsub] requires 'subscription' (projects/<p>/subscriptions/<s>)",
    "brokers": "subscription[kafka] requires 'brokers' (string or array of host:port)"
    " or an 'auth' credential alias with 'brokers'",
}


def parse_subscription(content: str, path: str = "") -> Subscription:
    """Parse a YAML text, with its path in the catalog if it is from there. Raises InvalidDocument with all problems."""
    document = Document(content, "Subscription")
    if document.kind != KIND:
        message = f"expected 'kind: Subscription', got {document.value.get('kind')!r}"
        raise InvalidDocument([Problem("kind", document.line_of(("kind",)), message)])
    found = read_subscription(document)
    return msgspec.structs.replace(found, path=path or found.path)


def read_subscription(document: Document) -> Subscription:
    """The subscription of a document. Raises InvalidDocument with all problems."""
    fields = document.fields("spec")
    spec: SubscriptionSpec | None = None
    if "spec" not in fields:
        document.wrong(("spec",), "kind: Subscription requires a 'spec' block")
    else:
        node = fields.at("spec")
        spec = read_block(node, SubscriptionSpec, SubscriptionTexts())
        if isinstance(node.value, dict):
            for rule in RULES:
                rule(node)
    document.check()
    assert spec is not None
    metadata = document.value["metadata"]
    name = metadata.get("name") or document.path.rpartition("/")[2]
    labels = document.labels if isinstance(document.labels, dict) else {}
    return Subscription(path=document.path, name=name, spec=spec, labels=labels)


def _mode_fits(spec: Node) -> None:
    given = spec.value
    source, mode = word(spec, "source"), word(spec, "mode")
    if mode == "pull" and source == "webhook":
        key_at(spec, "mode").wrong("does not go with source webhook, which delivers; use mode: push")
    if mode == "push" and source in CONNECTED and source not in PUSHING:
        key_at(spec, "mode").wrong(f"does not go with source {source}, which is fetched from; use mode: pull")
    if mode == "push" and "ingress" not in given:
        spec.document.wrong(
            (*spec.path, "ingress"),
            "subscription 'mode: push' requires an 'ingress' block (gateway_path + verify)",
        )
    if mode == "pull" and "ingress" in given:
        key_at(spec, "ingress").wrong("is for mode: push; this subscription fetches")
    if mode == "push":
        for key in ("activation", "cadence", "auth"):
            if key in given:
                key_at(spec, key).wrong("is for mode: pull; this subscription is delivered to")
        runtime = block(spec, "runtime")
        for key in ("batch", "timeout_ms"):
            if key in runtime.value:
                key_at(runtime, key).wrong("is for mode: pull; this subscription is delivered to")


def _connection_fits(spec: Node) -> None:
    given = spec.value
    source, mode = word(spec, "source"), word(spec, "mode")
    for key, sources in CONNECTION_KEYS.items():
        if key in given and source in (*CONNECTED, "webhook"):
            if source not in sources:
                key_at(spec, key).wrong(f"is a key of source {' and '.join(sources)}, not of {source}")
            elif mode == "push":
                key_at(spec, key).wrong("is for mode: pull; this subscription is delivered to")
    on_spark = word(block(spec, "runtime"), "target") == "spark"
    for keys in NEEDED.get(source, ()) if mode == "pull" else ():
        if on_spark and keys == ("consumer",):
            continue  # Spark reads by sequence; a consumer only sets the start
        if not any(key in given for key in keys):
            text = _NEEDED_TEXTS.get(keys[0], f"subscription[{source}] requires '{keys[0]}'")
            spec.document.wrong((*spec.path, keys[0]), text.replace("{source}", source.upper()))
    for key in ("subject", "exchange", "routing_key"):
        if key in given and given.get("create") is not True and not on_spark:
            key_at(spec, key).wrong("has no effect without create: true")
    _broker_fits(spec, source)


def _broker_fits(spec: Node, source: str) -> None:
    """Rules for the values of MQTT and AMQP."""
    given, url = spec.value, word(spec, "url")
    if source in PORTS and url and (problem := address_problem(url, PORTS[source])):
        key_at(spec, "url").wrong(problem)
    if source in PORTS and "tls" in given and url.startswith(f"{source}://"):
        key_at(spec, "tls").wrong(f"does not go with {source}://, which does not encrypt; use {source}s://")
    if source == "mqtt" and (topic := word(spec, "topic")) and (problem := filter_problem(topic)):
        key_at(spec, "topic").wrong(problem)
    if word(spec, "protocol") == "mqtt3.1.1" and "session_expiry_secs" in given:
        key_at(spec, "session_expiry_secs").wrong(
            "is for protocol: mqtt5; with MQTT 3.1.1 the broker's own setting says how long it keeps a session"
        )
    if "routing_key" in given and "exchange" not in given:
        key_at(spec, "routing_key").wrong("has no effect without 'exchange'")


def _cadence_fits(spec: Node) -> None:
    given = spec.value
    is_scheduled = word(spec, "activation") == "scheduled"
    if is_scheduled and "cadence" not in given:
        spec.document.wrong(
            (*spec.path, "cadence"), "subscription 'activation: scheduled' requires a 'cadence', like '*/5 * * * *'"
        )
    cadence = key_at(spec, "cadence")
    if "cadence" in given and not is_scheduled and given.get("mode") == "pull":
        cadence.wrong("has no effect without activation: scheduled")
    if isinstance(cadence.value, str) and cadence.value:
        try:
            Cron.parse(cadence.value)
        except InvalidCadence as error:
            cadence.wrong(f"subscription 'cadence' is not a cron expression: {error}")


def _limits_agree(spec: Node) -> None:
    limits, runtime = block(spec, "limits").value, block(spec, "runtime")
    one, other = limits.get("max_in_flight"), runtime.value.get("max_in_flight")
    if one is not None and other is not None and one != other:
        key_at(runtime, "max_in_flight").wrong(f"differs from limits.max_in_flight, which is {one}; keep one of them")


def _directives_constrain(spec: Node) -> None:
    for rule in items(block(spec, "headers"), "directives"):
        header, controls = rule.value.get("header"), word(rule, "controls")
        if controls in ROUTING and not rule.value.get("allowed"):
            rule.document.wrong(
                (*rule.path, "allowed"),
                f"directive header '{header}' controls '{controls}' but declares no non-empty 'allowed:' value list —"
                " a routing directive must constrain its targets",
            )
        for pool in texts(rule, "allowed") if controls == "dispatch.execution_pool" else ():
            if not is_pool(pool.value):
                pool.wrong(f"is not a pool; it {POOL_RULE}")
        if controls == "priority" and not rule.value.get("map"):
            rule.document.wrong(
                (*rule.path, "map"),
                f"directive header '{header}' controls 'priority' but declares no non-empty 'map:' (value → pool) —"
                " a priority directive must map to allowed pools",
            )
        if controls == "priority" and "allowed" in rule.value:
            key_at(rule, "allowed").wrong("is not for controls: priority, whose 'map' says which values count")
        if controls != "priority" and "map" in rule.value:
            key_at(rule, "map").wrong("is for controls: priority alone")


def _ack_fits(spec: Node) -> None:
    dispatch = block(spec, "dispatch")
    if word(dispatch, "ack", "on_accept") != "on_completion":
        if "on_failure" in dispatch.value:
            key_at(dispatch, "on_failure").wrong("has no effect without dispatch.ack: on_completion")
        return
    if word(spec, "mode") == "push":
        key_at(dispatch, "ack").wrong(
            "does not go with mode: push: a sender waits seconds for its answer, a run can take hours; deliveries are"
            " accepted when they are durable. Use on_accept"
        )
    if word(dispatch, "on_failure") == "nack" and block(spec, "dedup").value.get("enabled") is True:
        key_at(dispatch, "on_failure").wrong(
            "does not go with dedup.enabled: a redelivered message would be a duplicate of its failed run; use"
            " dead_letter, or begin failed runs again with `tape runs retry`"
        )


def _spool_fits(spec: Node) -> None:
    spool = block(spec, "spool")
    given = spool.value
    drain = block(spool, "drain")
    if given.get("ordering") == "global" and drain.value.get("on_recovery") == "interleave":
        key_at(drain, "on_recovery").wrong(
            "subscription 'spool.drain.on_recovery: interleave' is unsafe with 'ordering: global';"
            " use 'ordered_then_live' or 'per_key'/'none'"
        )
    _downstreams_fit(spool)
    if word(spool, "mode") not in ("buffer_and_ack", "hybrid"):
        return
    backend = word(spool, "backend", "nats_object")
    location_key = "path" if backend == "local_disk" else "bucket"
    if backend in ("nats_object", "local_disk", "gcs", "s3", "azure") and location_key not in given:
        spool.document.wrong(
            (*spool.path, location_key),
            f"subscription 'spool.backend' '{backend}' requires a non-empty '{location_key}'",
        )
    bucket, known = word(spool, "bucket"), BUCKET_SCHEMES.get(backend, "")
    if backend != "local_disk" and "://" in bucket and not (known and bucket.startswith(known)):
        remedy = f"begins with {known}" if known else "has only a name"
        key_at(spool, "bucket").wrong(f"does not go with spool.backend {backend!r}, whose bucket {remedy}")


def _downstreams_fit(spool: Node) -> None:
    seen: set[Any] = set()
    for downstream in items(block(spool, "circuit"), "downstream"):
        name = downstream.value.get("name")
        if isinstance(name, str):
            if name in seen:
                key_at(downstream, "name").wrong(f"spool.circuit.downstream name '{name}' is duplicated")
            seen.add(name)
        probe = word(downstream, "type", word(downstream, "probe", "http"))
        if probe in ("http", "tcp", "nats") and "target" not in downstream.value:
            text = f"spool.circuit.downstream '{name}' probe '{probe}' requires a 'target'"
            downstream.document.wrong((*downstream.path, "target"), text)


# Settings without effect, or impossible, with runtime.target spark, and the remedy.
_NOT_ON_SPARK = {
    ("create",): "reading by sequence needs no durable consumer; leave it out",
    ("activation",): "let your scheduler start `tape pipeline run subscription PATH`, which ends when all is read",
    ("scaling",): "the cores of the executors decide how much is read at once; leave it out",
    ("runtime", "timeout_ms"): "a micro-batch reads what is there and waits for nothing; leave it out",
    ("runtime", "concurrency"): "the cores of the executors decide how much is done at once; leave it out",
    ("runtime", "max_instances"): "Spark's own settings say how many executors there are; leave it out",
    ("dispatch", "batch_dispatch"): "messages are always handed over in batches; leave it out, or say true",
    ("dispatch", "ack"): "nothing is acknowledged: offsets are stored with the runs. Leave it out",
    ("dispatch", "batch"): "a run for each record is begun, in the order of the log; leave it out",
    ("spool", "mode"): "nothing is acknowledged, so the source is the buffer: during an outage the stream waits"
    " at its checkpoint. Use off",
}
_HARMLESS_ON_SPARK: dict[tuple[str, ...], Any] = {
    ("activation",): "continuous",
    ("dispatch", "batch_dispatch"): True,
    ("dispatch", "ack"): "on_accept",
    ("spool", "mode"): "off",
}


def _spark_fits(spec: Node) -> None:
    target = block(spec, "runtime")
    if word(target, "target") != "spark":
        return
    source = word(spec, "source")
    if source and source not in LOGS:
        key_at(target, "target").wrong(
            f"does not go with source {source}, whose messages have no offsets to be read by again; use kafka or nats,"
            " or another target" + (" (push deliveries come to the server or a gateway)" if source == "webhook" else "")
        )
    for path, remedy in _NOT_ON_SPARK.items():
        node = block(spec, path[0]) if len(path) > 1 else spec
        key = path[-1]
        if key in node.value and node.value[key] != _HARMLESS_ON_SPARK.get(path, _NOT_ON_SPARK):
            key_at(node, key).wrong(f"does not go with runtime.target spark: {remedy}")
    spool = block(spec, "spool")
    for key in spool.value if spool.value.get("mode", "off") == "off" else ():
        if key not in ("mode", "ordering", "circuit"):
            key_at(spool, key).wrong("has no effect with runtime.target spark, which has no spool; leave it out")


def _scaling_is_possible(spec: Node) -> None:
    keda = block(block(spec, "scaling"), "keda")
    least, most = keda.value.get("min", 1), keda.value.get("max", 10)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        key_at(keda, "min").wrong(f"is more than scaling.keda.max, which is {most}")


def _batch_fits(spec: Node) -> None:
    dispatch = block(spec, "dispatch")
    if dispatch.value.get("batch") is None:
        return
    batch = block(dispatch, "batch")
    if word(spec, "mode") == "push":
        key_at(dispatch, "batch").wrong(
            "is for mode: pull; a delivery is answered when it is durable, and would have to wait for others"
        )
    for key, why in (
        ("batch_dispatch", "the messages of a batch are one request already"),
        ("batch_max", "use dispatch.batch.max for the messages of one run"),
        ("payload_from", "the payload of a batch is the list `messages`"),
    ):
        if key in dispatch.value:
            key_at(dispatch, key).wrong(f"does not go with dispatch.batch: {why}; leave it out")
    most = batch.value.get("max", 100)
    for name in ("limits", "runtime"):
        limit = block(spec, name).value.get("max_in_flight")
        if isinstance(limit, int) and isinstance(most, int) and limit < most:
            key_at(block(spec, name), "max_in_flight").wrong(
                f"is less than dispatch.batch.max, which is {most}: no batch could be full"
            )
    if "lanes" in batch.value and word(block(spec, "spool"), "ordering", "per_key") != "per_key":
        key_at(batch, "lanes").wrong("has no effect without spool.ordering: per_key")


RULES: tuple[Callable[[Node], None], ...] = (
    _mode_fits,
    _connection_fits,
    _cadence_fits,
    _limits_agree,
    _directives_constrain,
    check_verify,
    _ack_fits,
    _spool_fits,
    _spark_fits,
    _batch_fits,
    _scaling_is_possible,
)
