"""Deployment manifests of a subscription: its runtime, the workers of its playbooks, and their scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from tape.errors import InvalidConfig
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.manifests import cloud_run, kubernetes
from tape.subscriptions.manifests.deployment import DeploymentSettings

TARGETS: dict[str, Callable[[Subscription, DeploymentSettings], list[dict[str, Any]]]] = {
    "kubernetes": kubernetes.documents,
    "cloud-run": cloud_run.documents,
}


def render(subscription: Subscription, target: str, settings: DeploymentSettings) -> str:
    """The manifests of a subscription as one YAML stream, ready for `kubectl apply -f -` or `gcloud run`.

    Raises InvalidConfig for one that runs on Spark: it is deployed with spark-submit.
    """
    if subscription.spec.runtime.target == "spark":
        raise InvalidConfig(
            f"{subscription.path} runs on Spark, which brings its own executors to a cluster; there is no manifest to"
            f" write. Submit the job with spark-submit, or: tape pipeline run subscription {subscription.path}"
            " --follow --master k8s://…"
        )
    documents = TARGETS[target](subscription, settings)
    text: str = yaml.dump_all(documents, Dumper=_Dumper, explicit_start=True, sort_keys=False, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes shared labels in full, and indents the items of lists."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)
