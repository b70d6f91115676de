"""Settings of a deployment that are not part of the subscription."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tape.subscriptions.document.spec import Subscription


class DeploymentSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Image, server addresses, namespace, and the names of secret and service account."""

    image: str = "tape:latest"
    server_url: str = "http://tape:7879"
    grpc_url: str = "tape://tape:7878"
    namespace: str = "tape"
    token_secret: str = "tape-internal-token"  # noqa: S105  # the name of a secret
    service_account: str = "tape-subscription"


def name_of(subscription: Subscription, *suffix: str) -> str:
    """A valid name for Kubernetes and Cloud Run: lower case letters, digits and dashes, at most 63."""
    plain = re.sub(r"[^a-z0-9]+", "-", "-".join((subscription.name, *suffix)).lower()).strip("-")
    return f"tape-{plain}"[:63].rstrip("-")


def labels_of(subscription: Subscription, component: str) -> dict[str, str]:
    """The labels of every object of a subscription."""
    return {
        "app.kubernetes.io/name": name_of(subscription),
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "tape",
    }


def command_of(subscription: Subscription, settings: DeploymentSettings) -> list[str]:
    """The container's command: the runtime of a pull subscription, the gateway of a push subscription."""
    server = subscription.spec.runtime.server_url or settings.server_url
    if subscription.spec.mode == "push":
        # Senders reach it through an ingress or a load balancer, which terminates TLS.
        return ["tape", "gateway", "--server", server, "--listen", "0.0.0.0:8080", "--insecure"]
    # A replica that stops must not deactivate the subscription for the others.
    run = ["tape", "subscription", "run", subscription.path, "--keep-active"]
    return [*run, "--server", server, "--metrics-listen", "0.0.0.0:8080"]


def probe(path: str) -> dict[str, Any]:
    """An HTTP probe on the port that runtime and gateway answer on."""
    return {"httpGet": {"path": path, "port": 8080}}
