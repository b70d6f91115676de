"""Client certificates: a verified certificate gives its tenant and scopes, over gRPC and HTTP alike."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tape.base.config import TlsClient, load_settings
from tape.client import AsyncTapeClient
from tape.engine.security import dev_certificates
from tape.engine.security.dev_certificates import DevAuthority
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import CertificateRejected, IdentityRequired, InvalidConfig, ScopeRequired, ServerUnreachable
from tape.model.principal import SERVICE_SCOPES, Principal
from tape.proto import tape_pb2 as pb
from tape.proto.call_frames import ClientMessage
from tape.server import open_streams
from tape.server.client_certificates import ClientCertificates
from tape.server.gateway import Gateway
from tape.server.server import Server
from tests.calls import Calls, outcome_of
from tests.conftest import settings_for
from tests.web import Stream, call

ROWS = (
    TlsClient("*.acme.internal", "acme", ("agent", "worker")),
    TlsClient("spiffe://rival/*", "rival", ("agent",)),
    TlsClient("none.example.com", "acme"),
    TlsClient("edge.example.com", "", ("gateway", "runtime", "tenant:*")),
)


def der_of(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.fixture
def authority(tmp_path: Path) -> DevAuthority:
    return DevAuthority(tmp_path / "certs")


@pytest.fixture
def files(authority: DevAuthority, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The TLS settings of a server whose authority clients of this process trust."""
    pair = authority.server()
    monkeypatch.setenv("TAPE_CA", str(authority.cert))
    return {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.cert)}


@pytest.fixture
async def server(sqlite_url: str, files: dict[str, str]) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url, tls_clients=ROWS, **files)) as server:
        yield server


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_key(tmp_path / "key")[0]


@pytest.fixture
async def both(sqlite_url: str, files: dict[str, str], key: SigningKey, tmp_path: Path) -> AsyncIterator[Server]:
    """A server that takes tokens too, and has a gRPC port of its own for certificates."""
    settings = settings_for(
        sqlite_url,
        tls_clients=ROWS,
        tls_client_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(tmp_path / "key")),
        **files,
    )
    async with Server(settings) as server:
        yield server


class Named:
    """A client with a certificate, over both protocols."""

    def __init__(self, authority: DevAuthority, name: str = "", token: str = "") -> None:
        self.tls = ssl.create_default_context(cafile=str(authority.cert))
        self.pair = authority.client(name) if name else None
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._token = token
        if self.pair is not None:
            self.tls.load_cert_chain(self.pair.cert, self.pair.key)

    def grpc(self, address: str, monkeypatch: pytest.MonkeyPatch) -> AsyncTapeClient:
        with monkeypatch.context() as patch:
            if self.pair is not None:
                patch.setenv("TAPE_CLIENT_CERT", str(self.pair.cert))
                patch.setenv("TAPE_CLIENT_KEY", str(self.pair.key))
            return AsyncTapeClient(f"tapes://{address}", id_token=self._token)

    async def http(self, server: Server, method: str, path: str, body: Any = b"", **headers: str) -> Any:
        return await call(server.http_address, method, path, body, tls=self.tls, **(self._headers | headers))


async def test_a_certificate_gives_its_tenant_over_grpc(
    server: Server, authority: DevAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, rival = Named(authority, "w1.acme.internal"), Named(authority, "spiffe://rival/agent")
    async with acme.grpc(server.grpc_address, monkeypatch) as mine:
        await mine.append("/tape/order/created/1", {"n": 1})
        await mine.begin_run(app_name="shop", user_id="ada", session_id="s", invocation_id="i")
        assert len((await mine.list_runs()).runs) == 1
        with pytest.raises(ScopeRequired):
            await mine.append("/tape/order/created/2", {}, tenant="rival")
        with pytest.raises(ScopeRequired):
            await mine.register_resource("kind: Playbook")
    async with rival.grpc(server.grpc_address, monkeypatch) as theirs:
        assert len((await theirs.list_runs()).runs) == 0
        seq = await theirs.append("/tape/order/created/3", {"n": 3})
        async for entry in theirs.follow(reconnect=False):
            assert (entry.tenant, entry.global_seq) == ("rival", seq)
            break


async def test_a_certificate_gives_its_tenant_over_http(server: Server, authority: DevAuthority) -> None:
    client = Named(authority, "none.example.com")
    async with Stream(server.http_address, tls=client.tls, x_harbor_session="s1") as events:
        attributes = {"ce_specversion": "1.0", "ce_type": "order.paid", "ce_source": "/test", "ce_id": "1"}
        posted = await client.http(server, "POST", "/v1/events", {"n": 1}, x_harbor_session="s1", **attributes)
        assert posted.status == 200, posted.body
        data = (await events.until("order.paid"))[-1].data
        assert (data["tenant"], data["user"], data["session"]) == ("acme", "none.example.com", "s1")
    widened = await client.http(server, "POST", "/v1/events/list", {"filter": {"tenant_ids": ["rival"]}})
    assert (widened.status, widened.json()["code"]) == (403, "identity_scope_required")
    assert (await client.http(server, "GET", "/api/subscriptions")).status == 403


async def test_a_certificate_gives_its_tenant_in_frames(
    server: Server, authority: DevAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, rival = Named(authority, "w1.acme.internal"), Named(authority, "spiffe://rival/agent")
    asked = pb.GetValueRequest(namespace="n", key="k").SerializeToString()
    async with acme.grpc(server.grpc_address, monkeypatch) as mine:
        async with asyncio.timeout(60):
            while not mine._channel.is_upgraded:
                await mine.head()
        await mine.write_value(namespace="n", key="k", value_json="1")
        assert (await mine.get_value(namespace="n", key="k")).found
        assert mine._channel.is_upgraded
    async with Calls(server.http_address, tls=rival.tls) as theirs:
        assert not pb.GetValueResponse.FromString((await theirs.call("GetValue", asked)).body).found
        assert outcome_of(await theirs.call("RedriveTasks"))[0] == "PERMISSION_DENIED"
    async with Calls(server.http_address, tls=Named(authority).tls) as nameless:
        assert outcome_of(await nameless.call("GetHead"))[0] == "UNAUTHENTICATED"


async def test_a_token_wins_over_the_certificate_in_frames(
    both: Server, authority: DevAuthority, key: SigningKey
) -> None:
    token = key.mint(tenant="shop", user="ada", session="s", scopes=["agent"])
    write = pb.WriteValueRequest(namespace="n", key="k", value_json="1").SerializeToString()
    asked = pb.GetValueRequest(namespace="n", key="k").SerializeToString()
    tls = Named(authority, "w1.acme.internal").tls
    async with Calls(both.http_address, token, tls=tls) as shop, Calls(both.http_address, tls=tls) as acme:
        assert (await shop.call("WriteValue", write)).status == 0
        assert not pb.GetValueResponse.FromString((await acme.call("GetValue", asked)).body).found
        shop.send(ClientMessage(token="damaged"))
        assert outcome_of(await shop.call("GetHead"))[0] == "UNAUTHENTICATED"


async def test_identity_headers_do_not_change_the_tenant_of_a_certificate(
    server: Server, authority: DevAuthority
) -> None:
    client = Named(authority, "none.example.com")
    answer = await client.http(
        server, "POST", "/v1/events/list", {}, x_harbor_tenant="rival", x_harbor_user="ada", x_harbor_session="s"
    )
    assert answer.status == 200
    async with Named(authority, "spiffe://rival/a").grpc(server.grpc_address, pytest.MonkeyPatch()) as theirs:
        await theirs.append("/tape/order/created/1", {}, user="ada", session="s")
    answer = await client.http(
        server, "POST", "/v1/events/list", {}, x_harbor_tenant="rival", x_harbor_user="ada", x_harbor_session="s"
    )
    assert answer.json()["events"] == []


async def test_a_certificate_that_matches_no_row_gives_no_principal(
    server: Server, authority: DevAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Named(authority, "w1.acme.internal.example.com")
    async with stranger.grpc(server.grpc_address, monkeypatch) as client:
        with pytest.raises(
            CertificateRejected, match=r"certificate_unknown \(w1\.acme\.internal\.example\.com; no row"
        ):
            await client.head()
    answer = await stranger.http(server, "POST", "/v1/events/list", {})
    assert (answer.status, answer.json()["code"]) == (401, "auth_rejected")
    assert "certificate_unknown" in answer.json()["message"]


async def test_rejected_certificates_are_audited(
    both: Server, authority: DevAuthority, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await Named(authority, "no.example.com").http(both, "POST", "/v1/events/list", {})).status == 401
    token = key.mint(tenant="a", user="u", session="s", scopes=["system"])
    async with Named(authority, token=token).grpc(both.grpc_address, monkeypatch) as client, asyncio.timeout(60):
        async for entry in client.follow("/tape/auth/rejected", reconnect=False):
            assert "certificate_unknown" in entry.payload_json
            break


async def test_a_caller_without_certificate_and_token_is_rejected(server: Server, authority: DevAuthority) -> None:
    answer = await Named(authority).http(server, "POST", "/v1/events/list", {}, x_harbor_tenant="acme")
    assert (answer.status, answer.json()["code"]) == (401, "identity_required")


async def test_grpc_refuses_a_client_without_certificate_at_the_handshake(
    server: Server, authority: DevAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Named(authority).grpc(server.grpc_address, monkeypatch) as client:
        with pytest.raises(ServerUnreachable, match="TAPE_CLIENT_CERT"):
            await client.head()


async def test_a_certificate_of_another_authority_is_refused_at_the_handshake(
    server: Server, authority: DevAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = DevAuthority(tmp_path / "forged").client("w1.acme.internal")
    stranger = Named(authority)
    stranger.pair = forged
    stranger.tls.load_cert_chain(forged.cert, forged.key)
    async with stranger.grpc(server.grpc_address, monkeypatch) as client:
        with pytest.raises(ServerUnreachable):
            await client.head()
    with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
        await stranger.http(server, "POST", "/v1/events/list", {})


async def test_a_server_certificate_is_no_client_certificate(
    server: Server, authority: DevAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Named(authority)
    wrong.pair = authority.server()
    wrong.tls.load_cert_chain(wrong.pair.cert, wrong.pair.key)
    with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
        await wrong.http(server, "POST", "/v1/events/list", {})
    async with wrong.grpc(server.grpc_address, monkeypatch) as client:
        with pytest.raises(ServerUnreachable):
            await client.head()


async def test_tokens_and_certificates_work_side_by_side(
    both: Server, authority: DevAuthority, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = key.mint(tenant="shop", user="ada", session="s", scopes=["agent"])
    with_token, with_certificate = Named(authority, token=token), Named(authority, "w1.acme.internal")
    async with with_token.grpc(both.grpc_address, monkeypatch) as client:
        await client.append("/tape/order/created/1", {})
    async with with_certificate.grpc(both.grpc_client_address, monkeypatch) as client:
        seq = await client.append("/tape/order/created/2", {})
        async for entry in client.follow(reconnect=False):
            assert (entry.tenant, entry.global_seq) == ("acme", seq)
            break
    # The port for tokens does not ask for the certificate that the client has.
    async with with_certificate.grpc(both.grpc_address, monkeypatch) as client:
        with pytest.raises(IdentityRequired):
            await client.head()
    assert (await with_token.http(both, "POST", "/v1/events/list", {})).status == 200
    assert (await with_certificate.http(both, "POST", "/v1/events/list", {})).status == 200


async def test_a_token_wins_over_the_certificate(
    both: Server, authority: DevAuthority, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = key.mint(tenant="shop", user="ada", session="s", scopes=["agent"])
    client = Named(authority, "w1.acme.internal", token)
    async with client.grpc(both.grpc_client_address, monkeypatch) as connected:
        await connected.append("/tape/order/created/1", {}, user="ada", session="s")
        async for entry in connected.follow(reconnect=False):
            assert entry.tenant == "shop"
            break
    listed = await client.http(both, "POST", "/v1/events/list", {})
    assert [event["tenant"] for event in listed.json()["events"]] == ["shop"]


@pytest.mark.parametrize("header", ["Bearer damaged", "Bearer ", "Basic YTpi"])
async def test_a_refused_token_is_not_replaced_by_the_certificate(
    both: Server, authority: DevAuthority, header: str
) -> None:
    client = Named(authority, "w1.acme.internal")
    assert (await client.http(both, "POST", "/v1/events/list", {}, authorization=header)).status == 401


async def test_a_removed_authority_counts_for_new_connections(
    server: Server, authority: DevAuthority, tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Named(authority, "w1.acme.internal")
    async with client.grpc(server.grpc_address, monkeypatch) as connected:
        await connected.append("/tape/order/created/1", {})
        trusted = authority.cert.read_bytes()
        monkeypatch.setenv("TAPE_CA", str(tmp_path / "server-ca.crt"))
        (tmp_path / "server-ca.crt").write_bytes(trusted)
        Path(files["tls_client_ca"]).write_bytes(DevAuthority(tmp_path / "new").cert.read_bytes())
        async with asyncio.timeout(60):
            while b'tape_tls_reloads_total{outcome="ok"} 1.0' not in server.metrics.render():
                await asyncio.sleep(0.02)
        await connected.append("/tape/order/created/2", {})
    async with client.grpc(server.grpc_address, monkeypatch) as again:
        with pytest.raises(ServerUnreachable):
            await again.head()
    with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
        await client.http(server, "POST", "/v1/events/list", {})


async def test_a_gateway_proves_itself_with_a_certificate(
    server: Server, authority: DevAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidConfig, match="TAPE_CLIENT_CERT"):
        Gateway(f"https://{server.http_address}", "")
    pair = authority.client("edge.example.com")
    monkeypatch.setenv("TAPE_CLIENT_CERT", str(pair.cert))
    monkeypatch.setenv("TAPE_CLIENT_KEY", str(pair.key))
    async with Gateway(f"https://{server.http_address}", "") as gateway:
        assert (await call(gateway.address, "GET", "/readyz")).status == 200


async def test_a_stream_ends_when_its_certificate_expires(
    sqlite_url: str, files: dict[str, str], authority: DevAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev_certificates, "CERTIFICATE_DAYS", 8 / 86_400)  # eight seconds
    client = Named(authority, "w9.acme.internal")
    async with Server(settings_for(sqlite_url, tls_clients=ROWS, **files)) as server:
        async with client.grpc(server.grpc_address, monkeypatch) as connected, asyncio.timeout(60):
            await connected.append("/tape/order/created/1", {})
            with pytest.raises(Exception, match="expired"):
                async for _ in connected.follow(reconnect=False):
                    pass


async def test_a_stream_outlives_the_longest_timer_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_streams, "MAX_TIMER_S", 0.01)
    expires_at, ended = time.time() + 0.2, asyncio.get_running_loop().create_future()
    open_streams.OpenStreams().watch(Principal(expires_at=expires_at), lambda: ended.set_result(time.time()))
    async with asyncio.timeout(30):
        assert await ended >= expires_at - 0.05


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("w1.acme.internal", "w1.acme.internal", True),
        ("W1.Acme.internal", "w1.acme.internal", True),
        ("*.acme.internal", "w1.acme.internal", True),
        ("*.acme.internal", "a.b.acme.internal", False),
        ("*.acme.internal", "acme.internal", False),
        ("*.acme.internal", "w1-acme.internal", False),
        ("w*.acme.internal", "w12.acme.internal", True),
        ("*.acme.internal", "spiffe://w1.acme.internal", False),
        ("spiffe://acme/worker", "spiffe://acme/worker", True),
        ("spiffe://acme/worker", "spiffe://acme/Worker", False),
        ("spiffe://acme/*", "spiffe://acme/worker", True),
        ("spiffe://acme/*", "spiffe://acme/worker/1", False),
        ("spiffe://acme/*", "spiffe://acme.example/worker", False),
        ("spiffe://acme/*/*", "spiffe://acme/worker/1", True),
    ],
)
def test_a_pattern_matches_whole_names_of_its_kind(
    authority: DevAuthority, pattern: str, name: str, matches: bool
) -> None:
    certificates = ClientCertificates([TlsClient(pattern, "acme", ("service",))])
    der = der_of(authority.client(name).cert)
    if not matches:
        with pytest.raises(CertificateRejected, match="certificate_unknown"):
            certificates.principal_of(der)
        return
    principal = certificates.principal_of(der, "s1")
    assert (principal.tenant, principal.user, principal.session) == ("acme", name, "s1")
    assert principal.scopes > SERVICE_SCOPES
    assert principal.key_id.startswith("cert:")
    assert principal.expires_at is not None
    assert principal.expires_at > time.time()


def test_the_first_matching_row_counts(authority: DevAuthority) -> None:
    der = der_of(authority.client("w1.acme.internal").cert)
    rows = [TlsClient("w1.*.internal", "first"), TlsClient("w1.acme.internal", "second")]
    assert ClientCertificates(rows).principal_of(der).tenant == "first"


def test_the_common_name_is_not_looked_at(authority: DevAuthority) -> None:
    cert = authority.client("spiffe://acme/w1.acme.internal").cert
    subject = x509.load_pem_x509_certificate(cert.read_bytes()).subject.rfc4514_string()
    assert "w1.acme.internal" in subject
    with pytest.raises(CertificateRejected):
        ClientCertificates([TlsClient("*.acme.internal", "acme")]).principal_of(der_of(cert))


def test_a_certificate_of_very_many_names_is_rejected(authority: DevAuthority) -> None:
    pair = authority.server([f"w{number}.acme.internal" for number in range(101)])
    with pytest.raises(CertificateRejected, match="more than 100 names"):
        ClientCertificates(ROWS).principal_of(der_of(pair.cert))


@pytest.mark.parametrize("der", [b"", b"\x30", b"x" * 5_000])
def test_a_malformed_certificate_is_rejected(der: bytes) -> None:
    with pytest.raises(CertificateRejected, match="certificate_malformed"):
        ClientCertificates(ROWS).principal_of(der)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (TlsClient("*", "acme"), "would match every name"),
        (TlsClient("*.*", "acme"), "would match every name"),
        (TlsClient("**.acme", "acme"), "would match every name"),
        (TlsClient("a.b", "acme", ("wroker",)), "the scope 'wroker'; there are"),
        (TlsClient("a.b", "", ("agent",)), "without a tenant"),
    ],
)
def test_invalid_rows_are_named(row: TlsClient, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        ClientCertificates([row])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("tls_clients = 4", r"tls_clients \(row 1\) as 4; write rows as \[\[tls_clients\]\]"),
        ('[[tls_clients]]\nsna = "a"', "unknown key 'tls_clients.sna'. Did you mean 'tls_clients.san'"),
        ('[[tls_clients]]\ntenant = "a"', r"tls_clients \(row 1\) .* must look like san = "),
        ('[[tls_clients]]\nsan = "a"\nscopes = "worker"', r"tls_clients \(row 1\)"),
        ('[[tls_clients]]\nsan = "a"', "tls_clients is set, and tls_client_ca is not"),
    ],
)
def test_an_invalid_table_is_rejected_with_the_key_at_fault(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "tape.toml").write_text(content)
    with pytest.raises(InvalidConfig, match=reason):
        load_settings({}, {}, tmp_path / "tape.toml")


def test_the_table_is_read_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "tape.toml").write_text(
        'tls_cert = "a"\ntls_key = "b"\ntls_client_ca = "c"\nlisten = "0.0.0.0:7878"\n'
        '[[tls_clients]]\nsan = "*.acme.internal"\ntenant = "acme"\nscopes = ["worker"]\n'
    )
    settings = load_settings({}, {}, tmp_path / "tape.toml")
    assert settings.tls_clients == (TlsClient("*.acme.internal", "acme", ("worker",)),)
