"""Asking a downstream whether it is there: by HTTP, by TCP, and NATS by its port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tape.subscriptions.dispatch.probes import is_up
from tape.subscriptions.document.spool_spec import DownstreamSpec
from tape.subscriptions.document.validator import parse_subscription
from tests.objects import free_ports

pytestmark = pytest.mark.usefixtures("loopback_allowed")


@pytest.fixture
async def answering() -> AsyncIterator[Any]:
    """Starts something that answers each connection with the same bytes; gives its address."""
    servers: list[asyncio.Server] = []

    async def start(answer: bytes) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if answer:
                await reader.readline()
                writer.write(answer)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("status", "expected"), [("200 OK", True), ("404 Not Found", True), ("302 Found", True), ("503 Busy", False)]
)
async def test_http_is_up_with_any_status_below_500(answering: Any, status: str, expected: bool) -> None:
    address = await answering(
        f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nlocation: http://127.0.0.1:1/\r\n\r\n".encode()
    )
    assert await is_up(DownstreamSpec(name="d", type="http", target=f"http://{address}/health")) is expected


@pytest.mark.parametrize("kind", ["tcp", "nats"])
@pytest.mark.parametrize("form", ["{}", "nats://{}", "tls://user:secret@{}"])
async def test_tcp_and_nats_are_up_when_they_accept(answering: Any, kind: Any, form: str) -> None:
    address = await answering(b"")
    assert await is_up(DownstreamSpec(name="d", type=kind, target=form.format(address)))


@pytest.mark.parametrize("kind", ["http", "tcp", "nats"])
async def test_who_does_not_answer_is_down(kind: Any) -> None:
    (port,) = free_ports(1)
    target = f"http://127.0.0.1:{port}/" if kind == "http" else f"127.0.0.1:{port}"
    assert not await is_up(DownstreamSpec(name="d", type=kind, target=target))


@pytest.mark.parametrize("kind", ["http", "tcp", "nats"])
async def test_a_downstream_that_is_not_allowed_is_down_and_the_log_says_once_what_to_set(
    answering: Any, kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TAPE_HTTP_ALLOW")
    address = await answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    target = f"http://{address}/" if kind == "http" else address
    for _ in range(2):
        assert not await is_up(DownstreamSpec(name="d", type=kind, target=target))
    (record,) = caplog.records
    assert f"TAPE_HTTP_ALLOW={address}" in record.getMessage()


@pytest.mark.parametrize("target", ["::1", "tcp://[::1", "host:port", "host"])
async def test_a_target_that_cannot_be_read_is_down(target: str) -> None:
    assert not await is_up(DownstreamSpec(name="d", type="tcp", target=target))


def test_a_probe_may_be_called_probe_or_type_and_is_http_without_either() -> None:
    downstream = [
        {"name": "a", "probe": "tcp", "target": "127.0.0.1:1"},
        {"name": "b", "type": "nats", "target": "nats://127.0.0.1"},
        {"name": "c", "target": "http://127.0.0.1/"},
        {"name": "d", "type": "passive"},
    ]
    spec = {
        "source": "nats",
        "mode": "pull",
        "url": "nats://127.0.0.1:4222",
        "stream": "S",
        "consumer": "c",
        "dispatch": {"playbook": "p"},
        "spool": {"circuit": {"downstream": downstream}},
    }
    document = {"kind": "Subscription", "metadata": {"path": "s"}, "spec": spec}
    declared = parse_subscription(json.dumps(document)).spec.spool.circuit.downstream
    assert [each.type for each in declared] == ["tcp", "nats", "http", "passive"]
