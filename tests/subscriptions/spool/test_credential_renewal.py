"""A credential that expires while a spool is used is read again, without a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tape.errors import InvalidConfig, SpoolUnavailable, StoreUnavailable
from tape.subscriptions.document.spool_spec import SpoolSpec
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.credential_renewal import RenewingBackend, fields_of
from tests.objects import KEY, SECRET, S3Server

SPEC = SpoolSpec(mode="buffer_and_ack", backend="s3", bucket="spool/renewed", credential="bucket")


class Wallet:
    def __init__(self, secret: Any) -> None:
        self.secret = secret
        self.asked = 0

    async def __call__(self, alias: str, hosts: Sequence[str]) -> Any:
        assert (alias, hosts) == ("bucket", ("s3.amazonaws.com:443",))
        self.asked += 1
        if isinstance(self.secret, Exception):
            raise self.secret
        return self.secret


def keys(server: S3Server, secret: str = SECRET) -> dict[str, str]:
    return {"access_key_id": KEY, "secret_access_key": secret, "endpoint": server.endpoint}


async def test_what_an_expired_credential_refuses_is_done_with_the_new_one(s3_server: S3Server) -> None:
    wallet = Wallet(keys(s3_server))
    backend = RenewingBackend(SPEC, "subscriptions/orders", keys(s3_server, "expired"), wallet)
    await backend.put(Area.LIVE, [("1-m", b"one")])
    assert await backend.get(Area.LIVE, "1-m") == b"one"
    assert wallet.asked == 1


@pytest.mark.parametrize("secret", ["the same", "none", "text"])
async def test_without_a_new_credential_the_refusal_stands(s3_server: S3Server, secret: str) -> None:
    old = keys(s3_server, "expired")
    held = {"the same": old, "none": StoreUnavailable("the server is away"), "text": "s3cret"}[secret]
    backend = RenewingBackend(SPEC, "subscriptions/orders", old, Wallet(held))
    with pytest.raises(SpoolUnavailable):
        await backend.put(Area.LIVE, [("1-m", b"one")])


def test_a_plain_text_credential_is_rejected() -> None:
    with pytest.raises(InvalidConfig, match=r"is plain text.*tape wallet set bucket --json"):
        fields_of("bucket", "s3cret")
