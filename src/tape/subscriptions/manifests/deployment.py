"""Settings of a deployment that are not part of the subscription, and what they make of its container."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tape.base.allow_list import HTTP_ALLOW_VARIABLE
from tape.errors import NotDeployable
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.manifests.names import object_name

PORT = 8080
TOKEN_KEY = "token"  # noqa: S105  # the key of a secret
# The folder that the image works in, and the user that it runs as (deploy/Dockerfile).
HOME = PurePosixPath("/var/lib/tape")
USER = 10_001
# What a mounted volume would hide.
_OCCUPIED = ("/bin", "/boot", "/dev", "/etc", "/lib", "/opt", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr")  # noqa: S108


class DeploymentSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Image, addresses of the server, namespace, and the names of secrets and service account. Empty: the default."""

    image: str = "tape:latest"
    server_url: str = ""
    grpc_url: str = ""
    namespace: str = "tape"
    token_secret: str = "tape-internal-token"  # noqa: S105  # the name of a secret
    source_secret: str = ""
    service_account: str = ""
    storage_class: str = ""
    http_allow: str = ""
    modules: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    # Variable to (secret, key).
    secret_environment: dict[str, tuple[str, str]] = {}
    network_policy: bool = False

    def source_secret_of(self, subscription: Subscription) -> str:
        """The secret with what KEDA and the pod need for the source: logins, certificates."""
        return self.source_secret or object_name(subscription.path, "source")


def server_url(subscription: Subscription, settings: DeploymentSettings) -> str:
    """The HTTP address of the server as seen by the containers."""
    return subscription.spec.runtime.server_url or settings.server_url or "http://tape:7879"


def command_of(subscription: Subscription, settings: DeploymentSettings) -> list[str]:
    """The container's command: runtime or drain of a pull subscription, gateway of a push subscription."""
    server = server_url(subscription, settings)
    listen = f"0.0.0.0:{PORT}"
    if subscription.spec.mode == "push":
        # Senders reach it through an ingress or a load balancer, which terminates TLS.
        return ["tape", "gateway", "--server", server, "--listen", listen, "--insecure"]
    run = ["tape", "subscription", "run", subscription.path]
    imports = [part for module in settings.modules for part in ("--import", module)]
    if subscription.spec.activation == "scheduled":
        return [*run, "--once", "--server", server, *imports]
    # A replica that stops must not deactivate the subscription for the others.
    return [*run, "--keep-active", "--server", server, "--metrics-listen", listen, *imports]


def worker_command(pool: str, settings: DeploymentSettings) -> list[str]:
    """The command of a pool's worker."""
    imports = [part for module in settings.modules for part in ("--import", module)]
    return ["tape", "worker", "--pool", pool, "--url", settings.grpc_url or "tape://tape:7878", *imports]


def environment_of(subscription: Subscription, settings: DeploymentSettings) -> dict[str, str]:
    """The plain variables of the runtime or gateway. Raises NotDeployable if one is missing."""
    found = {"HOME": "/tmp"}  # noqa: S108  # the only folder that is always writable
    if allowed := settings.http_allow or _probed(subscription):
        found[HTTP_ALLOW_VARIABLE] = allowed
    spec = subscription.spec
    needs_nats = spec.spool.mode != "off" and spec.spool.backend == "nats_object" and not spec.spool.credential
    if needs_nats and "NATS_URL" not in {**settings.environment, **settings.secret_environment}:
        if spec.source != "nats" or not spec.url or "@" in spec.url:
            raise NotDeployable(
                f"{subscription.path}: spool.backend nats_object needs the address of NATS. Name a credential with a"
                " 'url' in spool.credential, or add --env NATS_URL=nats://HOST:4222, or with a password in the address"
                " --secret-env NATS_URL=SECRET/KEY."
            )
        found["NATS_URL"] = spec.url
    return found | settings.environment


def spool_folder(subscription: Subscription) -> str:
    """The folder of a spool on a local disk, where its volume is mounted; empty without one."""
    spool = subscription.spec.spool
    if spool.mode == "off" or spool.backend != "local_disk":
        return ""
    path = HOME / spool.path
    text = str(path)
    hidden = next((each for each in _OCCUPIED if text == each or text.startswith(f"{each}/")), "")
    if text == "/" or hidden or ".." in path.parts or path == HOME or ":" in text:
        raise NotDeployable(
            f"{subscription.path}: spool.path {spool.path!r} cannot be a volume: it would hide {hidden or text} of the"
            " image. Choose a folder of its own, for example spool/orders (below /var/lib/tape) or /data/orders."
        )
    return text


def _probed(subscription: Subscription) -> str:
    """The targets of declared probes, as http_allow: in a cluster they are seldom public addresses."""
    found = []
    for each in subscription.spec.spool.circuit.downstream:
        if each.type == "passive":
            continue
        parts = urlsplit(each.target if "://" in each.target else f"tcp://{each.target}")
        port = parts.port or {"http": 80, "https": 443, "nats": 4222}.get(parts.scheme, 0)
        if each.type == "nats":
            port = parts.port or 4222
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        found.append(f"{host}:{port}" if port else f"{host}")
    return ",".join(dict.fromkeys(found))


def probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
    """An HTTP probe on the port that runtime and gateway answer on."""
    request = {"path": path, "port": PORT}
    return {"httpGet": request, "periodSeconds": period_s, "timeoutSeconds": 3, "failureThreshold": failures}
