"""The backend of each `spool` block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tape.errors import InvalidConfig, SpoolUnavailable
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.locations import open_backend
from tests.broker_services import NatsServer
from tests.objects import KEY, SECRET, S3Server
from tests.subscriptions.specs import subscription


def spool(**block: Any) -> Any:
    return subscription(spool={"mode": "buffer_and_ack", **block}).spec.spool


async def test_a_folder(tmp_path: Path) -> None:
    backend = open_backend(spool(backend="local_disk", path=str(tmp_path / "spool")), "subscriptions/orders")
    await backend.put(Area.LIVE, [("k", b"1")])
    assert (tmp_path / "spool" / "k.json").read_bytes() == b"1"


@pytest.mark.parametrize("names", [("access_key_id", "secret_access_key"), ("aws_access_key_id", "secret_key")])
async def test_a_bucket_is_opened_with_its_credential_below_prefix_and_subscription(
    s3_server: S3Server, names: tuple[str, str]
) -> None:
    credential = {names[0]: KEY, names[1]: SECRET, "endpoint_url": s3_server.endpoint}
    backend = open_backend(spool(backend="s3", bucket="s3://spool/team-a"), "subscriptions/orders", credential)
    await backend.put(Area.DEAD, [("k", b"1")])
    import obstore

    found = obstore.get(s3_server.store("spool"), "team-a/subscriptions/orders/dlq/k")
    assert bytes(found.bytes()) == b"1"


async def test_expired_credentials_are_reported(s3_server: S3Server) -> None:
    credential = {"access_key": KEY, "secret_key": "expired", "endpoint": s3_server.endpoint}
    backend = open_backend(spool(backend="s3", bucket="spool"), "subscriptions/orders", credential)
    with pytest.raises(SpoolUnavailable, match="s3://spool cannot be used") as caught:
        await backend.put(Area.LIVE, [("k", b"1")])
    assert "expired" not in str(caught.value)


async def test_nats_by_its_url(nats_server: NatsServer) -> None:
    credential = {"nats_url": f"nats://{nats_server.address}"}
    backend = open_backend(spool(backend="nats_object", bucket="orders_spool"), "subscriptions/orders", credential)
    await backend.put(Area.LIVE, [("k", b"1")])
    assert await backend.get(Area.LIVE, "k") == b"1"
    await backend.close()


def test_nats_without_a_url_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    with pytest.raises(InvalidConfig, match=r"spool\.credential"):
        open_backend(spool(backend="nats_object", bucket="b"), "subscriptions/orders")


async def test_an_unavailable_server_is_reported() -> None:
    backend = open_backend(spool(backend="nats_object", bucket="b"), "s", {"url": "nats://127.0.0.1:1"})
    with pytest.raises(SpoolUnavailable, match="cannot be used"):
        await backend.get(Area.LIVE, "k")


@pytest.mark.parametrize(("tenant", "folder"), [("acme", "~acme"), ("a%2Fb", "~a%2Fb")])
async def test_a_tenants_spool_is_in_a_folder_of_its_own(tmp_path: Path, tenant: str, folder: str) -> None:
    block = spool(backend="local_disk", path=str(tmp_path))
    await open_backend(block, f"~{tenant}/orders").put(Area.LIVE, [("k", b"1")])
    assert (tmp_path / folder / "k.json").read_bytes() == b"1"
    for other in ("orders", "~other/orders"):
        assert await open_backend(block, other).get(Area.LIVE, "k") is None


async def test_two_tenants_that_name_one_nats_bucket_have_two(nats_server: NatsServer) -> None:
    credential, block = {"nats_url": f"nats://{nats_server.address}"}, spool(backend="nats_object", bucket="shared")
    ours, theirs = (open_backend(block, f"~{tenant}/orders", credential) for tenant in ("ours", "theirs"))
    await theirs.put(Area.LIVE, [("k", b"1")])
    assert await ours.get(Area.LIVE, "k") is None
    assert await theirs.get(Area.LIVE, "k") == b"1"
    for backend in (ours, theirs):
        await backend.close()
