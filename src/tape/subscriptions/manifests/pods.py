"""Pods of runtimes, gateways and workers: containers, volumes and security settings."""

from __future__ import annotations

from typing import Any

from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.manifests.deployment import (
    HOME,
    PORT,
    TOKEN_KEY,
    USER,
    DeploymentSettings,
    command_of,
    environment_of,
    probe,
    spool_folder,
    worker_command,
)
from tape.subscriptions.manifests.scalers import TLS_KEYS

# Requests to the server take at most 30 s, a worker drains for 30 s; the rest is for a slow disk or broker.
GRACE_S = 60
SPOOL_VOLUME = "spool"
DEFAULT_SERVICE_ACCOUNT = "tape-subscription"
_GIBIBYTE = 1 << 30

Json = dict[str, Any]


def runtime_pod(subscription: Subscription, settings: DeploymentSettings) -> Json:
    """The pod of the runtime, the drain or the gateway. The volume of a spool is the workload's."""
    is_scheduled = subscription.spec.activation == "scheduled"
    component = component_of(subscription)
    container = _container(component, settings, command_of(subscription, settings))
    container["env"] += _plain(environment_of(subscription, settings))
    if not is_scheduled:
        container["ports"] = [{"name": "http", "containerPort": PORT}]
        # A cold start imports for seconds. An outage is no reason to restart: liveness does not look at it.
        container["startupProbe"] = probe("/livez", 2, 60)
        container["livenessProbe"] = probe("/livez", 10, 6)
        container["readinessProbe"] = probe("/readyz", 5, 2)
    pod = _pod(subscription, settings, container)
    if folder := spool_folder(subscription):
        container["volumeMounts"].append({"name": SPOOL_VOLUME, "mountPath": folder})
    _mount_certificates(subscription, settings, pod, container)
    return pod


def worker_pod(subscription: Subscription, settings: DeploymentSettings, pool: str) -> Json:
    """The pod of a pool's worker."""
    container = _container("worker", settings, worker_command(pool, settings))
    plain = {"HOME": "/tmp"} | settings.environment  # noqa: S108  # the only folder that is writable
    container["env"] += _plain(plain)
    return _pod(subscription, settings, container)


def component_of(subscription: Subscription) -> str:
    """What the main container of a subscription is."""
    if subscription.spec.mode == "push":
        return "gateway"
    return "drain" if subscription.spec.activation == "scheduled" else "runtime"


def volume_claim(subscription: Subscription, settings: DeploymentSettings) -> Json:
    """The claim of a spool's volume: capacity for `retention.max_bytes`, and a quarter more for dead letters."""
    size = -(-subscription.spec.spool.retention.max_bytes * 5 // 4 // _GIBIBYTE)
    claim: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{max(size, 1)}Gi"}}}
    if settings.storage_class:
        claim["storageClassName"] = settings.storage_class
    return claim


def _pod(subscription: Subscription, settings: DeploymentSettings, container: Json) -> Json:
    drains_s = subscription.spec.spool.circuit.probe_timeout_ms // 1_000
    return {
        "serviceAccountName": settings.service_account or DEFAULT_SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        # On SIGTERM a runtime finishes what it has fetched and a worker its runs.
        "terminationGracePeriodSeconds": max(GRACE_S, drains_s + GRACE_S // 2),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            # Makes a volume writable for the user.
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}],
    }


def _container(name: str, settings: DeploymentSettings, command: list[str]) -> Json:
    token = ("TAPE_INTERNAL_API_TOKEN", (settings.token_secret, TOKEN_KEY))
    secrets = dict([token]) | settings.secret_environment
    return {
        "name": name,
        "image": settings.image,
        "command": command,
        "workingDir": str(HOME),
        "env": [
            {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for variable, (secret, key) in secrets.items()
        ],
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def _plain(variables: dict[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _mount_certificates(subscription: Subscription, settings: DeploymentSettings, pod: Json, container: Json) -> None:
    """Mount the certificate files that the document names, from a secret, where it says that they are."""
    tls = subscription.spec.tls
    files = {} if tls is None else {key: path for name, key in TLS_KEYS.items() if (path := getattr(tls, name))}
    if not files:
        return
    items = [{"key": key, "path": key} for key in files]
    secret = {"secretName": settings.source_secret_of(subscription), "items": items, "defaultMode": 0o440}
    pod["volumes"].append({"name": "certificates", "secret": secret})
    container["volumeMounts"] += [
        {"name": "certificates", "mountPath": str(HOME / path), "subPath": key, "readOnly": True}
        for key, path in files.items()
    ]
