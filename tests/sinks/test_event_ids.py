"""The event id of an entry, on which receivers deduplicate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.model.entry import Entry
from tape.model.message import TenantEntry, event_id_of, fields_of, run_key_of, to_message
from tape.proto import tape_pb2 as pb
from tape.reactions.bridges.message import message_of
from tape.reactions.envelope import open_envelope
from tape.server.server import Server
from tape.sinks.relay import outbox_relay_tick
from tests.conftest import settings_for


def entry(run_id: str, tenant: str) -> Entry:
    return Entry(1, run_id, 7, "order", "/tape/order/paid/1", "{}", 1, "", "", "", 5, tenant, "", "", b"")


def test_an_entry_among_those_of_one_tenant_has_the_plain_id() -> None:
    assert event_id_of(entry("r", "acme")) == "r/7"
    assert "tenant" not in fields_of(entry("r", "acme"))


def test_an_entry_among_those_of_several_tenants_names_its_tenant() -> None:
    assert event_id_of(TenantEntry(entry("r", "acme"))) == "acme:r/7"
    assert event_id_of(TenantEntry(entry("r", ""))) == ":r/7"
    assert fields_of(TenantEntry(entry("r", "acme")))["tenant"] == "acme"
    message = to_message(TenantEntry(entry("r", "acme")), "cloudevents")
    assert (message.event_id, message.deduplication_id) == ("acme:r/7", "acme:r/7")
    assert msgspec.json.decode(message.body)["id"] == "acme:r/7"


def test_no_two_runs_of_several_tenants_have_the_same_id() -> None:
    names = ["", "a", "b", "a:b", "a%3Ab", "a/b", "ü"]
    entries = [TenantEntry(entry(run_id, tenant)) for run_id in names[1:] for tenant in names]
    assert len({event_id_of(each) for each in entries}) == len(entries)
    assert len({run_key_of(each) for each in entries}) == len(entries)


class Recorder:
    """A sink that keeps the ids of what it gets."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def publish(self, entry: Any) -> None:
        self.ids.append(event_id_of(entry))

    def close(self) -> None:
        return


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_key(tmp_path / "dev.key")[0]


@pytest.fixture
async def guarded(sqlite_url: str, key: SigningKey, tmp_path: Path) -> AsyncIterator[Server]:
    jwks = str(jwks_path(tmp_path / "dev.key"))
    settings = settings_for(sqlite_url, auth_jwks=jwks, auth_issuer="tape-dev", auth_audience="tape")
    async with Server(settings) as server:
        yield server


async def relayed(server: Server, monkeypatch: pytest.MonkeyPatch, token: str = "") -> list[str]:
    monkeypatch.setenv("TAPE_TOKEN", token)
    recorder = Recorder()
    await asyncio.to_thread(outbox_relay_tick, f"tape://{server.grpc_address}", recorder)
    return recorder.ids


async def test_a_relay_that_sees_all_tenants_of_a_server_with_keys_names_them(
    guarded: Server, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("ours", "theirs"):
        token = key.mint(tenant=tenant, user="u", session="s", scopes=["service"])
        async with AsyncTapeClient(f"tape://{guarded.grpc_address}", id_token=token) as client:
            await client.append("/tape/order/paid/1", run_id="r")
    bound = key.mint(tenant="ours", user="u", session="s", scopes=["service"])
    everywhere = key.mint(tenant="ops", user="u", session="s", scopes=["service", "tenant:*"])
    assert await relayed(guarded, monkeypatch, bound) == ["r/1"]
    of_all = await relayed(guarded, monkeypatch, everywhere)
    # The audit entry of the call may be among them.
    assert [each for each in of_all if not each.startswith("ops:audit/")] == ["ours:r/1", "theirs:r/1"]


async def test_a_relay_of_an_open_server_keeps_the_plain_ids(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        await client.append("/tape/order/paid/1", run_id="r", tenant="shop")
    assert await relayed(server, monkeypatch) == ["r/1"]


def test_a_bridge_names_the_tenant_where_the_server_says_so() -> None:
    task = pb.Task(source_run_id="r", source_seq=7, subject="/tape/order/paid/1", payload_json="{}", reaction_id="x")
    assert message_of(open_envelope(task)).deduplication_id == "r/7@x"
    task.source_tenant = "acme"
    assert open_envelope(task).event_id == "acme:r/7"
    message = message_of(open_envelope(task))
    assert (message.event_id, message.deduplication_id) == ("acme:r/7", "acme:r/7@x")
