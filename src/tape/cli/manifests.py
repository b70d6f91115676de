"""`tape subscriptions render`: the manifests of a subscription for Kubernetes or Cloud Run."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tape.cli.options import DEFAULT_SERVER, ServerOption, read_document
from tape.cli.user_code import import_modules
from tape.errors import InvalidInput
from tape.subscriptions.api_client import connect
from tape.subscriptions.document.validator import parse_subscription

TOKEN_SECRET = "tape-internal-token"  # noqa: S105  # the name of a secret


class ManifestTarget(StrEnum):
    """Platforms that a subscription can be deployed on."""

    kubernetes = "kubernetes"
    cloud_run = "cloud-run"


def render(
    which: Annotated[
        str, typer.Argument(help="Path of a subscription, or a file with its document.", metavar="PATH|FILE")
    ],
    target: Annotated[ManifestTarget, typer.Option(help="Platform of the manifests.")] = ManifestTarget.kubernetes,
    image: Annotated[str, typer.Option(help="Container image.")] = "tape:latest",
    reach: Annotated[
        str,
        typer.Option(
            "--server-url",
            help="HTTP address of the server as seen by the container. [default on Kubernetes: http://tape:7879]",
        ),
    ] = "",
    reach_grpc: Annotated[
        str,
        typer.Option(
            "--grpc-url",
            help="gRPC address of the server as seen by workers. [default on Kubernetes: tape://tape:7878]",
        ),
    ] = "",
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace.")] = "tape",
    service_account: Annotated[
        str, typer.Option(help="Service account of the containers. [default on Kubernetes: tape-subscription]")
    ] = "",
    token_secret: Annotated[
        str, typer.Option(help="Secret with the server's internal token, key `token`.")
    ] = TOKEN_SECRET,
    source_secret: Annotated[
        str, typer.Option(help="Secret with login and certificates of the source. [default: by the path]")
    ] = "",
    storage_class: Annotated[
        str, typer.Option(help="Storage class of the spool's volume. [default: the cluster's]")
    ] = (""),
    allow: Annotated[
        str,
        typer.Option(
            "--http-allow", help="TAPE_HTTP_ALLOW of the runtime. [default: the targets of the document's probes]"
        ),
    ] = "",
    modules: Annotated[
        list[str] | None, typer.Option("--import", "-i", help="Module that runtime and workers import; repeatable.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Variable of the containers; repeatable.", metavar="NAME=VALUE")
    ] = (None),
    secret_env: Annotated[
        list[str] | None,
        typer.Option(help="Variable of the containers from a secret; repeatable.", metavar="NAME=SECRET/KEY"),
    ] = None,
    network_policy: Annotated[
        bool, typer.Option("--network-policy", help="Accept connections only on the port of health and deliveries.")
    ] = False,
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder to write each object to, in a file of its own. [default: print them]")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
) -> None:
    """Print the manifests of a remote runtime and its workers, to apply with kubectl or gcloud."""
    from tape.subscriptions.manifests import documents, to_yaml
    from tape.subscriptions.manifests.deployment import DeploymentSettings

    import_modules(modules or [])
    file = Path(which)
    content = read_document(file) if file.is_file() else connect(server).document(which)
    settings = DeploymentSettings(
        image=image,
        server_url=reach.rstrip("/"),
        grpc_url=reach_grpc,
        namespace=namespace,
        service_account=service_account,
        token_secret=token_secret,
        source_secret=source_secret,
        storage_class=storage_class,
        http_allow=allow,
        modules=tuple(modules or ()),
        environment=_pairs("--env", env),
        secret_environment={name: _secret_key(value) for name, value in _pairs("--secret-env", secret_env).items()},
        network_policy=network_policy,
    )
    found = documents(parse_subscription(content, "" if file.is_file() else which), target.value, settings)
    if output_dir is None:
        typer.echo(to_yaml(found), nl=False)
        return
    output_dir.mkdir(parents=True, exist_ok=True)
    for each in found:
        written = output_dir / f"{each['kind'].lower()}-{each['metadata']['name']}.yaml"
        written.write_text(to_yaml([each]), encoding="utf-8")
        typer.echo(str(written))


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """NAME=VALUE options as a mapping."""
    found = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not equals or not value or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InvalidInput(f"{option} {each!r} must look like NAME=VALUE.")
        found[name] = value
    return found


def _secret_key(text: str) -> tuple[str, str]:
    """A secret and its key; on Cloud Run the version."""
    secret, slash, key = text.partition("/")
    if not slash or not secret or not key:
        raise InvalidInput(f"--secret-env …={text} must look like NAME=SECRET/KEY, on Cloud Run NAME=SECRET/latest.")
    return secret, key
