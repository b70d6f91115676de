"""Secrets are sent to the hosts that they are bound to and to no other, and every use is on the journal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tape.base.hosts import UNPARSED, hosts_of, is_bound
from tape.brokers.settings import SourceSettings
from tape.documents.document import Document
from tape.engine import catalog
from tape.engine.security.keyfile import KeyFile
from tape.engine.security.wallet import Secret
from tape.errors import ApiRefused, InvalidInput, SecretNotBound, SourceMisconfigured
from tape.server.server import Server
from tape.subscriptions import lifecycle
from tape.subscriptions.api_client import Control
from tape.subscriptions.document.spec import DispatchSpec, SubscriptionSpec
from tape.subscriptions.runtime.assembly import secrets_of
from tests.conftest import settings_for

TOKEN = "int3rnal"
SECRET = "nats-p4ssw0rd"
PATH = "subscriptions/orders"


@pytest.fixture
async def server(store_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    key_file = tmp_path / "wallet.key"
    KeyFile(key_file).create()
    async with Server(settings_for(store_url, internal_token=TOKEN, wallet_key=str(key_file))) as server:
        yield server


@dataclass
class Listening:
    """A host that notes what connections send to it; it greets like a NATS server."""

    address: str = ""
    received: list[bytes] = field(default_factory=list)

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required":true,"max_payload":1048576,"version":"2.10.0"}\r\n')
        self.received.append(await reader.read(4096))
        writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    host = Listening()
    accepting = await asyncio.start_server(host.greet, "127.0.0.1", 0)
    host.address = f"127.0.0.1:{accepting.sockets[0].getsockname()[1]}"
    async with accepting:
        yield host


async def subscribe(server: Server, address: str) -> None:
    """Activate a subscription whose document names an address and the alias nats_main."""
    spec = {
        "source": "nats",
        "mode": "pull",
        "url": f"nats://{address}",
        "auth": "nats_main",
        "stream": "ORDERS",
        "consumer": "tape",
        "runtime": {"target": "local", "timeout_ms": 200},
        "dispatch": {"playbook": "domain/ingest"},
    }
    step = {"step": "keep", "tool": {"kind": "value", "value": 1}}
    for path, document in (
        ("domain/ingest", {"kind": "Playbook", "workflow": [step]}),
        (PATH, {"kind": "Subscription", "spec": spec}),
    ):
        content = json.dumps(document | {"metadata": {"path": path}})
        await server.database.write(lambda tx, content=content: catalog.register(tx, Document(content)))  # type: ignore[misc]
    registration = await server.database.write(lambda tx: lifecycle.register(tx, PATH))
    await server.database.write(lambda tx: lifecycle.act(tx, registration.subscription_id, "activate"))


async def payloads(server: Server, subject: str) -> list[dict[str, Any]]:
    query = "SELECT payload_json FROM tape_journal WHERE subject LIKE ? ORDER BY global_seq"
    rows = await server.database.read(lambda reader: reader.query(query, f"/tape/{subject}/%"))
    return [json.loads(row[0]) for row in rows]


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        while not (found := await condition()):
            await asyncio.sleep(0.02)
    return found


async def lost(server: Server) -> list[str]:
    query = "SELECT payload_json FROM tape_journal WHERE kind = 'subscription' ORDER BY global_seq"
    rows = await server.database.read(lambda reader: reader.query(query))
    return [row[0] for row in rows if "RECONNECTING" in row[0]]


async def test_a_document_with_a_foreign_url_does_not_get_the_bound_secret_sent_there(server: Server) -> None:
    await server.wallet.set("nats_main", SECRET, hosts=["nats.example.com:4222"])
    async with listening() as foreign:
        await subscribe(server, foreign.address)
        error = (await until(lambda: lost(server)))[0]
        for part in ("nats_main", foreign.address, f"tape wallet set nats_main --host {foreign.address}"):
            assert part in error
        assert foreign.received == []
    assert await payloads(server, "wallet/revealed") == []


async def test_a_secret_with_an_address_is_sent_to_that_address_and_not_to_the_one_in_the_document(
    server: Server,
) -> None:
    async with listening() as own, listening() as foreign:
        await server.wallet.set("nats_main", {"url": f"nats://{own.address}", "token": SECRET})
        await subscribe(server, foreign.address)
        await until(lambda: asyncio.sleep(0, any(SECRET.encode() in sent for sent in own.received)))
        assert foreign.received == []
        assert (await payloads(server, "wallet/revealed"))[0]["host"] == own.address


async def test_a_permitted_use_inside_the_server_is_journaled_with_its_host(server: Server) -> None:
    async with listening() as host:
        await server.wallet.set("nats_main", SECRET, hosts=[host.address])
        await subscribe(server, host.address)
        await until(lambda: asyncio.sleep(0, any(SECRET.encode() in sent for sent in host.received)))
    used = (await payloads(server, "wallet/revealed"))[0]
    assert used == {"alias": "nats_main", "to": f"the runtime of {PATH} in this server", "host": host.address}


async def test_the_server_refuses_a_bound_secret_for_other_hosts_and_for_an_unnamed_one(server: Server) -> None:
    await server.wallet.set("nats_main", SECRET, hosts=["nats.example.com:4222"])
    control = Control(f"http://{server.http_address}", TOKEN)
    try:
        good = "nats.example.com:4222"
        assert await asyncio.to_thread(control.credential, "nats_main", [good]) == SECRET
        for hosts in ([], ["evil.example:4222"], ["nats.example.com:4223"], [good, "evil.example:4222"]):
            with pytest.raises(ApiRefused, match=r"bound to nats\.example\.com:4222") as refused:
                await asyncio.to_thread(control.credential, "nats_main", hosts)
            assert refused.value.http_status == 403
            assert SECRET not in str(refused.value)
    finally:
        control.close()
    assert [entry["host"] for entry in await payloads(server, "wallet/revealed")] == [good]


async def test_a_secret_that_is_not_bound_is_used_with_a_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await server.wallet.set("nats_main", SECRET)
    assert await server.wallet.use("nats_main", ["nats.example.com:4222"], to="a test") == SECRET
    assert "'nats_main' is not bound to a host" in caplog.text
    assert SECRET not in caplog.text


async def test_a_new_version_keeps_the_hosts_of_the_one_before(server: Server) -> None:
    await server.wallet.set("main", "one", hosts=["A.example:4222", "b.example"])
    assert (await server.wallet.set("main", "two")).hosts == ("a.example:4222", "b.example")
    assert (await server.wallet.set("main", "three", hosts=["c.example"])).hosts == ("c.example",)
    assert (await server.wallet.find("main")).hosts == ("c.example",)
    with pytest.raises(InvalidInput, match=r"d\.example:4222, which --host does not name"):
        await server.wallet.set("main", {"url": "nats://d.example"}, hosts=["c.example"])
    for wrong in ("nats://c.example", "u@c.example", "c.example/x", "c example", ""):
        with pytest.raises(InvalidInput, match="--host"):
            await server.wallet.set("main", "four", hosts=[wrong])


async def test_a_password_by_alias_is_not_sent_to_the_address_of_another_secret() -> None:
    held: dict[str, Secret] = {
        "login": {"url": "nats://a.example", "user": "u"},
        "word": {"url": "nats://b.example", "password": SECRET},
    }

    async def reveal(alias: str, hosts: Any) -> Secret:
        return held[alias]

    base: dict[str, Any] = {"source": "nats", "mode": "pull", "dispatch": DispatchSpec(playbook="p")}
    for spec in ({"auth": "login", "password": "word"}, {"url": "nats://evil.example", "password": "word"}):
        with pytest.raises(SecretNotBound, match=r"'word' is bound to b\.example:4222"):
            await secrets_of(SubscriptionSpec(**base | spec), reveal)


def test_a_credential_with_an_address_is_not_used_by_a_source_of_another_kind() -> None:
    credential = {"url": "nats://a.example", "user": "u", "password": SECRET}
    options = {"bootstrap.servers": "evil.example", "metadata.broker.list": "evil.example", "client.id": "x"}
    kafka = SourceSettings("kafka", {"brokers": ["evil.example:9092"], "options": options}, credential)
    assert (kafka.texts("brokers"), kafka.mapping("options")) == ([], {"client.id": "x"})
    with pytest.raises(SourceMisconfigured, match=r"a\.example:4222, to pubsub\.googleapis\.com:443"):
        SourceSettings("pubsub", {"subscription": "projects/p/subscriptions/s"}, credential)


@pytest.mark.parametrize(
    ("settings", "hosts"),
    [
        ({"url": "nats://u:p@A.example., b.example:4223"}, ("a.example:4222", "b.example:4223")),
        ({"url": "nats://good.example:4222@evil.example"}, ("evil.example:4222",)),
        ({"url": "evil.example:4222/nats://good.example"}, (UNPARSED,)),
        ({"url": "nats://good.example\\@evil.example"}, ("evil.example:4222",)),
        ({"url": "nats://[::1]:4222"}, ("[::1]:4222",)),
        ({"brokers": ["k1.example", "SASL_SSL://k2.example:9093"]}, ("k1.example:9092", "k2.example:9093")),
        ({"endpoint": "https://s3.example/"}, ("s3.example:443",)),
        ({"options": {"metadata.broker.list": "k.example"}}, ("k.example:9092",)),
        ({"stream": "x"}, ()),
    ],
)
def test_the_hosts_of_settings_are_those_that_a_client_connects_to(
    settings: dict[str, Any], hosts: tuple[str, ...]
) -> None:
    assert hosts_of(settings) == hosts


def test_a_binding_without_a_port_covers_every_port_of_its_host_alone() -> None:
    assert is_bound("a.example:1", ["a.example"])
    assert is_bound("[::1]:1", ["[::1]"])
    for host in ("a.example.evil:1", "evil-a.example:1", UNPARSED, ""):
        assert not is_bound(host, ["a.example", UNPARSED])
