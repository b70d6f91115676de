"""Opens the spool backend that the `spool` block of a subscription configures."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tape.base.hosts import hosts_of
from tape.errors import InvalidConfig, MissingExtra
from tape.model.tenant_names import MARK, tenant_of
from tape.subscriptions.document.spool_spec import SpoolSpec
from tape.subscriptions.spool.backend import SpoolBackend
from tape.subscriptions.spool.disk import DiskBackend
from tape.subscriptions.spool.nats import NatsBackend
from tape.subscriptions.spool.objects import BucketBackend

# Field names that a credential may use for each option of a store.
_S3 = {
    "access_key_id": ("access_key_id", "aws_access_key_id", "access_key"),
    "secret_access_key": ("secret_access_key", "aws_secret_access_key", "secret_key"),
    "session_token": ("session_token", "aws_session_token"),
    "region": ("region", "aws_region"),
    "endpoint": ("endpoint", "endpoint_url"),
}
_AZURE = {
    "account_name": ("account_name",),
    "account_key": ("account_key",),
    "sas_token": ("sas_token",),
    "endpoint": ("endpoint",),
}


def open_backend(spool: SpoolSpec, subscription: str, credential: Mapping[str, Any] | None = None) -> SpoolBackend:
    """The backend of a subscription's spool. In a bucket it is below `<prefix>/<subscription path>/`.

    The spool of a tenant's subscription is in a folder or NATS bucket of that tenant: its document cannot name the
    messages of another.
    """
    tenant = tenant_of(subscription)
    prefix = "/".join(part for part in (spool.prefix, subscription) if part)
    given = credential or {}
    match spool.backend:
        case "local_disk":
            return DiskBackend(Path(spool.path, f"{MARK}{quote(tenant, safe='')}") if tenant else spool.path)
        case "nats_object":
            return NatsBackend(_nats_bucket(spool.bucket_name, tenant), **_nats_options(given))
        case "s3":
            return BucketBackend(_s3(spool.bucket_name, given), prefix, f"s3://{spool.bucket_name}")
        case "gcs":
            return BucketBackend(_gcs(spool.bucket_name, given), prefix, f"gs://{spool.bucket_name}")
        case "azure":
            return BucketBackend(_azure(spool.bucket_name, given), prefix, f"azure://{spool.bucket_name}")
        case "memory":
            return BucketBackend(_stores().MemoryStore(), prefix, "memory")


def spool_hosts(spool: SpoolSpec) -> tuple[str, ...]:
    """The hosts that a spool's credential is sent to, unless it has an address of its own."""
    match spool.backend:
        case "nats_object":
            return hosts_of({"url": os.environ.get("NATS_URL", "")})
        case "s3":
            return ("s3.amazonaws.com:443",)
        case "gcs":
            return ("storage.googleapis.com:443",)
        case "azure":
            return ("blob.core.windows.net:443",)
        case _:
            return ()


def _stores() -> Any:
    try:
        return importlib.import_module("obstore.store")
    except ImportError as error:
        raise MissingExtra("A spool in a bucket", "objects") from error


def _chosen(names: Mapping[str, tuple[str, ...]], given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for option, aliases in names.items():
        value = next((given[alias] for alias in aliases if given.get(alias)), None)
        if value is not None:
            found[option] = value
    return found


def _s3(bucket: str, given: Mapping[str, Any]) -> Any:
    options = {"region": "us-east-1", **_chosen(_S3, given)}
    return _stores().S3Store(bucket, client_options=_client(options.get("endpoint")), **options)


def _gcs(bucket: str, given: Mapping[str, Any]) -> Any:
    # Without a key the application default credentials of the machine are used.
    options: dict[str, Any] = {}
    if given.get("type") == "service_account":
        options["service_account_key"] = json.dumps(dict(given))
    return _stores().GCSStore(bucket, **options)


def _azure(container: str, given: Mapping[str, Any]) -> Any:
    options = _chosen(_AZURE, given)
    return _stores().AzureStore(container, client_options=_client(options.get("endpoint")), **options)


def _client(endpoint: Any) -> dict[str, Any]:
    return {"allow_http": True} if str(endpoint or "").startswith("http://") else {}


def _nats_bucket(name: str, tenant: str) -> str:
    """The bucket of a tenant. NATS allows letters, digits, _ and - in the name of a bucket."""
    return f"{name}-{hashlib.sha256(tenant.encode()).hexdigest()[:32]}" if tenant else name


def _nats_options(given: Mapping[str, Any]) -> dict[str, Any]:
    url = given.get("url") or given.get("nats_url") or os.environ.get("NATS_URL")
    if not url:
        raise InvalidConfig(
            "A spool in NATS needs to know the server: name a credential with a 'url' in spool.credential,"
            " or set NATS_URL."
        )
    options = {"servers": url}
    for option in ("user", "password", "token"):
        if value := given.get(option) or given.get(f"nats_{option}") or os.environ.get(f"NATS_{option.upper()}"):
            options[option] = value
    return options
