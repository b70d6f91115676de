"""What rendered objects are validated against.

Kubernetes: its published OpenAPI schemas (kubernetes-validate). KEDA and Cloud Run: schemas of our own with the facts
of their documentation that are used here, no more. SCALERS is such a table too: KEDA's definitions have the metadata
of a scaler as free text. test_published_schemas.py validates the same objects against models that were generated from
the custom resource definitions of KEDA 2.16 and Knative 1.17; it installs them and is a proof for that reason.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jsonschema
import kubernetes_validate

CORE = (
    "CronJob",
    "Deployment",
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "Service",
    "ServiceAccount",
    "StatefulSet",
)
# What Kubernetes checks beyond its schema.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# What Google Cloud accepts: https://cloud.google.com/run/docs/configuring/services/labels
GOOGLE_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
GOOGLE_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
CLOUD_RUN_NAME = re.compile(r"[a-z]([-a-z0-9]{0,47}[a-z0-9])?")


class ScalerFacts(NamedTuple):
    """A scaler as KEDA documents it: needed and possible metadata, possible parameters of its authentication."""

    needed: set[str]
    possible: set[str]
    authentication: frozenset[str] | set[str] = frozenset()
    identities: frozenset[str] | set[str] = frozenset()


_KAFKA_AUTHENTICATION = {"sasl", "username", "password", "tls", "ca", "cert", "key", "keyPassword"}
_KAFKA = {
    *("topic", "lagThreshold", "activationLagThreshold", "offsetResetPolicy", "allowIdleConsumers", "sasl", "tls"),
    *("scaleToZeroOnInvalidOffset", "excludePersistentLag", "limitToPartitionsWithLag", "partitionLimitation"),
}
SCALERS = {
    "nats-jetstream": ScalerFacts(
        {"natsServerMonitoringEndpoint", "account", "stream", "consumer"},
        {"lagThreshold", "activationLagThreshold", "useHttps"},
        {"natsServerMonitoringEndpoint", "account"},
    ),
    "kafka": ScalerFacts({"bootstrapServers", "consumerGroup"}, _KAFKA | {"version"}, _KAFKA_AUTHENTICATION),
    "apache-kafka": ScalerFacts({"bootstrapServers", "consumerGroup"}, _KAFKA, _KAFKA_AUTHENTICATION),
    "gcp-pubsub": ScalerFacts(
        {"subscriptionName"},
        {"mode", "value", "activationValue", "aggregation", "timeHorizon", "valueIfNull", "credentialsFromEnv"},
        {"GoogleApplicationCredentials"},
        {"gcp"},
    ),
    "aws-sqs-queue": ScalerFacts(
        {"queueURL", "awsRegion"},
        {"queueLength", "activationQueueLength", "awsEndpoint", "scaleOnInFlight", "scaleOnDelayed", "identityOwner"},
        {"awsAccessKeyID", "awsSecretAccessKey", "awsSessionToken", "awsRoleArn"},
        {"aws"},
    ),
    "rabbitmq": ScalerFacts(
        {"queueName", "mode", "value"},
        {"protocol", "vhostName", "activationValue", "hostFromEnv", "unsafeSsl", "timeout", "excludeUnacknowledged"},
        {"host", "username", "password", "tls", "ca", "cert", "key"},
    ),
    "metrics-api": ScalerFacts(
        {"url", "valueLocation", "targetValue"},
        {"format", "activationTargetValue", "authMode", "unsafeSsl"},
        {"token", "apiKey", "username", "password", "ca", "cert", "key"},
    ),
}


TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}


def record(needed: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object with these fields and, if they are there, these; no other."""
    known = {"type": "object", "additionalProperties": False, "required": [*needed]}
    return known | {"properties": needed | more}


def document(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """An object of a version and kind."""
    metadata = record({"name": TEXT}, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
    return record({"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": metadata, "spec": spec})


def listed(item: dict[str, Any], least: int = 1) -> dict[str, Any]:
    """A list of such items."""
    return {"type": "array", "items": item, "minItems": least}


_KEDA = "keda.sh/v1alpha1"
_SECRET = record({"parameter": TEXT, "name": TEXT, "key": TEXT})
_AUTHENTICATION = record({}, secretTargetRef=listed(_SECRET), podIdentity=record({"provider": TEXT}))
KEDA = {
    # https://keda.sh/docs/2.16/reference/scaledobject-spec/
    "ScaledObject": document(
        _KEDA,
        "ScaledObject",
        record(
            {
                "scaleTargetRef": record({"name": TEXT}, apiVersion=TEXT, kind=TEXT),
                "triggers": listed(
                    record(
                        {"type": TEXT, "metadata": TEXTS},
                        authenticationRef=record({"name": TEXT}, kind={"const": "ClusterTriggerAuthentication"}),
                    )
                ),
            },
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
        ),
    ),
    # https://keda.sh/docs/2.16/concepts/authentication/
    "TriggerAuthentication": document(_KEDA, "TriggerAuthentication", _AUTHENTICATION),
}
_PROBE = record(
    {"httpGet": record({"path": TEXT, "port": COUNT})},
    periodSeconds=COUNT,
    timeoutSeconds=COUNT,
    failureThreshold=COUNT,
)
_VARIABLE = record(
    {"name": TEXT}, value={"type": "string"}, valueFrom=record({"secretKeyRef": record({"name": TEXT, "key": TEXT})})
)
_CONTAINER = record(
    {"image": TEXT},
    command=listed(TEXT),
    args=listed(TEXT),
    env=listed(_VARIABLE),
    resources=record({"limits": TEXTS}),
    ports=listed(record({"name": {"enum": ["http1", "h2c"]}, "containerPort": COUNT})),
    startupProbe=_PROBE,
    livenessProbe=_PROBE,
)
_TEMPLATE = record(
    {"spec": record({"containers": listed(_CONTAINER)}, serviceAccountName=TEXT)},
)
_SERVICE_SPEC = record(
    {"containers": listed(_CONTAINER)}, serviceAccountName=TEXT, containerConcurrency=COUNT, timeoutSeconds=COUNT
)
CLOUD_RUN = {
    # https://cloud.google.com/run/docs/reference/yaml/v1
    "Service": document(
        "serving.knative.dev/v1",
        "Service",
        record({"template": record({"spec": _SERVICE_SPEC}, metadata=record({}, labels=TEXTS, annotations=TEXTS))}),
    ),
    "WorkerPool": document("run.googleapis.com/v1", "WorkerPool", record({"template": _TEMPLATE})),
}


def check(objects: list[dict[str, Any]]) -> None:
    """Validate what `kubectl apply` would send: every object, and that they fit each other."""
    seen = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(seen)) == len(seen), "an object is rendered twice"
    for each in objects:
        assert NAME.fullmatch(each["metadata"]["name"]), each["metadata"]["name"]
        for found in _labels(each):
            assert all(LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) for key, value in found.items()), found
        if each["kind"] in CORE:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
        else:
            jsonschema.validate(each, KEDA[each["kind"]])
        if each["kind"] in ("StatefulSet", "CronJob"):
            assert len(each["metadata"]["name"]) <= 52, "Kubernetes appends 11 characters to the names of pods and jobs"
    for each in (each for each in objects if each["kind"] == "ScaledObject"):
        _check_trigger(each, objects)


def check_cloud_run(each: dict[str, Any]) -> None:
    """Validate an object of Cloud Run, and its names and labels by Google's rules."""
    assert CLOUD_RUN_NAME.fullmatch(each["metadata"]["name"])
    for found in _labels(each):
        assert all(
            GOOGLE_LABEL_KEY.fullmatch(key) and GOOGLE_LABEL_VALUE.fullmatch(value) for key, value in found.items()
        ), found
    jsonschema.validate(each, CLOUD_RUN[each["kind"]])


def _check_trigger(scaled: dict[str, Any], objects: list[dict[str, Any]]) -> None:
    target = scaled["spec"]["scaleTargetRef"]
    assert any((o["kind"], o["metadata"]["name"]) == (target["kind"], target["name"]) for o in objects)
    (trigger,) = scaled["spec"]["triggers"]
    facts = SCALERS[trigger["type"]]
    given = set(trigger["metadata"])
    assert facts.needed <= given <= facts.needed | facts.possible, trigger
    if (reference := trigger.get("authenticationRef")) is None:
        return
    (authentication,) = (
        each
        for each in objects
        if each["kind"] == reference.get("kind", "TriggerAuthentication")
        and each["metadata"]["name"] == reference["name"]
    )
    parameters = {each["parameter"] for each in authentication["spec"].get("secretTargetRef", ())}
    identity = authentication["spec"].get("podIdentity", {}).get("provider")
    assert bool(parameters) != bool(identity)
    assert parameters <= facts.authentication
    assert identity is None or identity in facts.identities


def _labels(value: Any) -> list[dict[str, str]]:
    """All labels and selectors in an object."""
    if isinstance(value, list):
        return [found for each in value for found in _labels(each)]
    if not isinstance(value, dict):
        return []
    own = [value[key] for key in ("labels", "matchLabels") if key in value]
    return own + [found for each in value.values() for found in _labels(each)]
