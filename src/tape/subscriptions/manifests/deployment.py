"""What a manifest needs to know that no subscription says."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tape.subscriptions.document.spec import Subscription


class DeploymentSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Where the server is, and what the containers are made from."""

    image: str = "tape:latest"
    server_url: str = "http://tape:7879"
    grpc_url: str = "tape://tape:7878"
    namespace: str = "tape"
    token_secret: str = "tape-internal-token"  # noqa: S105  # the name of a secret
    service_account: str = "tape-subscription"


def name_of(subscription: Subscription, *suffix: str) -> str:
    """A name that Kubernetes and Cloud Run take: lower case letters, digits and dashes, 63 at most."""
    plain = re.sub(r"[^a-z0-9]+", "-", "-".join((subscription.name, *suffix)).lower()).strip("-")
    return f"tape-{plain}"[:63].rstrip("-")


def labels_of(subscription: Subscription, component: str) -> dict[str, str]:
    """What every object of a subscription carries."""
    return {
        "app.kubernetes.io/name": name_of(subscription),
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "tape",
    }


def command_of(subscription: Subscription, settings: DeploymentSettings) -> list[str]:
    """How the container runs the subscription: the runtime of a pull source, the gateway of a push one."""
    server = subscription.spec.runtime.server_url or settings.server_url
    if subscription.spec.mode == "push":
        return ["tape", "gateway", "--server", server, "--listen", "0.0.0.0:8080"]
    # One replica of several that goes away must not stop the others.
    run = ["tape", "subscription", "run", subscription.path, "--keep-active"]
    return [*run, "--server", server, "--metrics-listen", "0.0.0.0:8080"]


def probe(path: str) -> dict[str, Any]:
    """An HTTP probe on the port that runtime and gateway answer on."""
    return {"httpGet": {"path": path, "port": 8080}}
