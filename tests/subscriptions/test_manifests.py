"""Manifests that are written from a subscription: valid, and as they were when somebody last read them.

Deployments and services are checked against the published schema of Kubernetes. There is none to be had here for
KEDA's objects and Cloud Run's services: those are compared with what was read, and have not been deployed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tape.errors import InvalidConfig
from tape.subscriptions.manifests import TARGETS, render
from tape.subscriptions.manifests.deployment import DeploymentSettings, name_of
from tests.subscriptions.specs import subscription

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]

CASES: dict[str, dict[str, Any]] = {
    "nats": {
        "dispatch": {"playbook": "domain/order", "execution_pool": "iot"},
        "scaling": {"keda": {"min": 2, "max": 20, "lag_threshold": 500}},
    },
    "kafka": {
        "source": "kafka", "brokers": ["kafka:9092"], "topic": "clicks", "group": "tape",
        "runtime": {
            "target": "cloud-run", "server_url": "https://tape.example", "concurrency": 80, "max_instances": 50,
        },
    },
    "push": {
        "source": "webhook", "mode": "push",
        "ingress": {"gateway_path": "/ingress/o", "verify": {"type": "bearer", "secret": "s"}},
    },
}  # fmt: skip


def test_for_spark_there_is_no_manifest_and_the_way_to_a_cluster_is_said() -> None:
    with pytest.raises(
        InvalidConfig, match=r"tape pipeline run subscription subscriptions/orders --follow --master k8s"
    ):
        render(subscription(runtime={"target": "spark"}), "kubernetes", DeploymentSettings())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_manifests_are_as_they_were_last_read(case: str, target: str) -> None:
    """`TAPE_GOLDEN=1` writes them anew; read the difference before you commit it."""
    file = GOLDEN / f"{case}-{target}.yaml"
    text = render(subscription("subscriptions/orders", **CASES[case]), target, DeploymentSettings())
    if os.environ.get("TAPE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("case", CASES)
def test_deployments_and_services_are_valid_for_kubernetes(case: str) -> None:
    import kubernetes_validate

    documents = list(yaml.safe_load_all((GOLDEN / f"{case}-kubernetes.yaml").read_text()))
    kinds = [document["kind"] for document in documents]
    assert kinds.count("Deployment") == 2
    for document in documents:
        if document["kind"] in ("Deployment", "Service"):
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_a_scaled_object_names_the_deployment_it_scales() -> None:
    for file in GOLDEN.glob("*-kubernetes.yaml"):
        documents = list(yaml.safe_load_all(file.read_text()))
        names = {document["metadata"]["name"] for document in documents if document["kind"] == "Deployment"}
        scaled = {d["spec"]["scaleTargetRef"]["name"] for d in documents if d["kind"] == "ScaledObject"}
        assert scaled
        assert scaled <= names


def test_names_are_fit_for_kubernetes() -> None:
    odd = subscription("subscriptions/Some_Very.Odd Name!" + "x" * 80)
    assert len(name_of(odd)) <= 63
    assert name_of(odd).replace("-", "").isalnum()


def test_no_manifest_holds_a_secret() -> None:
    for file in GOLDEN.iterdir():
        assert "value: " not in file.read_text().partition("TAPE_INTERNAL_API_TOKEN")[2].partition("resources")[0]


def test_the_dockerfile_has_nothing_to_complain_about() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("no hadolint for this machine")
    done = subprocess.run([program, str(ROOT / "deploy/Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_compose_file_builds_and_runs_what_is_there() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    assert set(services) == {"postgres", "nats", "server", "worker"}
    assert (ROOT / "deploy" / services["server"]["build"]["context"] / "deploy/Dockerfile").exists()
    from tape.cli.main import COMMANDS

    assert {services[name]["command"][0] for name in ("server", "worker")} <= set(COMMANDS)
