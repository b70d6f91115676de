"""Cloud Run manifest: a service that needs only the server's HTTPS address and a bearer token."""

from __future__ import annotations

from typing import Any

from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.manifests.deployment import DeploymentSettings, command_of, labels_of, name_of, probe


def documents(subscription: Subscription, settings: DeploymentSettings) -> list[dict[str, Any]]:
    """One service, for `gcloud run services replace`."""
    runtime = subscription.spec.runtime
    is_push = subscription.spec.mode == "push"
    keda = subscription.spec.scaling.keda if subscription.spec.scaling else None
    # A pull source needs a running instance; a push delivery starts one.
    least = 0 if is_push else max(1, keda.min if keda else 1)
    most = runtime.max_instances or (keda.max if keda else 10)
    command, *arguments = command_of(subscription, settings)
    container = {
        "image": settings.image,
        "command": [command],
        "args": arguments,
        "ports": [{"name": "http1", "containerPort": 8080}],
        "env": [
            {
                "name": "TAPE_INTERNAL_API_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": settings.token_secret, "key": "latest"}},
            }
        ],
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}},
        "startupProbe": probe("/readyz"),
        "livenessProbe": probe("/livez"),
    }
    annotations = {
        "autoscaling.knative.dev/minScale": str(least),
        "autoscaling.knative.dev/maxScale": str(max(least, most)),
        # A pull runtime works between requests, so the CPU must not be throttled.
        "run.googleapis.com/cpu-throttling": "true" if is_push else "false",
    }
    template = {
        "metadata": {"annotations": annotations},
        "spec": {
            "serviceAccountName": settings.service_account,
            "containerConcurrency": runtime.concurrency or 80,
            "timeoutSeconds": 60,
            "containers": [container],
        },
    }
    ingress = "all" if is_push else "internal"
    return [
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {
                "name": name_of(subscription),
                "labels": {key.replace("/", "_"): value for key, value in labels_of(subscription, "runtime").items()},
                "annotations": {"run.googleapis.com/ingress": ingress},
            },
            "spec": {"template": template},
        }
    ]
