"""The call protocol `tape/1` as clients in any language see it: calls in frames, over an upgraded HTTP connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tape import __version__
from tape.engine.security import revoked_tokens
from tape.errors import NotFound, Overloaded, ServerStopping, TenantLimitReached, TokenRejected
from tape.proto import tape_pb2 as pb
from tape.proto.call_frames import (
    MAX_CALLS,
    MAX_METADATA,
    CallFrame,
    ClientMessage,
    FrameReader,
    MalformedMessage,
    encode,
    encode_parts,
)
from tape.server.http import incoming_calls
from tape.server.server import Server
from tests.calls import UPGRADE, Calls, Held, outcome_of, until
from tests.conftest import settings_for
from tests.web import call as send

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KEY = ed25519.Ed25519PrivateKey.generate()


@pytest.fixture
async def server(sqlite_url: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url)) as server:
        yield server


@pytest.fixture
async def calls(server: Server) -> AsyncIterator[Calls]:
    async with Calls(server.http_address) as calls:
        yield calls


@pytest.fixture
def jwks(tmp_path: Path) -> str:
    entry = {**jwt.algorithms.OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "k"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [entry]}))
    return str(tmp_path / "keys.json")


@pytest.fixture
async def guarded(sqlite_url: str, jwks: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url, auth_jwks=jwks)) as server:
        yield server


def token(tenant: str = "a", *, lives_s: float = 600.0, jti: str = "j", scopes: str = "agent") -> str:
    claims = {"tenant": tenant, "user": "ada", "session": "s", "scopes": scopes, "jti": jti}
    return jwt.encode(claims | {"exp": time.time() + lives_s}, KEY, algorithm="EdDSA", headers={"kid": "k"})


def append(*subjects: str, **fields: Any) -> bytes:
    return pb.AppendRequest(drafts=[pb.Draft(subject=each, **fields) for each in subjects]).SerializeToString()


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


async def test_each_call_of_a_message_has_its_own_answer(calls: Calls) -> None:
    sent = [
        calls.prepare("Append", append("/tape/order/created/1")),
        calls.prepare("GetRun", pb.GetRunRequest(run_id="unknown").SerializeToString()),
        calls.prepare("NoSuchMethod"),
        calls.prepare("Follow"),
        calls.prepare("BeginRun", b"\xff\xff"),
        calls.prepare("WriteValue", pb.WriteValueRequest(namespace="a\0", key="k").SerializeToString()),
        calls.prepare("GetHead"),
    ]
    calls.send(ClientMessage([call for call, _ in sent]))
    appended, unknown, no_method, stream, garbage, nul, head = [await calls.wait(reply) for _, reply in sent]
    assert list(pb.AppendResponse.FromString(appended.body).global_seqs) == [1]
    assert (outcome_of(unknown)[0], unknown.error_code) == ("NOT_FOUND", NotFound.code)
    assert outcome_of(no_method) == ("UNIMPLEMENTED", "Method not found!")
    assert outcome_of(stream) == ("UNIMPLEMENTED", "Follow is a stream; call it by gRPC.")
    assert outcome_of(garbage) == ("INVALID_ARGUMENT", "the request of BeginRun is not a valid Protobuf message.")
    assert outcome_of(nul)[0] == "INVALID_ARGUMENT"
    assert head.status == 0


async def test_the_answers_of_one_commit_leave_in_one_message(calls: Calls) -> None:
    await calls.call("GetHead")
    sent = [calls.prepare("Append", append(f"/tape/order/created/{n}")) for n in range(20)]
    before = len(calls.messages)
    calls.send(ClientMessage([call for call, _ in sent]))
    found = [pb.AppendResponse.FromString((await calls.wait(reply)).body).global_seqs[0] for _, reply in sent]
    assert found == list(range(1, 21))
    assert len(calls.messages) - before <= 2


async def test_a_call_does_not_wait_for_a_slow_one_before_it(server: Server, calls: Calls) -> None:
    held = Held(server, "GetHead")
    slow, reply = calls.prepare("GetHead")
    calls.send(ClientMessage([slow]))
    assert (await calls.call("ListRuns")).status == 0
    assert not reply.done()
    held.release.set()
    assert (await calls.wait(reply)).status == 0


async def test_appends_of_a_connection_are_numbered_in_the_order_they_were_sent(calls: Calls) -> None:
    large = append(*(f"/tape/order/created/{n}" for n in range(3_000)))  # prepared in parts
    sent = [calls.prepare("Append", each) for each in (large, append("/tape/order/paid/1"), large)]
    calls.send(ClientMessage([call for call, _ in sent]))
    seqs = [list(pb.AppendResponse.FromString((await calls.wait(reply)).body).global_seqs) for _, reply in sent]
    assert [(each[0], each[-1]) for each in seqs] == [(1, 3_000), (3_001, 3_001), (3_002, 6_001)]


async def test_a_rejected_append_does_not_hold_up_the_next(calls: Calls) -> None:
    sent = [calls.prepare("Append", append(each)) for each in ("nonsense", "/tape/order/paid/1")]
    calls.send(ClientMessage([call for call, _ in sent]))
    assert [(await calls.wait(reply)).status != 0 for _, reply in sent] == [True, False]


async def test_metadata_of_a_call_is_that_of_grpc(server: Server, calls: Calls) -> None:
    ids = pb.BeginRunRequest(app_name="a", user_id="u", session_id="s", invocation_id="i", lease_ttl_ms=60_000)
    begun = await calls.call("BeginRun", ids.SerializeToString(), metadata=[("tape-lease-owner", "worker-1")])
    run = pb.BeginRunResponse.FromString(begun.body).run_id
    state = pb.RunState.FromString((await calls.call("GetRun", pb.GetRunRequest(run_id=run).SerializeToString())).body)
    assert state.lease_owner == "worker-1"
    await calls.call("Append", append("/tape/order/paid/1"), metadata=[("traceparent", TRACEPARENT)])
    rows = await server.database.read(
        lambda reader: reader.query("SELECT trace_id, span_id FROM tape_journal ORDER BY global_seq DESC LIMIT 1")
    )
    assert list(rows) == [("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")]


async def test_a_call_ends_at_its_deadline(server: Server, calls: Calls) -> None:
    held = Held(server, "GetHead")
    assert outcome_of(await calls.call("GetHead", timeout_ms=20)) == ("DEADLINE_EXCEEDED", "Deadline Exceeded")
    assert held.cancelled == 1
    held.release.set()
    assert (await calls.call("GetHead", timeout_ms=1 << 63)).status == 0


async def test_a_client_cancels_a_call(server: Server, calls: Calls) -> None:
    held = Held(server, "GetHead")
    first, cancelled = calls.prepare("GetHead")
    second, in_same_message = calls.prepare("GetHead")
    calls.send(ClientMessage([first]))
    await until(lambda: held.begun == 1)
    calls.send(ClientMessage([second], [first.id, second.id, 12_345]))
    assert outcome_of(await calls.wait(cancelled))[0] == outcome_of(await calls.wait(in_same_message))[0] == "CANCELLED"
    assert held.cancelled == held.begun
    held.release.set()
    assert (await calls.call("GetHead")).status == 0


async def test_the_id_of_a_call_in_progress_cannot_be_used_again(server: Server, calls: Calls) -> None:
    held = Held(server, "GetHead")
    calls.send(ClientMessage([CallFrame(1 << 63, "GetHead", b""), CallFrame(1 << 63, "GetHead", b"")]))
    assert outcome_of(await calls.wait(calls.expect(1 << 63)))[0] == "INVALID_ARGUMENT"
    held.release.set()
    await until(lambda: len(calls.messages) == 2)
    assert calls.messages[1].replies[0].status == 0


async def test_a_lost_connection_cancels_calls_but_not_what_is_submitted(server: Server) -> None:
    held, writing = Held(server, "GetHead"), threading.Event()
    blocked = asyncio.create_task(server.database.write(lambda tx: writing.wait(60)))
    async with Calls(server.http_address) as calls:
        sent = [calls.prepare("GetHead")[0], calls.prepare("Append", append("/tape/order/paid/1"))[0]]
        calls.send(ClientMessage(sent))
        await until(lambda: held.begun and server.database.is_busy)
    await until(lambda: held.cancelled)
    writing.set()
    await blocked
    await until_head(server, 1)


async def until_head(server: Server, global_seq: int) -> None:
    async with asyncio.timeout(60):
        while (await server.journal.head()).global_seq != global_seq:
            await asyncio.sleep(0.005)


async def test_calls_in_frames_are_counted_like_those_by_grpc(server: Server, calls: Calls) -> None:
    await calls.call("GetHead")
    await calls.call("GetRun")
    text = server.metrics.render().decode()
    assert 'tape_rpcs_total{method="GetHead",status="OK"} 1.0' in text
    assert 'tape_rpcs_total{method="GetRun",status="NOT_FOUND"} 1.0' in text
    assert 'tape_http_requests_total{route="/v1/calls",status="101"} 1.0' in text
    assert "tape_call_connections 1.0" in text
    await calls.close()
    await until(lambda: "tape_call_connections 0.0" in server.metrics.render().decode())


async def test_the_server_says_how_it_can_be_called(server: Server, calls: Calls) -> None:
    info = pb.ServerInfo.FromString((await calls.call("GetServerInfo")).body)
    assert (info.version, list(info.call_protocols)) == (__version__, ["tape/1"])
    assert list(info.grpc_ports) == [int(server.grpc_address.rpartition(":")[2])]
    assert info.http_port == int(server.http_address.rpartition(":")[2])
    assert info.journal_id == (await server.journal.head()).journal_id
    assert info.max_message_bytes >= server.settings.grpc_max_message_bytes


async def test_an_empty_message_is_answered_with_an_empty_one(calls: Calls) -> None:
    calls.send(ClientMessage())
    await until(lambda: calls.pongs == 1)


# ── the upgrade ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"upgrade": ""}, 426),
        ({"upgrade": "websocket"}, 426),
        ({"upgrade": "tape/2"}, 426),
        ({"connection": "keep-alive"}, 426),
        ({"upgrade": "h2c, TAPE/1", "connection": "keep-alive, Upgrade"}, 101),
        ({"tape_journal": "another"}, 421),
        ({"host": "evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
    ],
)
async def test_the_upgrade_is_refused_with_a_reason(server: Server, headers: dict[str, str], status: int) -> None:
    calls = Calls(server.http_address, **headers)
    await calls.connect()
    assert calls.status == status
    if status == 426:
        assert b"upgrade: tape/1" in calls.head.lower()
    await calls.close()


async def test_the_upgrade_needs_a_get(server: Server) -> None:
    assert (await send(server.http_address, "HEAD", "/v1/calls", **UPGRADE)).status == 426
    assert (await send(server.http_address, "POST", "/v1/calls", **UPGRADE)).status == 405


async def test_the_server_of_the_named_journal_upgrades(server: Server) -> None:
    journal_id = (await server.journal.head()).journal_id
    async with Calls(server.http_address, tape_journal=journal_id) as calls:
        assert (await calls.call("GetHead")).status == 0


async def test_messages_that_come_with_the_upgrade_are_not_lost(server: Server) -> None:
    early = encode(ClientMessage([CallFrame(7, "GetHead", b"")])).decode("latin-1")
    calls = Calls(server.http_address)
    host, _, port = server.http_address.rpartition(":")
    calls.reader, calls.writer = await asyncio.open_connection(host, int(port))
    lines = f"host: {server.http_address}\r\nconnection: Upgrade\r\nupgrade: tape/1\r\n\r\n{early}"
    calls.writer.write(f"GET /v1/calls HTTP/1.1\r\n{lines}".encode("latin-1"))
    calls.head = await calls.reader.readuntil(b"\r\n\r\n")
    calls._reading = asyncio.create_task(calls._read())
    assert (await calls.wait(calls.expect(7))).status == 0
    await calls.close()


async def test_half_of_the_connections_stay_for_other_requests(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, http_max_connections=4)) as server:
        async with Calls(server.http_address) as first, Calls(server.http_address) as second:
            await first.call("GetHead")
            await second.call("GetHead")
            third = Calls(server.http_address)
            await third.connect()
            assert third.status == 503
            await third.close()
            assert (await send(server.http_address, "GET", "/healthz")).status == 200
        await until(lambda: "tape_call_connections 0.0" in server.metrics.render().decode())
        async with Calls(server.http_address) as again:
            assert (await again.call("GetHead")).status == 0


# ── who calls ────────────────────────────────────────────────────────────────────────────────────


async def test_each_call_proves_who_makes_it(guarded: Server) -> None:
    async with Calls(guarded.http_address) as calls:
        assert outcome_of(await calls.call("GetHead"))[0] == "UNAUTHENTICATED"
        with_token = await calls.call("GetHead", metadata=[("authorization", f"Bearer {token()}")])
        assert with_token.status == 0
        assert outcome_of(await calls.call("GetHead"))[0] == "UNAUTHENTICATED"
        calls.send(ClientMessage(token="nonsense"))
        assert outcome_of(await calls.call("GetHead"))[0] == "UNAUTHENTICATED"
        calls.send(ClientMessage(token=token()))
        assert (await calls.call("GetHead")).status == 0
        refused = await calls.call("RedriveTasks")
        assert outcome_of(refused)[0] == "PERMISSION_DENIED"


async def test_a_new_token_replaces_the_one_of_the_connection(guarded: Server) -> None:
    async with Calls(guarded.http_address, token("a")) as calls:
        await calls.call("WriteValue", pb.WriteValueRequest(namespace="n", key="k", value_json="1").SerializeToString())
        calls.send(ClientMessage(token=token("b")))
        asked = await calls.call("GetValue", pb.GetValueRequest(namespace="n", key="k").SerializeToString())
        assert not pb.GetValueResponse.FromString(asked.body).found


async def test_a_token_that_is_revoked_or_expires_ends_with_the_next_call(guarded: Server) -> None:
    async with Calls(guarded.http_address, token(jti="gone")) as calls:
        assert (await calls.call("GetHead")).status == 0
        await guarded.database.write(lambda tx: revoked_tokens.revoke_token(tx, "gone", "a", for_ms=86_400_000))
        await guarded.keys.refresh()
        reply = await calls.call("GetHead")
        assert (outcome_of(reply), reply.error_code) == (
            ("UNAUTHENTICATED", "jwt rejected: token_revoked"),
            TokenRejected.code,
        )
        calls.send(ClientMessage(token=token(lives_s=1.5)))
        async with asyncio.timeout(60):
            while (reply := await calls.call("GetHead")).status == 0:
                await asyncio.sleep(0.05)
        assert outcome_of(reply) == ("UNAUTHENTICATED", "jwt rejected: token_expired")


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def short_limits(sqlite_url: str, jwks: str) -> AsyncIterator[Server]:
    changes = {"http_header_timeout_s": 0.3, "http_body_timeout_s": 0.3}
    async with Server(settings_for(sqlite_url, auth_jwks=jwks, **changes)) as server:
        yield server


async def test_a_connection_without_an_admitted_call_is_closed(sqlite_url: str, jwks: str) -> None:
    async with short_limits(sqlite_url, jwks) as server:
        async with Calls(server.http_address) as silent:
            await silent.ended()
        async with Calls(server.http_address, "nonsense") as calls:
            assert outcome_of(await calls.call("GetHead"))[0] == "UNAUTHENTICATED"
            await calls.ended()
        async with Calls(server.http_address, token()) as known:
            assert (await known.call("GetHead")).status == 0
            await asyncio.sleep(0.5)  # longer than the limit: an idle connection of a known caller stays
            assert (await known.call("GetHead")).status == 0


async def test_a_message_that_stops_in_the_middle_ends_the_connection(sqlite_url: str, jwks: str) -> None:
    async with short_limits(sqlite_url, jwks) as server, Calls(server.http_address, token()) as calls:
        assert (await calls.call("GetHead")).status == 0
        calls.writer.write(encode(ClientMessage([CallFrame(5, "GetHead", b"")]))[:-1])
        await calls.ended()


def too_many_calls() -> bytes:
    return encode(ClientMessage([CallFrame(number, "GetHead", b"") for number in range(MAX_CALLS + 1)]))


def too_much_metadata() -> bytes:
    return encode(ClientMessage([CallFrame(1, "GetHead", b"", 0, [("a", "b")] * (MAX_METADATA + 1))]))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x06\x93\xdd\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        too_many_calls(),
        too_much_metadata(),
        (100_004).to_bytes(4, "big") + b"\x94\x90\x90\xc0" + b"\x91" * 100_000,
    ],
    ids=["long", "empty", "opcode", "length", "http", "calls", "metadata", "nested"],
)
async def test_a_malformed_message_ends_the_connection_with_one_line(
    server: Server, calls: Calls, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        incoming_calls._log._next = 0.0
        calls.writer.write(data)
        await calls.ended()
    (record,) = [each for each in caplog.records if each.name.startswith("tape.server.http")]
    assert record.getMessage().startswith("call connection closed: malformed message: ")
    assert record.exc_info is None
    assert (await send(server.http_address, "GET", "/healthz")).status == 200


async def test_a_message_larger_than_the_limit_is_refused_from_its_length(server: Server, calls: Calls) -> None:
    info = pb.ServerInfo.FromString((await calls.call("GetServerInfo")).body)
    calls.writer.write((info.max_message_bytes + 1).to_bytes(4, "big"))
    await calls.ended()


async def test_too_much_metadata_is_an_error_of_its_call(calls: Calls) -> None:
    reply = await calls.call("GetHead", metadata=[("a", "x" * 70_000)])
    assert outcome_of(reply)[0] == "RESOURCE_EXHAUSTED"
    assert (await calls.call("GetHead")).status == 0


@pytest.mark.parametrize("limit", ["calls", "bytes"])
async def test_a_connection_is_not_read_beyond_what_it_may_have_in_progress(
    server: Server, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    body = b""
    monkeypatch.setattr(incoming_calls, "SIGN_S", 0.1)
    if limit == "calls":
        monkeypatch.setattr(incoming_calls, "MAX_CALLS_IN_PROGRESS", 4)
    else:  # four such requests are more than a message may have
        body = pb.WriteValueRequest(namespace="n", key="k", value_json="1" * 1_100_000).SerializeToString()
    held = Held(server, "WriteValue")
    async with Calls(server.http_address) as calls:
        sent = [calls.prepare("WriteValue", body) for _ in range(12)]
        for call, _ in sent:
            calls.send(ClientMessage([call]))
        await until(lambda: held.begun == 4)
        await until(lambda: calls.pongs)  # it is not read, and says so: its own pings would have no answer
        assert held.begun == 4
        held.release.set()
        for _, reply in sent:
            await calls.wait(reply)


async def test_a_client_that_does_not_read_is_not_read_from(server: Server) -> None:
    begun = 0

    async def answer_at_length(request: Message, context: Any) -> bytes:
        nonlocal begun
        begun += 1
        return b"x" * (256 << 10)

    server._methods["GetHead"]._function = answer_at_length
    async with Calls(server.http_address) as calls:
        assert calls._reading is not None
        calls._reading.cancel()
        await asyncio.gather(calls._reading, return_exceptions=True)
        sent = [calls.prepare("GetHead") for _ in range(120)]
        for call, _ in sent:
            calls.writer.write(encode(ClientMessage([call])))
            await asyncio.sleep(0)
        count = -1
        while begun != count:  # until the buffers of the system and of the transport are full
            count = begun
            await asyncio.sleep(0.1)
        assert count < 100
        calls._reading = asyncio.create_task(calls._read())
        for _, reply in sent:
            assert (await calls.wait(reply)).status == 0


async def test_the_limit_of_concurrent_calls_holds_for_both_protocols(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, grpc_max_concurrent_calls=1)) as server:
        held = Held(server, "GetHead")
        async with Calls(server.http_address) as calls:
            slow, reply = calls.prepare("GetHead")
            calls.send(ClientMessage([slow]))
            await until(lambda: held.begun)
            refused = await calls.call("ListRuns")
            assert (outcome_of(refused)[0], refused.error_code) == ("RESOURCE_EXHAUSTED", Overloaded.code)
            held.release.set()
            assert (await calls.wait(reply)).status == 0


async def test_the_limits_of_a_tenant_count_calls_in_frames(sqlite_url: str, jwks: str) -> None:
    async with Server(settings_for(sqlite_url, auth_jwks=jwks, tenant_max_calls=1)) as server:
        held = Held(server, "GetHead")
        async with Calls(server.http_address, token("a")) as one, Calls(server.http_address, token("b")) as other:
            slow, reply = one.prepare("GetHead")
            one.send(ClientMessage([slow]))
            await until(lambda: held.begun)
            refused = await one.call("GetServerInfo")
            assert (outcome_of(refused)[0], refused.error_code) == ("RESOURCE_EXHAUSTED", TenantLimitReached.code)
            assert refused.trailers == [("grpc-retry-pushback-ms", "1000")]
            assert (await other.call("GetServerInfo")).status == 0
            held.release.set()
            assert (await one.wait(reply)).status == 0


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_stopping_server_answers_accepted_calls_and_no_others(server: Server, calls: Calls) -> None:
    held = Held(server, "GetHead")
    accepted, reply = calls.prepare("GetHead")
    calls.send(ClientMessage([accepted]))
    await until(lambda: held.begun)
    stopping = asyncio.create_task(server.stop())
    await until(lambda: calls.is_closing)
    refused = await calls.call("ListRuns")
    assert (outcome_of(refused)[0], refused.error_code) == ("UNAVAILABLE", ServerStopping.code)
    held.release.set()
    assert (await calls.wait(reply)).status == 0
    await calls.ended()
    await stopping


async def test_a_call_that_does_not_end_is_cut_off_after_the_grace_period(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, shutdown_grace_s=1.0)) as server, Calls(server.http_address) as calls:
        held = Held(server, "GetHead")
        calls.send(ClientMessage([calls.prepare("GetHead")[0]]))
        await until(lambda: held.begun)
        await server.stop()
        await calls.ended()
        assert held.cancelled == 1


# ── hostile bytes ────────────────────────────────────────────────────────────────────────────────

_texts = st.text(max_size=8)
_calls = st.builds(
    CallFrame,
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from(["GetHead", "Append", "BeginRun", "Follow", "", "a\0"]) | _texts,
    st.binary(max_size=40),
    st.integers(0, (1 << 64) - 1),
    st.none() | st.lists(st.tuples(_texts, _texts), max_size=3),
)
_messages = st.builds(
    ClientMessage,
    st.lists(_calls, max_size=4),
    st.lists(st.integers(-(1 << 63), (1 << 64) - 1), max_size=3),
    st.none() | _texts,
)


@settings(max_examples=40)
@given(st.lists(_messages, max_size=3), st.integers(1, 50))
def test_messages_arrive_whole_however_their_bytes_are_cut(messages: list[ClientMessage], size: int) -> None:
    data = b"".join(map(encode, messages))
    reader, found = FrameReader(ClientMessage), []
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
        while (message := reader.next()) is not None:
            found.append(message)
    assert list(map(encode, found)) == list(map(encode, messages))
    assert reader.is_empty


@given(st.lists(_calls, min_size=1, max_size=30), st.integers(20, 400))
def test_parts_are_sent_in_messages_within_the_limit(parts: list[CallFrame], limit: int) -> None:
    reader, found = FrameReader(ClientMessage), []
    reader.feed(encode_parts(parts, ClientMessage, limit))
    while (message := reader.next()) is not None:
        assert len(message.calls) == 1 or len(encode(message)) <= limit
        found += message.calls
    assert found == parts


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """A message with some bytes changed, cut out or put in; its length is often right."""
    data = bytearray(encode(draw(_messages)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        if not data:
            data = bytearray(b"\0")
    if draw(st.booleans()):
        data[:4] = max(len(data) - 4, 0).to_bytes(4, "big")
    return bytes(data)


@given(st.binary(max_size=60) | _damaged())
def test_hostile_bytes_are_malformed_or_a_message(data: bytes) -> None:
    reader = FrameReader(ClientMessage, 1 << 16)
    reader.feed(data)
    try:
        while (message := reader.next()) is not None:
            assert isinstance(message, ClientMessage)
    except MalformedMessage:
        pass


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(_damaged() | _messages.map(encode), min_size=1, max_size=3))
async def test_hostile_bytes_harm_only_their_own_connection(
    server: Server, caplog: pytest.LogCaptureFixture, data: list[bytes]
) -> None:
    hostile = Calls(server.http_address)
    await hostile.connect()
    hostile.writer.write(b"".join(data))
    async with Calls(server.http_address) as beside:
        assert (await beside.call("GetHead")).status == 0
    await hostile.close()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
