"""KEDA scalers of the sources: each entry of SCALERS makes the trigger of one source and the authentication it needs.

Types, metadata and parameters are those of KEDA's documentation (2.16 to 2.19).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tape.errors import NotDeployable
from tape.subscriptions.document.spec import KedaSpec, Subscription

# Parameter of KEDA to key of the secret.
SecretKeys = dict[str, str]
_SASL = {"PLAIN": "plaintext", "SCRAM-SHA-256": "scram_sha256", "SCRAM-SHA-512": "scram_sha512"}
TLS_KEYS = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}


class Scaler(msgspec.Struct, frozen=True, kw_only=True):
    """A KEDA trigger: its type, its metadata, and the secret keys or the pod identity that authenticate it."""

    type: str
    metadata: dict[str, str]
    secret_keys: SecretKeys = {}
    pod_identity: str = ""


Make = Callable[[Mapping[str, Any], str], Scaler]


def _nats(spec: Mapping[str, Any], threshold: str) -> Scaler:
    # The scaler reads the monitoring port (8222), which is no secret and needs no login.
    first = str(spec.get("url", "")).partition(",")[0].strip()
    host = urlsplit(first if "://" in first else f"nats://{first}").hostname or ""
    endpoint = {"natsServerMonitoringEndpoint": f"{f'[{host}]' if ':' in host else host}:8222"} if host else {}
    return Scaler(
        type="nats-jetstream",
        metadata={
            **endpoint,
            "account": "$G",
            "stream": spec["stream"],
            "consumer": spec["consumer"],
            "lagThreshold": threshold,
        },
    )


def _kafka(spec: Mapping[str, Any], threshold: str) -> Scaler:
    # `kafka`, KEDA's stable scaler. `apache-kafka` is documented as experimental; scaling.keda.trigger chooses it.
    protocol = spec.get("security_protocol", "plaintext")
    tls = spec.get("tls") or {}
    metadata = {
        **({"bootstrapServers": ",".join(spec["brokers"])} if spec.get("brokers") else {}),
        "consumerGroup": spec["group"],
        "topic": spec["topic"],
        "lagThreshold": threshold,
        # A group without offsets begins with the oldest record: all of it is lag.
        "offsetResetPolicy": "earliest",
    }
    keys: SecretKeys = {}
    if protocol.startswith("sasl"):
        metadata["sasl"] = _SASL[spec.get("sasl_mechanism", "PLAIN")]
        keys |= {"username": "username", "password": "password"}
    if protocol.endswith("ssl"):
        metadata["tls"] = "enable"
        keys |= {name: TLS_KEYS[name] for name in TLS_KEYS if tls.get(name)}
    return Scaler(type="kafka", metadata=metadata, secret_keys=keys)


def _pubsub(spec: Mapping[str, Any], threshold: str) -> Scaler:
    has_key = bool(spec.get("auth"))
    return Scaler(
        type="gcp-pubsub",
        metadata={"subscriptionName": spec["subscription"], "mode": "SubscriptionSize", "value": threshold},
        secret_keys={"GoogleApplicationCredentials": "key.json"} if has_key else {},
        pod_identity="" if has_key else "gcp",
    )


def _sqs(spec: Mapping[str, Any], threshold: str) -> Scaler:
    queue, region, account = spec["queue"], spec["region"], spec.get("account", "")
    has_key = bool(spec.get("user") or spec.get("auth"))
    endpoint = {"awsEndpoint": spec["endpoint"]} if spec.get("endpoint") else {}
    return Scaler(
        type="aws-sqs-queue",
        metadata={
            # The scaler accepts the name alone, for a queue of the account that it is authenticated for.
            "queueURL": f"https://sqs.{region}.amazonaws.com/{account}/{queue}" if account else queue,
            "awsRegion": region,
            "queueLength": threshold,
            **endpoint,
        },
        secret_keys={"awsAccessKeyID": "access-key-id", "awsSecretAccessKey": "secret-access-key"} if has_key else {},
        pod_identity="" if has_key else "aws",
    )


def _amqp(spec: Mapping[str, Any], threshold: str) -> Scaler:
    # The address has the login, so that it is a secret as a whole.
    vhost = {"vhostName": spec["vhost"]} if spec.get("vhost") else {}
    return Scaler(
        type="rabbitmq",
        metadata={"protocol": "amqp", "queueName": spec["queue"], "mode": "QueueLength", "value": threshold, **vhost},
        secret_keys={"host": "host"},
    )


# A source that is not here is not scaled: it has as many replicas as `scaling.keda.min`.
SCALERS: dict[str, Make] = {"nats": _nats, "kafka": _kafka, "pubsub": _pubsub, "sqs": _sqs, "amqp": _amqp}
# Sources with one reader at a time, and what they have one of.
SINGLE = {"mqtt": "session: a second client of the same client_id ends the first"}
# Types that take the same metadata as the usual one of their source.
_ALIKE = {"kafka": ("apache-kafka",)}
_NEEDED = {
    "nats-jetstream": ("natsServerMonitoringEndpoint",),
    "kafka": ("bootstrapServers",),
    "apache-kafka": ("bootstrapServers",),
}


def source_scaler(subscription: Subscription, keda: KedaSpec) -> Scaler | None:
    """The scaler of a subscription's source; None for one that has none. Raises NotDeployable if a setting is missing.

    `scaling.keda.trigger` and `scaling.keda.metadata` replace what is known of the source.
    """
    spec = subscription.spec
    make = SCALERS.get(spec.source)
    if make is None:
        return Scaler(type=keda.trigger, metadata=keda.metadata) if keda.trigger and keda.metadata else None
    known = make(msgspec.to_builtins(spec), str(keda.lag_threshold))
    if keda.trigger and keda.trigger not in (known.type, *_ALIKE.get(spec.source, ())):
        if not keda.metadata:
            raise NotDeployable(
                f"{subscription.path}: scaling.keda.trigger is {keda.trigger!r}; a {spec.source} source is scaled by"
                f" {known.type!r}. Leave it out, or give the metadata of that trigger in scaling.keda.metadata."
            )
        return Scaler(type=keda.trigger, metadata=keda.metadata)
    found = msgspec.structs.replace(
        known, type=keda.trigger or known.type, metadata={**known.metadata, **keda.metadata}
    )
    for name in _NEEDED.get(found.type, ()):
        if name not in found.metadata:
            raise NotDeployable(
                f"{subscription.path}: the KEDA trigger {found.type!r} needs {name!r}, which the document does not"
                f" have, because the address is in the credential {spec.auth!r}. Set scaling.keda.metadata.{name}."
            )
    return found


def pool_scaler(server: str, pool: str, threshold: int) -> Scaler:
    """The scaler of a pool's workers: the backlog that the server reports."""
    return Scaler(
        type="metrics-api",
        metadata={
            "url": f"{server}/api/pools/{pool}",
            "format": "json",
            "valueLocation": "backlog",
            "targetValue": str(threshold),
            "authMode": "bearer",
        },
    )
