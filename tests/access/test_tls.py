"""TLS on the listeners: real handshakes, reloads, limits, and what a client is told when its connection is refused."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tape.base.config import Settings, TlsFiles, load_settings
from tape.client import AsyncTapeClient
from tape.client.stream import stream
from tape.engine.security import dev_certificates
from tape.engine.security.dev_certificates import DevAuthority, Pair
from tape.errors import ApiRefused, InvalidConfig, ServerUnreachable
from tape.server.gateway import Gateway
from tape.server.server import Server
from tape.subscriptions.api_client import Control
from tests.conftest import settings_for
from tests.web import Answer, Stream, call


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and the certificates of a server and of another server, made once."""
    folder = tmp_path_factory.mktemp("made")
    DevAuthority(folder).server()
    other = folder / "other"
    other.mkdir()
    for name in ("ca.crt", "ca.key"):
        shutil.copy(folder / name, other / name)
    DevAuthority(other).server()
    DevAuthority(folder / "stranger").server()
    return folder


@pytest.fixture
def certs(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "certs"))


@pytest.fixture
def trusting(certs: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Clients of this process trust the authority."""
    monkeypatch.setenv("TAPE_CA", str(certs / "ca.crt"))
    return ssl.create_default_context(cafile=str(certs / "ca.crt"))


def tls_settings(store: str, certs: Path, **changes: object) -> Settings:
    files = {"tls_cert": str(certs / "server.crt"), "tls_key": str(certs / "server.key")}
    return settings_for(store, **(files | changes))


@contextlib.asynccontextmanager
async def serving(store: str, certs: Path, **changes: object) -> AsyncIterator[Server]:
    async with Server(tls_settings(store, certs, **changes)) as server:
        yield server


@pytest.fixture
async def server(sqlite_url: str, certs: Path, trusting: ssl.SSLContext) -> AsyncIterator[Server]:
    async with serving(sqlite_url, certs) as server:
        yield server


def serial_of(address: str, tls: ssl.SSLContext) -> int:
    """The serial number of the certificate that a listener presents."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as plain:
        with tls.wrap_socket(plain, server_hostname=host) as secure:
            der = secure.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def serial_in(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def metric(server: Server | Gateway, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", server.metrics.render().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def until_metric(server: Server, name: str, value: float = 1.0) -> None:
    async with asyncio.timeout(60):
        while metric(server, name) < value:
            await asyncio.sleep(0.02)


async def publish(server: Server, tls: ssl.SSLContext, data: object) -> Answer:
    attributes = {"ce_specversion": "1.0", "ce_type": "order.paid", "ce_source": "/test", "ce_id": "1"}
    return await call(server.http_address, "POST", "/v1/events", data, tls=tls, **attributes)


async def ask_api(url: str) -> list[dict[str, Any]]:
    """List the subscriptions as the command line does."""
    control = Control(url)
    try:
        return await asyncio.to_thread(control.list)
    finally:
        control.close()


# ── handshakes ───────────────────────────────────────────────────────────────────────────────────


async def test_the_client_appends_and_follows_over_tls(server: Server) -> None:
    async with AsyncTapeClient(f"tapes://{server.grpc_address}") as client:
        seq = await client.append("/tape/order/created/1", {"n": 1})
        async for entry in client.follow(from_global_seq=seq - 1):
            assert entry.subject == "/tape/order/created/1"
            break


async def test_http_requests_streams_and_the_api_work_over_tls(server: Server, trusting: ssl.SSLContext) -> None:
    assert (await call(server.http_address, "GET", "/healthz", tls=trusting)).status == 200
    async with Stream(server.http_address, tls=trusting) as events:
        posted = await publish(server, trusting, {"n": 1})
        assert posted.status == 200, posted.body
        assert (await events.until("order.paid"))[-1].data["payload"] == {"n": 1}
    assert await ask_api(f"https://{server.http_address}") == []


async def test_the_http_stream_of_the_sdk_works_over_tls(server: Server) -> None:
    async with AsyncTapeClient(f"tapes://{server.grpc_address}") as client:
        await client.append("/tape/order/created/1", {"n": 1})
    events = stream(f"https://{server.http_address}", after=0)
    assert (await anext(events)).type == "order.created"
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_body_of_many_records_arrives_whole_over_tls(server: Server, trusting: ssl.SSLContext) -> None:
    payload = {f"part{n}": list(range(1_000)) for n in range(100)}
    assert (await publish(server, trusting, payload)).status == 200
    listed = await call(server.http_address, "POST", "/v1/events/list", {}, tls=trusting)
    assert listed.json()["events"][0]["payload"] == payload


@pytest.mark.parametrize("listener", ["grpc_address", "http_address"])
async def test_tls_1_1_is_refused(server: Server, trusting: ssl.SSLContext, listener: str) -> None:
    trusting.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trusting.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trusting.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        await asyncio.to_thread(serial_of, getattr(server, listener), trusting)


# ── what a refused client learns ─────────────────────────────────────────────────────────────────


async def test_a_client_that_does_not_trust_the_authority_learns_of_tape_ca(
    server: Server, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ca in ("", str(certs / "stranger/ca.crt")):
        monkeypatch.setenv("TAPE_CA", ca)
        async with AsyncTapeClient(f"tapes://{server.grpc_address}") as client:
            with pytest.raises(ServerUnreachable, match=r"CERTIFICATE_VERIFY_FAILED.*set TAPE_CA"):
                await client.head()
        with pytest.raises(ServerUnreachable, match=r"CERTIFICATE_VERIFY_FAILED.*set TAPE_CA"):
            await ask_api(f"https://{server.http_address}")
        with pytest.raises(ServerUnreachable, match=r"CERTIFICATE_VERIFY_FAILED.*set TAPE_CA"):
            await anext(stream(f"https://{server.http_address}"))


async def test_a_certificate_for_other_names_is_refused_with_that_reason(
    sqlite_url: str, certs: Path, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(sqlite_url, certs, listen="127.0.0.2:0", http_listen="127.0.0.2:0") as server:
        async with AsyncTapeClient(f"tapes://{server.grpc_address}") as client:
            with pytest.raises(ServerUnreachable, match="is for other names"):
                await client.head()
        with pytest.raises(ServerUnreachable, match="is for other names"):
            await ask_api(f"https://{server.http_address}")


async def test_a_plaintext_client_of_a_tls_port_learns_of_tls(server: Server) -> None:
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        with pytest.raises(ServerUnreachable, match="tapes://"):
            await client.head()
    answer = await call(server.http_address, "GET", "/healthz")
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert b"https://" in answer.body
    with pytest.raises(ApiRefused, match="https://"):
        await ask_api(f"http://{server.http_address}")
    assert metric(server, 'tape_tls_handshakes_failed_total{reason="plaintext"}') == 2


async def test_a_tls_client_of_a_plaintext_port_learns_of_plaintext(sqlite_url: str, trusting: ssl.SSLContext) -> None:
    async with Server(settings_for(sqlite_url)) as server:
        async with AsyncTapeClient(f"tapes://{server.grpc_address}") as client:
            with pytest.raises(ServerUnreachable, match="does not use TLS on this port: write tape://"):
                await client.head()
        with pytest.raises(ServerUnreachable):
            await ask_api(f"https://{server.http_address}")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"TAPE_CA": "none.crt"}, "TAPE_CA none.crt"),
        ({"TAPE_CLIENT_CERT": "a.crt"}, "TAPE_CLIENT_KEY is not set"),
        ({"TAPE_CLIENT_KEY": "a.key"}, "TAPE_CLIENT_CERT is not set"),
        ({"TAPE_CLIENT_CERT": "a.crt", "TAPE_CLIENT_KEY": "a.key"}, "TAPE_CLIENT_CERT a.crt"),
    ],
)
async def test_invalid_files_of_a_client_are_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidConfig, match=reason):
        AsyncTapeClient("tapes://localhost:7878")
    with pytest.raises(InvalidConfig, match=reason):
        Control("https://localhost:7879")
    AsyncTapeClient("tape://localhost:7878")  # without TLS the variables are not looked at


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def replace(certs: Path, *names: str) -> None:
    """Replace files as an operator or a renewal tool does."""
    for name in names:
        shutil.copy(certs / "other" / name, certs / f"{name}.new")
        (certs / f"{name}.new").replace(certs / name)


async def test_a_new_certificate_is_used_without_dropping_open_connections(
    server: Server, certs: Path, trusting: ssl.SSLContext
) -> None:
    before, after = serial_in(certs / "server.crt"), serial_in(certs / "other/server.crt")
    for listener in (server.grpc_address, server.http_address):
        assert await asyncio.to_thread(serial_of, listener, trusting) == before
    async with AsyncTapeClient(f"tapes://{server.grpc_address}") as client:
        seq = await client.append("/tape/order/created/1", {})
        followed = client.follow(from_global_seq=seq - 1, reconnect=False)
        assert (await anext(followed)).global_seq == seq
        async with Stream(server.http_address, tls=trusting) as events:
            replace(certs, "server.key", "server.crt")
            await until_metric(server, 'tape_tls_reloads_total{outcome="ok"}')
            for listener in (server.grpc_address, server.http_address):
                assert await asyncio.to_thread(serial_of, listener, trusting) == after
            seq = await client.append("/tape/order/created/2", {})
            assert (await anext(followed)).global_seq == seq
            assert (await events.until("order.created"))[-1].id == seq
        await followed.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", ["half written", "mismatched", "removed"])
async def test_files_that_cannot_be_loaded_leave_the_previous_certificate_in_use(
    server: Server, certs: Path, trusting: ssl.SSLContext, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    before, after = serial_in(certs / "server.crt"), serial_in(certs / "other/server.crt")
    key = (certs / "server.key").read_bytes()
    match damage:
        case "half written":
            (certs / "server.key").write_bytes(key[:100])
        case "mismatched":
            replace(certs, "server.key")
        case _:
            (certs / "server.key").unlink()
    await until_metric(server, 'tape_tls_reloads_total{outcome="failed"}')
    for listener in (server.grpc_address, server.http_address):
        assert await asyncio.to_thread(serial_of, listener, trusting) == before
    assert "the previous certificate stays in use" in caplog.text
    assert key.decode() not in caplog.text
    replace(certs, "server.key", "server.crt")
    await until_metric(server, 'tape_tls_reloads_total{outcome="ok"}')
    for listener in (server.grpc_address, server.http_address):
        assert await asyncio.to_thread(serial_of, listener, trusting) == after


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tls_key": ""}, "tls_key is not set; TLS needs both"),
        ({"tls_cert": ""}, "tls_cert is not set; TLS needs both"),
        ({"tls_cert": "none.crt"}, r"tls_cert none\.crt cannot be read: No such file.*`tape certs dev`"),
        ({"tls_key": "other/server.key"}, r"tls_key \S+ does not belong to tls_cert"),
        ({"tls_cert": "ca.key"}, r"tls_cert \S+ and tls_key \S+ cannot be loaded .*PEM"),
        ({"tls_client_ca": "server.key"}, r"tls_client_ca \S+ has no certificates in PEM"),
        ({"tls_cert": "", "tls_key": "", "tls_client_ca": "ca.crt"}, "tls_cert and tls_key are not"),
        ({"tls_client_listen": "127.0.0.1:0"}, "tls_client_ca is not"),
    ],
)
async def test_invalid_files_are_named_at_start(
    sqlite_url: str, certs: Path, changes: dict[str, str], reason: str
) -> None:
    paths = {name: str(certs / value) if (certs / value).is_file() else value for name, value in changes.items()}
    with pytest.raises(InvalidConfig, match=reason):
        async with serving(sqlite_url, certs, **paths):
            pass


async def test_an_encrypted_key_is_refused_instead_of_asking_for_its_password(certs: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    private = serialization.load_pem_private_key((certs / "server.key").read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    (certs / "server.key").write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    with pytest.raises(InvalidConfig, match="the key is encrypted"):
        Server(tls_settings("sqlite:tape.db", certs))


async def test_the_metrics_show_when_the_certificate_expires(server: Server, certs: Path, sqlite_url: str) -> None:
    expires = x509.load_pem_x509_certificate((certs / "server.crt").read_bytes()).not_valid_after_utc
    left = (expires - datetime.datetime.now(datetime.UTC)).total_seconds()
    assert abs(metric(server, 'tape_tls_expires_seconds{certificate="server"}') - left) < 60
    plain = Server(settings_for(sqlite_url))
    assert b"tape_tls_expires_seconds{" not in plain.metrics.render()


@pytest.mark.parametrize(("days", "text"), [(-0.01, "has expired"), (10, "expires in 10.0 days")])
async def test_a_certificate_that_expires_soon_is_reported_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, days: float, text: str
) -> None:
    monkeypatch.setattr(dev_certificates, "CERTIFICATE_DAYS", days)
    DevAuthority(tmp_path).server()
    Server(tls_settings(f"sqlite:{tmp_path / 'tape.db'}", tmp_path))
    assert text in caplog.text


# ── limits before the end of the handshake ───────────────────────────────────────────────────────


async def test_a_client_that_never_finishes_its_handshake_is_closed(
    sqlite_url: str, certs: Path, trusting: ssl.SSLContext
) -> None:
    async with serving(sqlite_url, certs, http_header_timeout_s=0.3) as server:
        host, _, port = server.http_address.rpartition(":")
        for first in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(first)
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
        await until_metric(server, 'tape_tls_handshakes_failed_total{reason="timeout"}', 3)
        assert (await call(server.http_address, "GET", "/healthz", tls=trusting)).status == 200


async def test_500_unfinished_handshakes_are_closed(sqlite_url: str, certs: Path, trusting: ssl.SSLContext) -> None:
    async with serving(sqlite_url, certs, http_header_timeout_s=0.5) as server:
        host, _, port = server.http_address.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(500)]
        for number, (_, writer) in enumerate(opened):
            writer.write(b"\x16" if number % 2 else b"")
        async with asyncio.timeout(60):
            for reader, writer in opened:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
        assert (await call(server.http_address, "GET", "/healthz", tls=trusting)).status == 200


async def test_unfinished_handshakes_count_as_connections(
    sqlite_url: str, certs: Path, trusting: ssl.SSLContext
) -> None:
    async with serving(sqlite_url, certs, http_max_connections=3) as server:
        host, _, port = server.http_address.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        async with Stream(server.http_address, tls=trusting):
            with pytest.raises(OSError):
                await call(server.http_address, "GET", "/healthz", tls=trusting)
            await until_metric(server, 'tape_tls_handshakes_failed_total{reason="limit"}')
        for _, writer in idle:
            writer.close()
        async with asyncio.timeout(60):
            while True:  # until the server notices that they are gone
                with contextlib.suppress(OSError):
                    assert (await call(server.http_address, "GET", "/healthz", tls=trusting)).status == 200
                    break


async def test_hostile_bytes_are_refused_without_a_traceback(
    server: Server, trusting: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.http_address.rpartition(":")
    with caplog.at_level(logging.INFO):
        for garbage in (b"\x16" * 2_000, b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000, b"\x80\x2e\x01\x00\x02", b"\x00"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
    assert all(record.exc_info is None for record in caplog.records)
    assert "Traceback" not in caplog.text
    assert (await call(server.http_address, "GET", "/healthz", tls=trusting)).status == 200


async def test_the_limits_of_headers_hold_after_the_handshake(server: Server, trusting: ssl.SSLContext) -> None:
    assert (await call(server.http_address, "GET", "/healthz", tls=trusting, a="x" * 70_000)).status == 431


async def test_a_client_that_does_not_read_leaves_64_kib_in_memory(server: Server, trusting: ssl.SSLContext) -> None:
    async with Stream(server.http_address, tls=trusting):
        assert server._http is not None
        (connection,) = server._http.server_state.connections
        assert connection.transport.get_write_buffer_limits()[1] == 64 << 10


async def test_slow_headers_after_the_handshake_are_answered_with_408(
    sqlite_url: str, certs: Path, trusting: ssl.SSLContext
) -> None:
    async with serving(sqlite_url, certs, http_header_timeout_s=0.3) as server:
        host, _, port = server.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\na: ")
        assert b" 408 " in await reader.readline()
        async with asyncio.timeout(30):
            await reader.read()
        writer.close()


async def test_a_grpc_client_that_never_finishes_its_handshake_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = server.grpc_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(30):  # 10 s after it connected
        assert await reader.read() == b""
    writer.close()


async def test_a_server_with_open_tls_connections_stops(sqlite_url: str, certs: Path, trusting: ssl.SSLContext) -> None:
    async with asyncio.timeout(30):
        async with serving(sqlite_url, certs) as server:
            host, _, port = server.http_address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            events = Stream(server.http_address, tls=trusting)
            await events.__aenter__()
        writer.close()
        await events.__aexit__()
    with pytest.raises(OSError):
        await call(server.http_address, "GET", "/healthz", tls=trusting)


# ── listening where other machines can connect ───────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["listen", "http_listen"])
def test_an_address_that_other_machines_reach_needs_tls_or_insecure(name: str, certs: Path) -> None:
    open_to_all = {name: "0.0.0.0:0", "anonymous": "network"}
    with pytest.raises(InvalidConfig, match=rf"{name} is '0\.0\.0\.0:0'.*--tls-cert.*127\.0\.0\.1.*TAPE_INSECURE=1"):
        load_settings(open_to_all, {})
    assert load_settings(open_to_all, {"TAPE_INSECURE": "1"}).unencrypted == ["0.0.0.0:0"]
    files = {"tls_cert": str(certs / "server.crt"), "tls_key": str(certs / "server.key")}
    assert load_settings(open_to_all | files, {}).unencrypted == []


async def test_an_insecure_server_says_so_in_its_log(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_for(sqlite_url, listen="0.0.0.0:0", anonymous="network", insecure=True)
    async with Server(settings):
        assert "0.0.0.0:0 without TLS" in caplog.text


# ── gateways ─────────────────────────────────────────────────────────────────────────────────────


def files_of(certs: Path, client_ca: str = "") -> TlsFiles:
    return TlsFiles(str(certs / "server.crt"), str(certs / "server.key"), client_ca)


async def test_a_gateway_uses_tls_on_both_sides(sqlite_url: str, certs: Path, trusting: ssl.SSLContext) -> None:
    async with serving(sqlite_url, certs, internal_token="hush") as server:
        async with Gateway(f"https://{server.http_address}", "hush", tls=files_of(certs)) as gateway:
            assert (await call(gateway.address, "GET", "/readyz", tls=trusting)).status == 200
            assert (await call(gateway.address, "POST", "/ingress/none", b"{}", tls=trusting)).status == 404
            assert (await call(gateway.address, "GET", "/readyz")).status == 400


async def test_a_gateway_with_an_authority_accepts_deliveries_with_a_certificate_only(
    sqlite_url: str, certs: Path, trusting: ssl.SSLContext
) -> None:
    pair: Pair = DevAuthority(certs).client("sender.example.com")
    known = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    known.load_cert_chain(pair.cert, pair.key)
    async with serving(sqlite_url, certs, internal_token="hush") as server:
        tls = files_of(certs, str(certs / "ca.crt"))
        async with Gateway(f"https://{server.http_address}", "hush", tls=tls) as gateway:
            assert (await call(gateway.address, "POST", "/ingress/none", b"{}", tls=trusting)).status == 401
            assert (await call(gateway.address, "POST", "/ingress/none", b"{}", tls=known)).status == 404
            assert (await call(gateway.address, "GET", "/healthz", tls=trusting)).status == 200


def test_a_gateway_for_other_machines_needs_tls_or_insecure() -> None:
    with pytest.raises(InvalidConfig, match="TAPE_INSECURE=1"):
        Gateway("http://127.0.0.1:1", "token", "0.0.0.0:0")
