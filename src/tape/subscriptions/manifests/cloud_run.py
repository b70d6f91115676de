"""Cloud Run manifests: a service for the runtime or gateway, and a worker pool for each pool.

A container there needs only the server's HTTPS address and a bearer token.
"""

from __future__ import annotations

from typing import Any

from tape.errors import NotDeployable
from tape.subscriptions.document.spec import KedaSpec, Subscription
from tape.subscriptions.manifests.deployment import (
    PORT,
    DeploymentSettings,
    command_of,
    environment_of,
    probe,
    spool_folder,
    worker_command,
)
from tape.subscriptions.manifests.names import google_labels, object_name
from tape.subscriptions.manifests.pods import component_of
from tape.subscriptions.manifests.pools import pools_of

Json = dict[str, Any]


def documents(subscription: Subscription, settings: DeploymentSettings) -> list[Json]:
    """A service for `gcloud run services replace`; with a gRPC address, pools for `gcloud run worker-pools replace`."""
    _check(subscription, settings)
    found = [_service(subscription, settings)]
    if settings.grpc_url:
        found += [_worker_pool(subscription, settings, pool) for pool in pools_of(subscription)]
    return found


def _check(subscription: Subscription, settings: DeploymentSettings) -> None:
    path, spec = subscription.path, subscription.spec
    if spec.spool.mode != "off" and spec.spool.backend == "local_disk":
        raise NotDeployable(
            f"{path}: spool.backend local_disk does not go with Cloud Run, whose instances lose their disk when they"
            " stop. Use spool.backend gcs with a bucket, or --target kubernetes, which has volumes."
        )
    if spec.activation == "scheduled":
        raise NotDeployable(
            f"{path}: activation scheduled does not go with a service of Cloud Run, which has no clock. Activate it,"
            " and the server drains it on its cadence; or use --target kubernetes, which makes it a CronJob."
        )
    if not (spec.runtime.server_url or settings.server_url):
        raise NotDeployable(
            f"{path}: Cloud Run does not reach the names of a cluster. Set runtime.server_url, or give --server-url"
            " with the https:// address of the server."
        )
    if settings.service_account and "@" not in settings.service_account:
        raise NotDeployable(
            f"--service-account {settings.service_account!r} must be an e-mail address on Cloud Run, like"
            " tape@PROJECT.iam.gserviceaccount.com."
        )
    spool_folder(subscription)


def _service(subscription: Subscription, settings: DeploymentSettings) -> Json:
    runtime = subscription.spec.runtime
    is_push = subscription.spec.mode == "push"
    keda = subscription.spec.scaling.keda if subscription.spec.scaling else KedaSpec()
    # A pull source needs a running instance; a push delivery starts one.
    least = 0 if is_push else max(1, keda.min)
    most = max(least, runtime.max_instances or keda.max)
    if not is_push and subscription.spec.spool.ordering == "global":
        least = most = 1
    name, component = object_name(subscription.path), component_of(subscription)
    container = _container(settings, command_of(subscription, settings), environment_of(subscription, settings))
    container |= {
        "ports": [{"name": "http1", "containerPort": PORT}],
        # An instance that waits for its source or server is well: it goes on by itself.
        "startupProbe": probe("/livez", 5, 24),
        "livenessProbe": probe("/livez", 10, 6),
    }
    annotations = {
        "autoscaling.knative.dev/minScale": str(least),
        "autoscaling.knative.dev/maxScale": str(most),
        # A pull runtime works between requests, so the CPU must not be throttled.
        "run.googleapis.com/cpu-throttling": "true" if is_push else "false",
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "labels": google_labels(name, component),
            "annotations": {"run.googleapis.com/ingress": "all" if is_push else "internal"},
        },
        "spec": {
            "template": {
                "metadata": {"labels": google_labels(name, component), "annotations": annotations},
                "spec": {
                    "containerConcurrency": runtime.concurrency or 80,
                    "timeoutSeconds": 60,
                    **_identity(settings),
                    "containers": [container],
                },
            }
        },
    }


def _worker_pool(subscription: Subscription, settings: DeploymentSettings, pool: str) -> Json:
    name = object_name(subscription.path, "pool", pool)
    container = _container(settings, worker_command(pool, settings), settings.environment)
    return {
        "apiVersion": "run.googleapis.com/v1",
        "kind": "WorkerPool",
        "metadata": {
            "name": name,
            "labels": google_labels(name, "worker"),
            # Worker pools have no autoscaling.
            "annotations": {"run.googleapis.com/scalingMode": "manual", "run.googleapis.com/manualInstanceCount": "1"},
        },
        "spec": {"template": {"spec": {**_identity(settings), "containers": [container]}}},
    }


def _identity(settings: DeploymentSettings) -> dict[str, str]:
    return {"serviceAccountName": settings.service_account} if settings.service_account else {}


def _container(settings: DeploymentSettings, command: list[str], plain: dict[str, str]) -> Json:
    # The key of a secret is its version there.
    secrets = {"TAPE_INTERNAL_API_TOKEN": (settings.token_secret, "latest")} | settings.secret_environment
    return {
        "image": settings.image,
        "command": command[:1],
        "args": command[1:],
        "env": [
            *(
                {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
                for variable, (secret, key) in secrets.items()
            ),
            *({"name": name, "value": value} for name, value in plain.items()),
        ],
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}},
    }
