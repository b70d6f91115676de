"""Kubernetes manifests: a Deployment scaled on the source's backlog, and a worker pool scaled on its tasks."""

from __future__ import annotations

from typing import Any

from tape.subscriptions.document.spec import KedaSpec, Subscription, SubscriptionSpec
from tape.subscriptions.manifests.deployment import DeploymentSettings, command_of, labels_of, name_of, probe


def documents(subscription: Subscription, settings: DeploymentSettings) -> list[dict[str, Any]]:
    """Deployment and ScaledObject of the runtime (or of the gateway, with its Service), then those of the pool."""
    keda = subscription.spec.scaling.keda if subscription.spec.scaling else KedaSpec()
    found = [_deployment(subscription, settings, keda)]
    if subscription.spec.mode == "push":
        found.append(_service(subscription, settings))
    trigger = _backlog(subscription.spec, keda)
    if trigger is not None:
        # A pull runtime is never scaled to zero: it has to consume from its source.
        found.append(_scaled(name_of(subscription), settings, max(1, keda.min), keda.max, trigger))
    pool = subscription.spec.dispatch.execution_pool or "shared"
    found.append(_workers(subscription, settings, pool))
    found.append(_scaled(name_of(subscription, "pool", pool), settings, 0, keda.max, _tasks(settings, pool, keda)))
    return found


def _deployment(subscription: Subscription, settings: DeploymentSettings, keda: KedaSpec) -> dict[str, Any]:
    is_push = subscription.spec.mode == "push"
    component = "gateway" if is_push else "runtime"
    container = {
        **_container(component, settings, command_of(subscription, settings)),
        "ports": [{"name": "http", "containerPort": 8080}],
        "livenessProbe": probe("/livez"),
        "readinessProbe": probe("/readyz"),
    }
    # A rollout must not run two consumers of a source at a time.
    strategy = "RollingUpdate" if is_push else "Recreate"
    return _deployment_of(
        subscription, settings, name_of(subscription), component, container, strategy, max(1, keda.min)
    )


def _workers(subscription: Subscription, settings: DeploymentSettings, pool: str) -> dict[str, Any]:
    command = ["tape", "worker", "--pool", pool, "--url", settings.grpc_url]
    container = _container("worker", settings, command)
    name = name_of(subscription, "pool", pool)
    return _deployment_of(subscription, settings, name, f"pool-{pool}", container, "RollingUpdate", 1)


def _deployment_of(
    subscription: Subscription,
    settings: DeploymentSettings,
    name: str,
    component: str,
    container: dict[str, Any],
    strategy: str,
    replicas: int,
) -> dict[str, Any]:
    labels = labels_of(subscription, component)
    pod = {
        "serviceAccountName": settings.service_account,
        # Time to finish messages in flight: the runtime drains on SIGTERM.
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": strategy},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _container(name: str, settings: DeploymentSettings, command: list[str]) -> dict[str, Any]:
    token = {"secretKeyRef": {"name": settings.token_secret, "key": "token"}}
    return {
        "name": name,
        "image": settings.image,
        "command": command,
        "env": [{"name": "TAPE_INTERNAL_API_TOKEN", "valueFrom": token}],
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _service(subscription: Subscription, settings: DeploymentSettings) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name_of(subscription), "namespace": settings.namespace},
        "spec": {
            "selector": labels_of(subscription, "gateway"),
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    }


def _scaled(name: str, settings: DeploymentSettings, least: int, most: int, trigger: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": settings.namespace},
        "spec": {
            "scaleTargetRef": {"name": name},
            "minReplicaCount": least,
            "maxReplicaCount": max(least, most),
            "triggers": [trigger],
        },
    }


def _backlog(spec: SubscriptionSpec, keda: KedaSpec) -> dict[str, Any] | None:
    """The KEDA trigger on the source's backlog. None for push: the gateway scales like a web server."""
    threshold = str(keda.lag_threshold)
    match spec.source:
        case "nats" if spec.mode == "pull":
            host = spec.url.rpartition("://")[2].rpartition("@")[2].partition(":")[0] or "nats"
            metadata = {
                "natsServerMonitoringEndpoint": f"{host}:8222",
                "account": "$G",
                "stream": spec.stream,
                "consumer": spec.consumer,
                "lagThreshold": threshold,
            }
            return {"type": keda.trigger or "nats-jetstream", "metadata": metadata}
        case "kafka" if spec.mode == "pull":
            metadata = {
                "bootstrapServers": ",".join(spec.brokers),
                "consumerGroup": spec.group,
                "topic": spec.topic,
                "lagThreshold": threshold,
            }
            return {"type": keda.trigger or "kafka", "metadata": metadata}
        case "pubsub" if spec.mode == "pull":
            metadata = {"subscriptionName": spec.subscription, "mode": "SubscriptionSize", "value": threshold}
            return {"type": keda.trigger or "gcp-pubsub", "metadata": metadata}
        case _:
            return None


def _tasks(settings: DeploymentSettings, pool: str, keda: KedaSpec) -> dict[str, Any]:
    metadata = {
        "url": f"{settings.server_url}/api/pools/{pool}",
        "valueLocation": "waiting",
        "targetValue": str(keda.lag_threshold),
        "authMode": "bearer",
    }
    return {"type": "metrics-api", "metadata": metadata, "authenticationRef": {"name": f"{settings.token_secret}-auth"}}
