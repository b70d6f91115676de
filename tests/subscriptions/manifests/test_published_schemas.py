"""Rendered objects against the published custom resource definitions of KEDA and Knative.

The models that were generated from them come with a plug-in for pytest that has needs of its own: they are installed
into an environment of their own, from the package index.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("cloudcoil==0.6.0", "cloudcoil.models.keda==2.16.1.0", "cloudcoil.models.knative-serving==1.17.0.1")
# A model leaves out fields that it does not know: what it kept must be what it was given.
PROGRAM = """
import sys, yaml
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.knative_serving.serving.v1 import Service

MODELS = {
    ("keda.sh/v1alpha1", "ScaledObject"): keda.ScaledObject,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): keda.TriggerAuthentication,
    ("serving.knative.dev/v1", "Service"): Service,
}
checked = 0
for file in sys.argv[1:]:
    for each in yaml.safe_load_all(open(file)):
        model = MODELS.get((each["apiVersion"], each["kind"]))
        if model is Service:  # the model of quantities ("cpu: 1") raises TypeError whatever they are
            for container in each["spec"]["template"]["spec"]["containers"]:
                del container["resources"]
        if model is not None:
            kept = model.model_validate(each).model_dump(mode="json", by_alias=True, exclude_unset=True)
            assert kept == each, (file, kept, each)
            checked += 1
print(checked)
"""


@pytest.mark.proof
def test_rendered_objects_fit_the_published_definitions_of_keda_and_knative(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pyyaml", *PACKAGES], check=True)
    files = sorted((Path(__file__).parent / "golden").glob("*.yaml"))
    done = subprocess.run([python, "-c", PROGRAM, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert int(done.stdout) >= 20
