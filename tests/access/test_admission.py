"""Limits per tenant: what one caller may have at once, and that others are served beside a flood."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from tape.base.config import Settings, load_settings
from tape.base.telemetry.metrics import Metrics
from tape.client import AsyncTapeClient, rpcs
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import InvalidConfig, TenantLimitReached
from tape.model.principal import SYSTEM_SCOPE, Principal
from tape.proto import tape_pb2 as pb
from tape.server.admission import (
    BYTES_PER_SLOT,
    COMPETING_S,
    READ_SLOTS,
    WRITE_SLOTS,
    Admission,
    TenantLimits,
    Ticket,
)
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import call

SLOTS = WRITE_SLOTS.competing
FLOOD = Principal(tenant="flood", user="f")
VICTIM = Principal(tenant="victim", user="v")
EVENT = {"specversion": "1.0", "id": "1", "source": "s", "type": "a.b"}


def refused(metrics: Metrics, limit: str) -> float:
    return metrics.registry.get_sample_value("tape_tenant_limited_total", {"limit": limit}) or 0


# ── what is counted ──────────────────────────────────────────────────────────────────────────────


def test_calls_of_a_tenant_beyond_its_limit_are_refused_and_those_of_another_are_not() -> None:
    metrics = Metrics()
    admission = Admission(TenantLimits(tenant_max_calls=2), metrics)
    first, _ = admission.enter(FLOOD, 0), admission.enter(Principal(tenant="flood", user="other"), 0)
    with pytest.raises(
        TenantLimitReached, match=r"2 calls are in progress; the limit of tenant_max_calls is 2.*raised"
    ):
        admission.enter(FLOOD, 0)
    admission.enter(VICTIM, 0)
    first.leave()
    first.leave()
    admission.enter(FLOOD, 0)
    with pytest.raises(TenantLimitReached):
        admission.enter(FLOOD, 0)
    assert refused(metrics, "tenant_max_calls") == 2


def test_bytes_in_flight_are_counted_as_announced_and_as_they_arrive() -> None:
    admission = Admission(TenantLimits(tenant_max_bytes_in_flight=1_000), Metrics())
    first = admission.enter(FLOOD, 600)
    with pytest.raises(TenantLimitReached, match="600 bytes are in progress"):
        admission.enter(FLOOD, 401)
    second = admission.enter(FLOOD, 0)
    second.grow(400)
    with pytest.raises(TenantLimitReached):
        second.grow(1)
    admission.enter(VICTIM, 1_000)
    first.leave()
    second.leave()
    admission.enter(FLOOD, 5_000)  # one request alone is bounded by its route


def test_streams_count_for_the_user_whichever_session_it_names() -> None:
    admission = Admission(TenantLimits(user_max_streams=3, tenant_max_streams=5), Metrics())
    named = [Principal(tenant="flood", user="f", session=f"s{number}") for number in range(4)]
    streams = [admission.open_stream(each) for each in named[:3]]
    with pytest.raises(TenantLimitReached, match="user_max_streams"):
        admission.open_stream(named[3])
    other = Principal(tenant="flood", user="g")
    streams += [admission.open_stream(other) for _ in range(2)]
    with pytest.raises(TenantLimitReached, match="tenant_max_streams"):
        admission.open_stream(other)
    for stream in streams:
        stream.close()
        stream.close()
    admission.open_stream(named[3])


def test_a_program_has_the_streams_of_its_tenant() -> None:
    admission = Admission(TenantLimits(user_max_streams=1, tenant_max_streams=3), Metrics())
    program = Principal(tenant="flood", key_id="key-1", scopes=frozenset({"worker"}))
    for _ in range(3):
        admission.open_stream(program)
    with pytest.raises(TenantLimitReached, match="tenant_max_streams"):
        admission.open_stream(program)


def test_a_rate_refuses_until_what_was_taken_has_been_paid_back() -> None:
    admission = Admission(TenantLimits(tenant_appends_per_s=10, tenant_bytes_per_s=1_000), Metrics())
    ticket = admission.enter(FLOOD, 0, appends=True)
    ticket.charge_appends(110)
    ticket.leave()
    with pytest.raises(TenantLimitReached, match="tenant_appends_per_s") as raised:
        admission.enter(FLOOD, 0, appends=True)
    assert 9 < raised.value.retry_after_s <= 10
    admission.enter(FLOOD, 101_000).leave()
    with pytest.raises(TenantLimitReached, match="tenant_bytes_per_s") as raised:
        admission.enter(FLOOD, 1)
    assert 99 < raised.value.retry_after_s <= 100
    admission.enter(VICTIM, 1, appends=True).leave()


def test_0_is_unlimited() -> None:
    admission = Admission(TenantLimits(*[0] * len(TenantLimits._fields)), Metrics())
    for _ in range(2_000):
        admission.enter(FLOOD, 1 << 20, appends=True)
        admission.open_stream(FLOOD)


@pytest.mark.parametrize("principal", [Principal(is_open=True), Principal(scopes=frozenset({SYSTEM_SCOPE}))])
def test_callers_of_an_open_server_and_the_servers_own_programs_have_no_limits(principal: Principal) -> None:
    limits = TenantLimits(*[1] * len(TenantLimits._fields))
    admission = Admission(limits, Metrics())
    for _ in range(10):
        admission.enter(principal, 100, appends=True)
        admission.open_stream(principal)


def test_a_tenant_without_calls_is_forgotten() -> None:
    admission = Admission(TenantLimits(), Metrics())
    for number in range(100):
        caller = Principal(tenant=f"t{number}", user="u")
        ticket, stream = admission.enter(caller, 10), admission.open_stream(caller)
        ticket.leave()
        stream.close()
    assert not admission._tenants


@pytest.mark.parametrize("name", TenantLimits._fields)
def test_a_negative_limit_is_an_invalid_setting(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} is -1.*0 is unlimited"):
        load_settings({}, env={f"TAPE_{name.upper()}": "-1"})


# ── turns ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shared() -> Admission:
    """Admission of a server that two tenants call."""
    admission = Admission(TenantLimits(), Metrics())
    for caller in (FLOOD, VICTIM, FLOOD):
        admission.enter(caller, 0).leave()
    assert admission.sharing.is_competing
    return admission


async def begin(admission: Admission, caller: Principal, size: int = 0) -> tuple[Ticket, asyncio.Task[None]]:
    """A call that takes its turn as soon as it may."""
    ticket = admission.enter(caller, size)
    turn = asyncio.create_task(ticket.turn())
    await asyncio.sleep(0)
    return ticket, turn


async def test_calls_beyond_a_tenants_slots_wait_and_another_tenants_call_does_not(shared: Admission) -> None:
    calls = [await begin(shared, FLOOD) for _ in range(100)]
    assert sum(turn.done() for _, turn in calls) == SLOTS
    _, turn = await begin(shared, VICTIM)
    assert turn.done()


async def test_calls_that_wait_get_their_turn_first_in_first_out(shared: Admission) -> None:
    calls = [await begin(shared, FLOOD) for _ in range(50)]
    order = []

    async def finish(number: int, ticket: Ticket, turn: asyncio.Task[None]) -> None:
        await turn
        order.append(number)
        ticket.leave()

    async with asyncio.timeout(60):
        await asyncio.gather(*(finish(number, *each) for number, each in enumerate(calls)))
    assert order == sorted(order)
    async with asyncio.timeout(60):
        while shared._tenants:  # the last slots rest
            await asyncio.sleep(0.001)


async def test_a_large_request_takes_all_slots_of_its_tenant(shared: Admission) -> None:
    _, first = await begin(shared, FLOOD, SLOTS * BYTES_PER_SLOT)
    _, second = await begin(shared, FLOOD, 1)
    assert (first.done(), second.done()) == (True, False)


async def test_a_tenant_that_makes_few_calls_finds_a_bounded_load(
    shared: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(shared.sharing), "seconds", COMPETING_S)
    calls = [await begin(shared, FLOOD) for _ in range(100)]
    assert sum(turn.done() for _, turn in calls) == WRITE_SLOTS.shared
    monkeypatch.setattr(type(shared.sharing), "seconds", 60.0)
    calls[0][0].leave()
    await asyncio.sleep(0)
    assert all(turn.done() for _, turn in calls)


async def test_a_long_query_does_not_hold_appends_up(shared: Admission) -> None:
    for _ in range(READ_SLOTS.competing):
        await shared.enter(FLOOD, 0, reads=True).turn()
    waiting = asyncio.create_task(shared.enter(FLOOD, 0, reads=True).turn())
    await asyncio.sleep(0)
    _, append = await begin(shared, FLOOD)
    assert (waiting.done(), append.done()) == (False, True)
    waiting.cancel()


async def test_a_call_gives_its_slot_to_the_next_before_its_response_is_sent(shared: Admission) -> None:
    calls = [await begin(shared, FLOOD) for _ in range(SLOTS + 1)]
    calls[0][0].end_turn()
    async with asyncio.timeout(60):
        await calls[-1][1]
    for ticket, _ in calls:
        ticket.leave()
    assert not shared._tenants


async def test_a_call_that_is_cancelled_while_it_waits_leaves_its_slot_to_the_next(shared: Admission) -> None:
    calls = [await begin(shared, FLOOD) for _ in range(SLOTS + 2)]
    (_, cancelled), (_, last) = calls[-2:]
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    calls[-2][0].leave()
    for ticket, _ in calls[:SLOTS]:
        ticket.leave()
    async with asyncio.timeout(60):
        await last


async def test_the_calls_of_a_tenant_alone_do_not_wait() -> None:
    admission = Admission(TenantLimits(), Metrics())
    calls = [await begin(admission, FLOOD) for _ in range(100)]
    assert all(turn.done() for _, turn in calls)


# ── over gRPC and HTTP ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_key(tmp_path / "dev.key")[0]


def guarded(store: str, tmp_path: Path, **changes: object) -> Settings:
    auth = {"auth_issuer": "tape-dev", "auth_audience": "tape", "auth_jwks": str(jwks_path(tmp_path / "dev.key"))}
    return settings_for(store, **auth, **changes)


def token_of(key: SigningKey, principal: Principal, **claims: str) -> str:
    return key.mint(tenant=principal.tenant, user=principal.user, **claims)


class Busy:
    """Keeps the writer of a server busy, so that appends stay in progress."""

    def __init__(self, server: Server) -> None:
        self._submit = server.journal.submit
        self._released = asyncio.Event()
        self.entered = asyncio.Semaphore(0)

        async def wait(request: object) -> range:
            self.entered.release()
            await self._released.wait()
            return await self._submit(request)  # type: ignore[arg-type]

        server.journal.submit = wait  # type: ignore[method-assign,assignment]

    def release(self) -> None:
        self._released.set()


@pytest.fixture
async def small(sqlite_url: str, tmp_path: Path, key: SigningKey) -> AsyncIterator[Server]:
    """A server that allows a tenant two calls and 10,000 bytes at once."""
    settings = guarded(sqlite_url, tmp_path, tenant_max_calls=2, tenant_max_bytes_in_flight=10_000)
    async with Server(settings) as server:
        yield server


async def test_a_tenant_over_its_limit_gets_resource_exhausted_with_the_time_to_wait(
    small: Server, key: SigningKey
) -> None:
    busy = Busy(small)
    request = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/a/b")]).SerializeToString()
    async with grpc.aio.insecure_channel(small.grpc_address) as channel:
        append = channel.unary_unary("/tape.v1.Tape/Append")

        def send(principal: Principal) -> grpc.aio.UnaryUnaryCall:
            return append(request, metadata=[("authorization", f"Bearer {token_of(key, principal, session='s')}")])

        waiting = [send(FLOOD), send(FLOOD)]
        for _ in waiting:
            await busy.entered.acquire()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await send(FLOOD)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "tenant_max_calls" in (raised.value.details() or "")
        trailers = dict(raised.value.trailing_metadata() or ())
        assert trailers["tape-error-code"] == TenantLimitReached.code
        assert trailers["grpc-retry-pushback-ms"] == "1000"
        other = send(VICTIM)
        await busy.entered.acquire()
        busy.release()
        await asyncio.gather(*waiting, other)
    assert refused(small.metrics, "tenant_max_calls") == 1


async def test_bytes_in_flight_are_limited_over_http_and_grpc_together(small: Server, key: SigningKey) -> None:
    busy = Busy(small)
    bearer = {"authorization": f"Bearer {token_of(key, FLOOD, session='s')}"}
    body = json.dumps(EVENT | {"data": "x" * 9_000}).encode()
    headers = bearer | {"content_type": "application/cloudevents+json"}
    posting = asyncio.create_task(call(small.http_address, "POST", "/v1/events", body, **headers))
    await busy.entered.acquire()
    answer = await call(small.http_address, "POST", "/v1/events", body, **headers)
    assert answer.status == 429
    assert answer.headers["retry-after"] == "1"
    assert json.loads(answer.body)["code"] == "limit_reached"
    assert "tenant_max_bytes_in_flight" in json.loads(answer.body)["message"]
    draft = pb.Draft(subject="/tape/a/b", payload_json=json.dumps("x" * 9_000))
    async with AsyncTapeClient(small.grpc_address, id_token=token_of(key, FLOOD, session="s")) as client:
        with pytest.raises(TenantLimitReached) as raised:
            await client._channel.call(rpcs.APPEND, pb.AppendRequest(drafts=[draft]))
        assert raised.value.retry_after_s == 1.0
    busy.release()
    assert (await posting).status == 200
    assert (await call(small.http_address, "POST", "/v1/events", body, **headers)).status == 200


async def test_an_append_on_a_stream_over_the_limit_fails_alone(small: Server, key: SigningKey) -> None:
    busy = Busy(small)
    large = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/a/b", payload_json=json.dumps("x" * 9_000))])
    async with grpc.aio.insecure_channel(small.grpc_address) as channel:
        metadata = [("authorization", f"Bearer {token_of(key, FLOOD, session='s')}")]
        stream = channel.stream_stream("/tape.v1.Tape/AppendStream")(metadata=metadata)
        await stream.write(large.SerializeToString())
        await busy.entered.acquire()
        await stream.write(large.SerializeToString())
        async with asyncio.timeout(60):
            while not refused(small.metrics, "tenant_max_bytes_in_flight"):
                await asyncio.sleep(0.005)
        busy.release()
        replies = [pb.AppendReply.FromString(await stream.read()) for _ in range(2)]
        await stream.write(large.SerializeToString())
        replies.append(pb.AppendReply.FromString(await stream.read()))
        stream.cancel()
    assert [list(reply.global_seqs) for reply in replies] == [[1], [], [2]]
    assert replies[1].error_code == TenantLimitReached.code


async def test_400_streams_of_one_token_that_names_sessions_are_refused_beyond_100(
    sqlite_url: str, tmp_path: Path, key: SigningKey
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(guarded(sqlite_url, tmp_path)))
        bearer = {"authorization": f"Bearer {token_of(key, FLOOD)}"}
        statuses = []
        for number in range(400):
            reader, writer = await asyncio.open_connection(*server.http_address.rsplit(":", 1))
            stack.callback(writer.close)
            head = [f"{name}: {value}" for name, value in (bearer | {"x-harbor-session": f"s{number}"}).items()]
            writer.write("\r\n".join(["GET /v1/events HTTP/1.1", "host: localhost", *head, "", ""]).encode())
            statuses.append((await reader.readline()).split()[1])
        assert statuses == [b"200"] * 100 + [b"429"] * 300
        assert refused(server.metrics, "user_max_streams") == 300
        other = Principal(tenant="flood", user="another")
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            for principal, status in ((FLOOD, grpc.StatusCode.RESOURCE_EXHAUSTED), (other, grpc.StatusCode.OK)):
                metadata = [("authorization", f"Bearer {token_of(key, principal, session='s')}")]
                stream = channel.stream_stream("/tape.v1.Tape/AppendStream")(iter([]), metadata=metadata)
                assert await stream.code() is status
