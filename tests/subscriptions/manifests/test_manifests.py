"""Manifests that are written from a subscription: valid by published schemas, and as they were last read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tape.brokers.registry import known_sources, own_sources
from tape.errors import NotDeployable
from tape.model.cron import Cron
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.manifests import documents, render
from tape.subscriptions.manifests.deployment import DeploymentSettings
from tape.subscriptions.manifests.names import google_labels, labels, object_name
from tape.subscriptions.manifests.scalers import SCALERS, SINGLE
from tape.subscriptions.manifests.schedule import schedule_of
from tests.subscriptions.manifests import schemas

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[3]
OUTSIDE = DeploymentSettings(server_url="https://tape.example", grpc_url="tapes://tape.example:7878")

SPOOL = {
    "mode": "buffer_and_ack",
    "backend": "local_disk",
    "path": "spool/orders",
    "retention": {"max_bytes": 50 << 30},
}
CASES: dict[str, dict[str, Any]] = {
    "nats": {
        "dispatch": {"playbook": "domain/order", "execution_pool": "iot"},
        "scaling": {"keda": {"min": 2, "max": 20, "lag_threshold": 500}},
        "spool": {"circuit": {"downstream": [{"name": "default", "type": "http", "target": "http://shop:8000/up"}]}},
    },
    "kafka": {
        "source": "kafka", "brokers": ["kafka:9092"], "topic": "clicks", "group": "tape",
        "security_protocol": "sasl_ssl", "sasl_mechanism": "SCRAM-SHA-512", "user": "tape", "password": "kafka-login",
        "tls": {"ca": "certs/ca.pem"},
        "runtime": {
            "target": "cloud-run", "server_url": "https://tape.example", "concurrency": 80, "max_instances": 50,
        },
    },
    "pubsub": {"source": "pubsub", "subscription": "projects/p/subscriptions/s"},
    "sqs": {"source": "sqs", "queue": "orders", "region": "eu-central-1", "account": "123456789012"},
    "amqp": {"source": "amqp", "url": "amqp://rabbit", "queue": "orders", "vhost": "shop", "auth": "rabbit-login"},
    "mqtt": {"source": "mqtt", "url": "mqtt://broker", "topic": "sensors/#", "client_id": "tape-orders"},
    "push": {
        "source": "webhook", "mode": "push",
        "ingress": {"gateway_path": "/ingress/o", "verify": {"type": "bearer", "secret": "s"}},
        "scaling": {"keda": {"min": 2, "max": 5}},
    },
    "local-spool": {
        "spool": SPOOL,
        "headers": {
            "directives": [
                {"header": "x-pool", "controls": "dispatch.execution_pool", "allowed": ["fast", "slow"]},
                {"header": "x-priority", "controls": "priority", "map": {"high": "fast", "low": "batch"}},
            ]
        },
    },
    "scheduled": {"activation": "scheduled", "cadence": "*/5 * * * 1-7", "spool": SPOOL},
}  # fmt: skip
ON_CLOUD_RUN = ("nats", "kafka", "pubsub", "push")


def subscription(path: str = "subscriptions/orders", **spec: Any) -> Subscription:
    """A subscription by its document, which is valid; a key that is None is left out."""
    nats = {"url": "nats://nats:4222", "stream": "ORDERS", "consumer": "orders"}
    base = {"source": "nats", "mode": "pull", "dispatch": {"playbook": "domain/ingest_order"}}
    given = base | (nats if spec.get("source", "nats") == "nats" else {}) | spec
    given = {key: value for key, value in given.items() if value is not None}
    return parse_subscription(json.dumps({"kind": "Subscription", "metadata": {"path": path}, "spec": given}))


def of(case: str) -> Subscription:
    return subscription(**CASES[case])


def kubernetes(found: Subscription, **settings: Any) -> list[dict[str, Any]]:
    return documents(found, "kubernetes", DeploymentSettings(**settings))


def kinds(objects: list[dict[str, Any]]) -> list[str]:
    return [each["kind"] for each in objects]


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def test_for_spark_there_is_no_manifest_and_the_way_to_a_cluster_is_said() -> None:
    with pytest.raises(
        NotDeployable, match=r"tape pipeline run subscription subscriptions/orders --follow --master k8s"
    ):
        render(subscription(runtime={"target": "spark"}), "kubernetes", DeploymentSettings())


@pytest.mark.parametrize(
    ("case", "target"), [*((case, "kubernetes") for case in CASES), *((case, "cloud-run") for case in ON_CLOUD_RUN)]
)
def test_manifests_are_as_they_were_last_read(case: str, target: str) -> None:
    """`TAPE_GOLDEN=1` writes them anew; read the difference before you commit it."""
    file = GOLDEN / f"{case}-{target}.yaml"
    text = render(of(case), target, DeploymentSettings() if target == "kubernetes" else OUTSIDE)
    if os.environ.get("TAPE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("case", CASES)
def test_every_object_is_valid_for_kubernetes_and_keda(case: str) -> None:
    schemas.check(list(yaml.safe_load_all((GOLDEN / f"{case}-kubernetes.yaml").read_text())))
    schemas.check(kubernetes(of(case), network_policy=True, storage_class="fast"))


@pytest.mark.parametrize("case", ON_CLOUD_RUN)
def test_every_object_is_valid_for_cloud_run(case: str) -> None:
    for each in yaml.safe_load_all((GOLDEN / f"{case}-cloud-run.yaml").read_text()):
        schemas.check_cloud_run(each)


# ── runtimes ─────────────────────────────────────────────────────────────────────────────────────


def test_a_spool_on_a_disk_gets_a_volume_that_holds_what_it_may_and_that_its_user_can_write() -> None:
    objects = kubernetes(of("local-spool"))
    spec = one(objects, "StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "63Gi"  # 50 GiB and a quarter
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": claim["metadata"]["name"], "mountPath": "/var/lib/tape/spool/orders"} in container["volumeMounts"]
    assert container["workingDir"] == "/var/lib/tape", "where the path of the document leads to"
    security = pod["securityContext"]
    assert security["fsGroup"] == security["runAsGroup"]
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert f"USER {security['runAsUser']}" in dockerfile
    assert "WORKDIR /var/lib/tape" in dockerfile
    assert one(objects, "Service")["metadata"]["name"] == spec["serviceName"]


def test_a_runtime_with_a_volume_is_not_scaled_because_messages_would_stay_on_it() -> None:
    found = of("local-spool")
    objects = kubernetes(found)
    runtime = one(objects, "StatefulSet")["metadata"]["name"]
    assert one(objects, "StatefulSet")["spec"]["replicas"] == 1
    assert runtime not in {each["metadata"]["name"] for each in objects if each["kind"] == "ScaledObject"}


def test_an_autoscaler_alone_decides_on_replicas() -> None:
    for case in CASES:
        objects = kubernetes(of(case))
        targets = [each["spec"].get("scaleTargetRef") for each in objects if "spec" in each]
        scaled = {target["name"] for target in targets if target}
        for each in objects:
            if each["kind"] in ("Deployment", "StatefulSet"):
                assert ("replicas" in each["spec"]) != (each["metadata"]["name"] in scaled)


@pytest.mark.parametrize("path", ["/", "/etc/tape", "/opt/tape", "../spool", "/tmp/spool", "."])
def test_a_volume_that_would_hide_a_part_of_the_image_is_refused(path: str) -> None:
    with pytest.raises(NotDeployable, match=r"spool\.path"):
        kubernetes(subscription(spool={**SPOOL, "path": path}))


def test_a_global_order_has_one_runtime() -> None:
    ordered = subscription(spool={"ordering": "global"})
    objects = kubernetes(ordered)
    assert one([each for each in objects if each["kind"] == "Deployment"][:1], "Deployment")["spec"]["replicas"] == 1
    with pytest.raises(NotDeployable, match=r"scaling\.keda\.min asks for 3"):
        kubernetes(subscription(spool={"ordering": "global"}, scaling={"keda": {"min": 3}}))


def test_several_replicas_have_a_disruption_budget_and_one_has_none() -> None:
    assert one(kubernetes(of("nats")), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert "PodDisruptionBudget" not in kinds(kubernetes(subscription()))


def test_containers_run_as_a_user_without_rights_on_a_root_that_is_read_only() -> None:
    for case in CASES:
        for each in kubernetes(of(case)):
            spec = each.get("spec", {})
            template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
            if template is None:
                continue
            assert template["spec"]["securityContext"]["runAsNonRoot"]
            for container in template["spec"]["containers"]:
                security = container["securityContext"]
                assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
                assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
                assert container["resources"]["requests"]
                assert {"name": "HOME", "value": "/tmp"} in container["env"]


def test_the_targets_of_probes_are_allowed_for_the_runtime_and_shown() -> None:
    runtime = next(each for each in kubernetes(of("nats")) if each["kind"] == "Deployment")
    (container,) = runtime["spec"]["template"]["spec"]["containers"]
    assert {"name": "TAPE_HTTP_ALLOW", "value": "shop:8000"} in container["env"]


def test_a_spool_in_nats_knows_its_server_and_no_password_is_written() -> None:
    spool = {"mode": "hybrid", "backend": "nats_object", "bucket": "b"}
    runtime = next(each for each in kubernetes(subscription(spool=spool)) if each["kind"] == "Deployment")
    (container,) = runtime["spec"]["template"]["spec"]["containers"]
    assert {"name": "NATS_URL", "value": "nats://nats:4222"} in container["env"]
    secret = subscription(spool=spool, url="nats://me:hidden@nats:4222")
    with pytest.raises(NotDeployable, match="--secret-env NATS_URL=SECRET/KEY"):
        kubernetes(secret)
    text = render(secret, "kubernetes", DeploymentSettings(secret_environment={"NATS_URL": ("nats", "url")}))
    assert "hidden" not in text
    assert "# needs the secret nats: url\n" in text


# ── scaling ──────────────────────────────────────────────────────────────────────────────────────


def test_every_pool_that_headers_can_choose_has_workers_scaled_on_its_backlog() -> None:
    objects = kubernetes(of("local-spool"))
    workers = [each for each in objects if each["kind"] == "Deployment"]
    commands = [each["spec"]["template"]["spec"]["containers"][0]["command"] for each in workers]
    assert [command[command.index("--pool") + 1] for command in commands] == ["shared", "fast", "slow", "batch"]
    urls = [
        trigger["metadata"]["url"]
        for each in objects
        if each["kind"] == "ScaledObject"
        for trigger in each["spec"]["triggers"]
    ]
    assert urls == [f"http://tape:7879/api/pools/{pool}" for pool in ("shared", "fast", "slow", "batch")]


def test_the_pools_of_playbooks_that_headers_choose_have_workers() -> None:
    rule = {"header": "x-playbook", "controls": "dispatch.playbook", "allowed": ["system/repair", "domain/other"]}
    objects = kubernetes(subscription(headers={"directives": [rule]}))
    pools = [each["metadata"]["annotations"].get("tape/pool") for each in objects if each["kind"] == "Deployment"]
    assert pools == [None, "shared", "system"]


def test_a_kafka_login_is_a_reference_for_keda_too() -> None:
    text = render(of("kafka"), "kubernetes", DeploymentSettings(source_secret="kafka-login-secret"))
    assert "kafka-login\n" not in text
    assert "# needs the secret kafka-login-secret: ca.crt, password, username\n" in text
    scaled = next(each for each in yaml.safe_load_all(text) if each["kind"] == "ScaledObject")
    assert scaled["spec"]["triggers"][0]["metadata"]["sasl"] == "scram_sha512"


def test_the_experimental_kafka_scaler_can_be_chosen_and_metadata_added() -> None:
    keda = {"trigger": "apache-kafka", "metadata": {"activationLagThreshold": "5"}}
    objects = kubernetes(subscription(**CASES["kafka"], scaling={"keda": keda}))
    schemas.check(objects)
    (trigger,) = next(each for each in objects if each["kind"] == "ScaledObject")["spec"]["triggers"]
    assert (trigger["type"], trigger["metadata"]["activationLagThreshold"]) == ("apache-kafka", "5")


def test_a_trigger_of_another_source_is_refused_without_its_metadata() -> None:
    with pytest.raises(NotDeployable, match="scaled by 'nats-jetstream'"):
        kubernetes(subscription(scaling={"keda": {"trigger": "kafka"}}))
    keda = {"trigger": "rabbitmq", "metadata": {"queueName": "q", "mode": "QueueLength", "value": "5"}}
    schemas.check(kubernetes(subscription(scaling={"keda": keda})))


def test_an_address_that_only_the_wallet_knows_has_to_be_given_for_the_scaler() -> None:
    with pytest.raises(NotDeployable, match=r"scaling\.keda\.metadata\.natsServerMonitoringEndpoint"):
        kubernetes(subscription(url=None, auth="nats-login"))
    keda = {"metadata": {"natsServerMonitoringEndpoint": "nats.nats:8222", "account": "ORDERS"}}
    schemas.check(kubernetes(subscription(url=None, auth="nats-login", scaling={"keda": keda})))


def test_pubsub_is_scaled_by_the_identity_of_the_pod_or_by_a_key() -> None:
    assert one(
        [each for each in kubernetes(of("pubsub")) if "podIdentity" in each.get("spec", {})], "TriggerAuthentication"
    )["spec"] == {"podIdentity": {"provider": "gcp"}}
    keyed = subscription(**CASES["pubsub"], auth="gcp-key")
    schemas.check(kubernetes(keyed))
    assert "GoogleApplicationCredentials" in render(keyed, "kubernetes", DeploymentSettings())


def test_a_queue_of_sqs_is_scaled_by_the_identity_of_the_pod_or_by_a_key_and_found_by_name_without_an_account() -> None:
    queue = {"source": "sqs", "queue": "orders", "region": "eu-central-1"}
    keyed = kubernetes(subscription(**queue, auth="aws-key"))
    schemas.check(keyed)
    (trigger,) = next(each for each in keyed if each["kind"] == "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["queueURL"] == "orders"
    parameters = [
        reference["parameter"]
        for each in keyed
        if each["kind"] == "TriggerAuthentication"
        for reference in each["spec"]["secretTargetRef"]
    ]
    assert parameters == ["awsAccessKeyID", "awsSecretAccessKey", "token"]


def test_a_session_of_mqtt_has_one_reader_and_only_its_workers_are_scaled() -> None:
    objects = kubernetes(of("mqtt"))
    runtime, worker = (each for each in objects if each["kind"] == "Deployment")
    assert runtime["spec"]["replicas"] == 1
    (scaled,) = (each for each in objects if each["kind"] == "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    with pytest.raises(NotDeployable, match="a second client of the same client_id ends the first"):
        kubernetes(subscription(**CASES["mqtt"], scaling={"keda": {"min": 2}}))


def test_every_source_has_a_scaler_or_a_reason_why_it_has_none() -> None:
    assert set(SCALERS) | set(SINGLE) == set(known_sources()) - set(own_sources())


# ── schedules ────────────────────────────────────────────────────────────────────────────────────


def test_a_scheduled_subscription_is_a_cron_job_that_drains_once_with_its_volume() -> None:
    objects = kubernetes(of("scheduled"))
    spec = one(objects, "CronJob")["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == (
        "*/5 * * * 0,1,2,3,4,5,6",
        "Etc/UTC",
        "Forbid",
    )
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert "--once" in pod["containers"][0]["command"]
    claimed = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert claimed == [one(objects, "PersistentVolumeClaim")["metadata"]["name"]]
    assert "StatefulSet" not in kinds(objects)


@pytest.mark.parametrize("cadence", ["*/5 * * * *", "@hourly", "0 6 1-7 * mon", "0 0 1-31 * 7", "5/15 0 * 2 *"])
def test_a_schedule_means_the_same_times(cadence: str) -> None:
    written = schedule_of(subscription(activation="scheduled", cadence=cadence))
    assert Cron.parse(written) == Cron.parse(cadence)
    assert "7" not in (written.split()[4:] or [""])[0]


@pytest.mark.parametrize("cadence", ["0 0 */2 * mon", "0 0 1 * */2"])
def test_a_cadence_that_kubernetes_reads_differently_is_refused(cadence: str) -> None:
    with pytest.raises(NotDeployable, match="Kubernetes reads differently"):
        schedule_of(subscription(activation="scheduled", cadence=cadence))


# ── Cloud Run ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("spec", "settings", "remedy"),
    [
        ({"spool": SPOOL}, OUTSIDE, "spool.backend gcs"),
        ({"activation": "scheduled", "cadence": "@daily"}, OUTSIDE, "the server drains it"),
        ({}, DeploymentSettings(), "--server-url"),
        (
            {},
            DeploymentSettings(server_url="https://tape.example", service_account="tape"),
            "must be an e-mail address",
        ),
    ],
)
def test_what_cannot_run_on_cloud_run_is_refused_with_the_remedy(
    spec: dict[str, Any], settings: DeploymentSettings, remedy: str
) -> None:
    with pytest.raises(NotDeployable, match=remedy):
        documents(subscription(**spec), "cloud-run", settings)


def test_a_pull_runtime_on_cloud_run_always_runs_and_answers_on_its_port() -> None:
    service = documents(of("nats"), "cloud-run", OUTSIDE)[0]
    template = service["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    assert int(annotations["autoscaling.knative.dev/minScale"]) >= 1
    assert annotations["run.googleapis.com/cpu-throttling"] == "false"
    (container,) = template["spec"]["containers"]
    assert f"0.0.0.0:{container['ports'][0]['containerPort']}" in container["args"]


# ── names ────────────────────────────────────────────────────────────────────────────────────────

SEGMENT = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}", fullmatch=True)
POOL = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)


@given(st.lists(SEGMENT, min_size=1, max_size=4).map("/".join), POOL)
def test_every_legal_path_and_pool_has_legal_names_and_labels(path: str, pool: str) -> None:
    for name in (object_name(path), object_name(path, "pool", pool)):
        assert schemas.NAME.fullmatch(name)
        assert schemas.CLOUD_RUN_NAME.fullmatch(name)
        assert all(schemas.LABEL_VALUE.fullmatch(value) for value in labels(name, "worker").values())
        assert all(schemas.GOOGLE_LABEL_VALUE.fullmatch(value) for value in google_labels(name, "worker").values())


def test_paths_that_look_alike_have_different_names() -> None:
    alike = ["a/orders", "b/orders", "orders", "Orders", "or.ders", "or-ders", "or_ders", "or/ders"]
    alike += [f"{'x' * 200}{n}" for n in range(5)]
    assert len({object_name(path) for path in alike}) == len(alike)
    assert object_name("orders", "pool", "a_b") != object_name("orders", "pool", "a-b")


def test_long_and_odd_names_are_valid_in_every_object() -> None:
    path = "Subscriptions/Some_Very.Odd-Name-" + "x" * 120
    dispatch = {"playbook": "domain/order", "execution_pool": "a" * 62 + "_"}
    odd, without_spool = subscription(path, spool=SPOOL, dispatch=dispatch), subscription(path, dispatch=dispatch)
    schemas.check(kubernetes(odd, network_policy=True))
    for each in documents(without_spool, "cloud-run", OUTSIDE):
        schemas.check_cloud_run(each)


def test_no_manifest_holds_a_secret() -> None:
    for file in GOLDEN.iterdir():
        for each in yaml.safe_load_all(file.read_text()):
            assert each["kind"] != "Secret"
        assert "TAPE_INTERNAL_API_TOKEN" in file.read_text()
        assert "value: " not in file.read_text().partition("TAPE_INTERNAL_API_TOKEN")[2].partition("- name")[0]


# ── the image ────────────────────────────────────────────────────────────────────────────────────


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
