"""Kubernetes manifests: the runtime, drain or gateway of a subscription, the workers of its pools, their scaling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tape.errors import NotDeployable
from tape.subscriptions.document.spec import KedaSpec, Subscription
from tape.subscriptions.manifests.deployment import PORT, TOKEN_KEY, DeploymentSettings, server_url, spool_folder
from tape.subscriptions.manifests.names import labels, object_name
from tape.subscriptions.manifests.pods import (
    DEFAULT_SERVICE_ACCOUNT,
    SPOOL_VOLUME,
    component_of,
    runtime_pod,
    volume_claim,
    worker_pod,
)
from tape.subscriptions.manifests.pools import pools_of
from tape.subscriptions.manifests.scalers import SINGLE, Scaler, pool_scaler, source_scaler
from tape.subscriptions.manifests.schedule import schedule_of

Json = dict[str, Any]


def documents(subscription: Subscription, settings: DeploymentSettings) -> list[Json]:
    """The objects of a subscription, in the order in which they can be applied."""
    return list(_Objects(subscription, settings))


class _Objects:
    """The objects of one subscription."""

    def __init__(self, subscription: Subscription, settings: DeploymentSettings) -> None:
        self._subscription = subscription
        self._settings = settings
        self._spec = subscription.spec
        self._keda = subscription.spec.scaling.keda if subscription.spec.scaling else KedaSpec()
        self._name = object_name(subscription.path)
        self._component = component_of(subscription)
        self._least, self._most = self._replicas()

    def __iter__(self) -> Iterator[Json]:
        account = self._settings.service_account or DEFAULT_SERVICE_ACCOUNT
        yield self._object("v1", "ServiceAccount", account, automountServiceAccountToken=False)
        if self._spec.mode == "pull" and self._spec.activation == "scheduled":
            yield from self._drain()
        else:
            yield from self._runtime()
        server = server_url(self._subscription, self._settings)
        authentication = object_name(self._subscription.path, "server")
        yield self._authentication(authentication, self._settings.token_secret, {"token": TOKEN_KEY})
        for pool in pools_of(self._subscription):
            name = object_name(self._subscription.path, "pool", pool)
            pod = worker_pod(self._subscription, self._settings, pool)
            yield self._workload("Deployment", name, "worker", pod, pool=pool)
            scaler = pool_scaler(server, pool, self._keda.lag_threshold)
            yield self._scaled("Deployment", name, 0, max(1, self._keda.max), scaler, authentication)
            if self._settings.network_policy:
                yield self._network_policy(name, "worker", [])

    # ── runtime, gateway, drain ──────────────────────────────────────────────────────────────────

    def _replicas(self) -> tuple[int, int]:
        """The smallest and the largest number of replicas of the runtime. Raises NotDeployable for impossible ones."""
        spec, keda = self._spec, self._keda
        # A pull runtime is never scaled to zero: it has to consume from its source.
        least = max(1, keda.min)
        most = max(least, min(keda.max, spec.runtime.max_instances or keda.max))
        single = ""
        if spec.source in SINGLE:
            single = f"source {spec.source} has one {SINGLE[spec.source]}"
        elif spec.mode == "pull" and spec.spool.ordering == "global":
            single = "spool.ordering global is an order of one process"
        if single:
            if least > 1:
                raise NotDeployable(
                    f"{self._subscription.path}: {single}, and scaling.keda.min asks for {least} replicas. Set it to 1."
                )
            return 1, 1
        # A pod that is scaled away would leave the messages on its volume behind.
        return (least, least) if spool_folder(self._subscription) else (least, most)

    def _runtime(self) -> Iterator[Json]:
        pod = runtime_pod(self._subscription, self._settings)
        has_volume = bool(spool_folder(self._subscription))
        kind = "StatefulSet" if has_volume else "Deployment"
        is_push = self._spec.mode == "push"
        scaler = None
        if self._most > self._least and not is_push:
            scaler = source_scaler(self._subscription, self._keda)
        is_scaled = scaler is not None or (is_push and self._most > self._least)
        yield self._service(is_headless=has_volume and not is_push)
        yield self._workload(
            kind, self._name, self._component, pod, replicas=None if is_scaled else self._least, is_rolling=is_push
        )
        if scaler is not None:
            authentication = ""
            if scaler.secret_keys or scaler.pod_identity:
                authentication = object_name(self._subscription.path, "source")
                secret = self._settings.source_secret_of(self._subscription)
                yield self._authentication(authentication, secret, scaler.secret_keys, scaler.pod_identity)
            yield self._scaled(kind, self._name, self._least, self._most, scaler, authentication)
        elif is_scaled:
            yield self._web_scaling(kind)
        if self._least > 1:
            selector = {"matchLabels": labels(self._name, self._component)}
            spec = {"maxUnavailable": 1, "selector": selector}
            yield self._object("policy/v1", "PodDisruptionBudget", self._name, spec=spec)
        if self._settings.network_policy:
            yield self._network_policy(self._name, self._component, [PORT])

    def _drain(self) -> Iterator[Json]:
        pod = runtime_pod(self._subscription, self._settings)
        pod["restartPolicy"] = "OnFailure"
        if spool_folder(self._subscription):
            yield self._object(
                "v1", "PersistentVolumeClaim", self._name, spec=volume_claim(self._subscription, self._settings)
            )
            pod["volumes"].append({"name": SPOOL_VOLUME, "persistentVolumeClaim": {"claimName": self._name}})
        template = {"metadata": {"labels": labels(self._name, self._component)}, "spec": pod}
        yield self._object(
            "batch/v1",
            "CronJob",
            self._name,
            spec={
                "schedule": schedule_of(self._subscription),
                "timeZone": "Etc/UTC",
                "concurrencyPolicy": "Forbid",
                "startingDeadlineSeconds": 300,
                "successfulJobsHistoryLimit": 1,
                "failedJobsHistoryLimit": 3,
                "jobTemplate": {"spec": {"backoffLimit": 3, "template": template}},
            },
        )
        if self._settings.network_policy:
            yield self._network_policy(self._name, self._component, [])

    def _workload(
        self,
        kind: str,
        name: str,
        component: str,
        pod: Json,
        *,
        replicas: int | None = None,
        is_rolling: bool = True,
        pool: str = "",
    ) -> Json:
        """A Deployment or StatefulSet. `replicas` is left out where an autoscaler decides: an apply would reset it."""
        own = labels(name, component)
        spec: Json = {} if replicas is None else {"replicas": replicas}
        if kind == "StatefulSet":
            claim = {
                "metadata": {"name": SPOOL_VOLUME},
                "spec": volume_claim(self._subscription, self._settings),
            }
            spec |= {
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                "volumeClaimTemplates": [claim],
            }
        else:
            # A rollout must not run two consumers of a source at a time.
            spec["strategy"] = {"type": "RollingUpdate" if is_rolling else "Recreate"}
        spec |= {"selector": {"matchLabels": own}, "template": {"metadata": {"labels": own}, "spec": pod}}
        return self._object("apps/v1", kind, name, component=component, pool=pool, spec=spec)

    def _service(self, *, is_headless: bool) -> Json:
        spec: Json = {"clusterIP": "None"} if is_headless else {}
        spec |= {
            "selector": labels(self._name, self._component),
            "ports": [{"name": "http", "port": PORT if is_headless else 80, "targetPort": PORT}],
        }
        return self._object("v1", "Service", self._name, spec=spec)

    # ── scaling and access ───────────────────────────────────────────────────────────────────────

    def _scaled(self, kind: str, name: str, least: int, most: int, scaler: Scaler, authentication: str) -> Json:
        trigger: Json = {"type": scaler.type, "metadata": scaler.metadata}
        if authentication:
            trigger["authenticationRef"] = {"name": authentication}
        return self._object(
            "keda.sh/v1alpha1",
            "ScaledObject",
            name,
            spec={
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": name},
                "minReplicaCount": least,
                "maxReplicaCount": most,
                "triggers": [trigger],
            },
        )

    def _authentication(self, name: str, secret: str, keys: dict[str, str], identity: str = "") -> Json:
        if identity:
            spec: Json = {"podIdentity": {"provider": identity}}
        else:
            spec = {"secretTargetRef": [{"parameter": each, "name": secret, "key": key} for each, key in keys.items()]}
        return self._object("keda.sh/v1alpha1", "TriggerAuthentication", name, spec=spec)

    def _web_scaling(self, kind: str) -> Json:
        target = {"type": "Utilization", "averageUtilization": 70}
        return self._object(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            self._name,
            spec={
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": self._name},
                "minReplicas": self._least,
                "maxReplicas": self._most,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            },
        )

    def _network_policy(self, name: str, component: str, ports: list[int]) -> Json:
        ingress = [{"ports": [{"protocol": "TCP", "port": port} for port in ports]}] if ports else []
        selector = {"matchLabels": labels(name, component)}
        spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
        return self._object("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)

    def _object(self, version: str, kind: str, name: str, component: str = "", pool: str = "", **more: Any) -> Json:
        annotations = {"tape/subscription": self._subscription.path} | ({"tape/pool": pool} if pool else {})
        metadata: Json = {
            "name": name,
            "namespace": self._settings.namespace,
            "labels": labels(name, component or self._component),
        }
        if kind != "ServiceAccount":  # shared by subscriptions
            metadata["annotations"] = annotations
        else:
            metadata["labels"] = {"app.kubernetes.io/name": "tape", "app.kubernetes.io/part-of": "tape"}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}
