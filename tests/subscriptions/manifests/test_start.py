"""Rendered containers start: their command, environment and folder, against a real NATS and a real server.

There is no container engine here. What differs from a pod: secrets are resolved by the test, the port is a free one of
loopback instead of 8080, and a folder stands for /var/lib/tape.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from tape.subscriptions.api_client import Control
from tape.subscriptions.manifests.deployment import USER
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.disk import DiskBackend
from tests.broker_services import NatsServer
from tests.forked import Forked, tape
from tests.services import ServerProcess, free_port, wait_for
from tests.system.test_subscriptions import PATH, PLAYBOOK, TOKEN, Stream, register, runs

SECRETS = {("tape-internal-token", "token"): TOKEN}


class Cluster:
    """Applies what is rendered: starts the containers of workloads as processes."""

    def __init__(self, server: ServerProcess, folder: Path, *flags: str) -> None:
        self.folder = folder
        addresses = ("--server", server.http_url, "--server-url", server.http_url, "--grpc-url", server.url)
        done = tape("subscriptions", "render", PATH, *addresses, *flags, env={"TAPE_INTERNAL_API_TOKEN": TOKEN})
        assert done.returncode == 0, done.stderr
        self.objects: list[dict[str, Any]] = list(yaml.safe_load_all(done.stdout))

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (found,) = self.all(kind)
        return found

    @contextlib.contextmanager
    def started(self, pod: dict[str, Any]) -> Iterator[tuple[Forked, str]]:
        """A running container of a pod, and the address of its port."""
        (container,) = pod["containers"]
        address = f"127.0.0.1:{free_port()}"
        program, *arguments = [part.replace("0.0.0.0:8080", address) for part in container["command"]]
        assert program == "tape"
        env = {"PATH": "/usr/bin:/bin"}
        for each in container["env"]:
            reference = each.get("valueFrom", {}).get("secretKeyRef")
            env[each["name"]] = SECRETS[reference["name"], reference["key"]] if reference else each["value"]
        home = self._in_folder(container["workingDir"])
        for mount in container["volumeMounts"]:
            self._in_folder(mount["mountPath"])
        process = Forked(arguments, env=env, cwd=home)
        try:
            yield process, address
        finally:
            process.kill()

    def _in_folder(self, path: str) -> Path:
        found = self.folder / Path(path).relative_to("/")
        found.mkdir(parents=True, exist_ok=True)
        return found

    def wait_until_ready(self, pod: dict[str, Any], address: str) -> None:
        (container,) = pod["containers"]
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container[name]["httpGet"]["path"]
            wait_for(lambda path=path: status(f"http://{address}{path}") == 200, name)


def status(url: str) -> int:
    try:
        return urllib3.request("GET", url, retries=False, timeout=10).status
    except urllib3.exceptions.HTTPError:
        return 0


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    spec = workload["spec"]
    pod: dict[str, Any] = spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"]
    return pod


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        yield server


def backlog(cluster: Cluster, scaled: dict[str, Any]) -> int:
    """The number that KEDA would scale on: its request, its authentication, the location of the value."""
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "metrics-api"
    (authentication,) = (
        each
        for each in cluster.all("TriggerAuthentication")
        if each["metadata"]["name"] == trigger["authenticationRef"]["name"]
    )
    (reference,) = authentication["spec"]["secretTargetRef"]
    assert (trigger["metadata"]["authMode"], reference["parameter"]) == ("bearer", "token")
    headers = {"authorization": f"Bearer {SECRETS[reference['name'], reference['key']]}"}
    answer = urllib3.request("GET", trigger["metadata"]["url"], headers=headers)
    assert answer.status == 200
    return int(json.loads(answer.data)[trigger["metadata"]["valueLocation"]])


def test_the_runtime_and_the_worker_of_a_subscription_with_a_spool_start_and_do_their_work(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    stream = Stream(broker)
    with socket.create_server(("127.0.0.1", 0)) as downstream:
        target = f"127.0.0.1:{downstream.getsockname()[1]}"
        circuit = {"downstream": [{"name": "default", "type": "tcp", "target": target}], "trip_after": 1}
        spool = {"mode": "buffer_and_ack", "backend": "local_disk", "path": "spool/orders", "circuit": circuit}
        register(Control(server.http_url, TOKEN), stream, spool=spool)
        cluster = Cluster(server, tmp_path / "machine")
        runtime = pod_of(cluster.one("StatefulSet"))
        with cluster.started(runtime) as (process, address):
            cluster.wait_until_ready(runtime, address)
            stream.publish(range(3))
            wait_for(lambda: len(runs(tmp_path / "tape.db")) == 3, "the messages to become runs")
            (scaled,) = cluster.all("ScaledObject")
            wait_for(lambda: backlog(cluster, scaled) == 3, "the runs to be a backlog of their pool")
            worker = pod_of(cluster.one("Deployment"))
            with cluster.started(worker):
                wait_for(lambda: backlog(cluster, scaled) == 0, "the worker to have run them")
            process.send_signal(15)
            assert process.wait(runtime["terminationGracePeriodSeconds"]) == 0
    assert (tmp_path / "machine/var/lib/tape/spool/orders/control").is_dir(), "the spool is where its volume is"
    status = Control(server.http_url, TOKEN).latest(PATH)
    assert status is not None
    assert status["state"] == "ACTIVE", "a pod that stops leaves the subscription to the next one"


def test_the_job_of_a_scheduled_subscription_drains_it_and_exits(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    stream = Stream(broker)
    register(Control(server.http_url, TOKEN), stream, activation="scheduled", cadence="*/5 * * * *")
    stream.publish(range(4))
    cluster = Cluster(server, tmp_path / "machine")
    with cluster.started(pod_of(cluster.one("CronJob"))) as (process, _):
        assert process.wait(120) == 0
    assert stream.is_empty()
    assert len(runs(tmp_path / "tape.db")) == 4


@pytest.mark.parametrize("spool", ["off", "buffer_and_ack"])
def test_the_gateway_of_a_push_subscription_starts_and_with_a_spool_it_stays_in_service_during_an_outage(
    server: ServerProcess, tmp_path: Path, spool: str
) -> None:
    control = Control(server.http_url, TOKEN)
    control.register_document(PLAYBOOK)
    verify = {"type": "bearer", "secret": "hook"}
    spec = {
        "source": "webhook",
        "mode": "push",
        "ingress": {"gateway_path": "/ingress/orders", "verify": verify},
        "dispatch": {"playbook": "domain/ingest"},
        "spool": {"mode": spool, **({} if spool == "off" else {"backend": "local_disk", "path": "spool"})},
    }
    control.register_document(json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec}))
    store = ("--store", f"sqlite:{tmp_path / 'tape.db'}")
    done = tape("wallet", "set", "hook", *store, stdin="sesame\n")
    assert done.returncode == 0, done.stderr
    control.act(control.register(PATH)["subscription_id"], "activate")
    cluster = Cluster(server, tmp_path / "machine")
    workload = cluster.one("StatefulSet") if spool != "off" else cluster.all("Deployment")[0]
    pod = pod_of(workload)
    with cluster.started(pod) as (_, address):
        cluster.wait_until_ready(pod, address)

        def deliver() -> tuple[int, dict[str, Any]]:
            answer = urllib3.request(
                "POST", f"http://{address}/ingress/orders", headers={"authorization": "Bearer sesame"}, json={"n": 1}
            )
            return answer.status, json.loads(answer.data)

        assert deliver()[0] == 202
        server.kill()
        wanted = 503 if spool == "off" else 200
        wait_for(lambda: status(f"http://{address}/readyz") == wanted, f"readiness to be {wanted}")
        assert deliver()[0] == (502 if spool == "off" else 202)


def write_as_the_user_of_the_image(folder: str) -> None:
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)

    async def write() -> None:
        backend = DiskBackend(folder)
        await backend.put(Area.LIVE, [("1", b"{}")])
        assert await backend.claim()
        await backend.close()

    asyncio.run(write())


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can become another user")
def test_the_user_of_the_image_can_write_a_volume_as_fsgroup_makes_it() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as outer:
        Path(outer).chmod(0o755)
        volume = Path(outer, "volume")
        volume.mkdir()
        (volume / "lost+found").mkdir(0o700)  # what a new file system has
        os.chown(volume, 0, USER)
        volume.chmod(0o2775)
        process = Forked([], program=partial(write_as_the_user_of_the_image, str(volume)))
        code = process.wait(120)
        process.kill()
        assert code == 0
        assert (volume / "1.json").stat().st_uid == USER


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--env", "NAME"], "must look like NAME=VALUE"),
        (["--env", "a b=c"], "must look like NAME=VALUE"),
        (["--secret-env", "NATS_URL=nats"], "must look like NAME=SECRET/KEY"),
        (["--target", "cloud-run"], "--server-url"),
    ],
)
def test_options_of_render_that_cannot_be_used_are_refused(flags: list[str], problem: str, tmp_path: Path) -> None:
    spec = {"source": "nats", "mode": "pull", "url": "nats://nats", "stream": "S", "consumer": "c"}
    document = {"kind": "Subscription", "metadata": {"path": PATH}, "spec": {**spec, "dispatch": {"playbook": "p"}}}
    (tmp_path / "orders.yaml").write_text(json.dumps(document))
    done = tape("subscriptions", "render", "orders.yaml", *flags, cwd=tmp_path)
    assert done.returncode != 0
    assert problem in done.stderr
