"""Deployment manifests of a subscription: its runtime, the workers of its playbooks, and their scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml

from tape.errors import NotDeployable
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.manifests import cloud_run, kubernetes
from tape.subscriptions.manifests.deployment import DeploymentSettings

TARGETS: dict[str, Callable[[Subscription, DeploymentSettings], list[dict[str, Any]]]] = {
    "kubernetes": kubernetes.documents,
    "cloud-run": cloud_run.documents,
}


def render(subscription: Subscription, target: str, settings: DeploymentSettings) -> str:
    """The manifests of a subscription as one YAML stream, for `kubectl apply -f -` or `gcloud run`."""
    return to_yaml(documents(subscription, target, settings))


def documents(subscription: Subscription, target: str, settings: DeploymentSettings) -> list[dict[str, Any]]:
    """The objects of a subscription. Raises NotDeployable for one that cannot run on the target."""
    if subscription.spec.runtime.target == "spark":
        raise NotDeployable(
            f"{subscription.path} runs on Spark, which brings its own executors to a cluster; there is no manifest to"
            f" write. Submit the job with spark-submit, or: tape pipeline run subscription {subscription.path}"
            " --follow --master k8s://…"
        )
    return TARGETS[target](subscription, settings)


def to_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """Objects as a YAML stream, below a comment with the secrets that they refer to and that must exist."""
    needed: dict[str, set[str]] = {}
    for secret, key in _secrets(list(objects)):
        needed.setdefault(secret, set()).add(key)
    head = "".join(f"# needs the secret {name}: {', '.join(sorted(keys))}\n" for name, keys in sorted(needed.items()))
    text: str = yaml.dump_all(objects, Dumper=_Dumper, explicit_start=True, sort_keys=False, allow_unicode=True)
    return head + text


def _secrets(value: Any) -> Iterator[tuple[str, str]]:
    """Every (secret, key) that an object refers to."""
    if isinstance(value, list):
        for each in value:
            yield from _secrets(each)
    elif isinstance(value, dict):
        if "secretKeyRef" in value:
            yield value["secretKeyRef"]["name"], value["secretKeyRef"]["key"]
        for each in value.get("secretTargetRef", ()):
            yield each["name"], each["key"]
        if "secretName" in value:
            yield from ((value["secretName"], item["key"]) for item in value["items"])
        for each in value.values():
            yield from _secrets(each)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes shared labels in full, and indents the items of lists."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)
