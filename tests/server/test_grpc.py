"""The gRPC endpoint as clients in any language see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tape.client import AsyncTapeClient, rpcs
from tape.client.channel import OPTIONS, GrpcChannel
from tape.errors import (
    CursorBeyondHead,
    CursorExpired,
    InvalidInput,
    InvalidJson,
    InvalidPattern,
    InvalidPredicate,
    InvalidSubject,
    NotFound,
    PayloadTooLarge,
    ReservedKind,
    VersionConflict,
)
from tape.journal.retention import prune
from tape.journal.verifier import verify
from tape.model.entry import Draft
from tape.model.reserved import WRITTEN_BY
from tape.proto import tape_pb2 as pb
from tape.server.grpc.frames import MAX_MESSAGE_BYTES
from tape.server.server import Server, grpc_options


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[GrpcChannel]:
    channel = GrpcChannel(f"tape://{server.grpc_address}", transport="grpc")
    yield channel
    await channel.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(f"tape://{server.grpc_address}", transport="grpc") as client:
        yield client


async def take(stream: AsyncIterator[object], count: int) -> list[object]:
    found = []
    async with asyncio.timeout(120):
        async for item in stream:
            found.append(item)
            if len(found) == count:
                break
    await stream.aclose()  # type: ignore[attr-defined]
    return found


# ── append ───────────────────────────────────────────────────────────────────────────────────────


async def test_append_returns_global_seqs(channel: GrpcChannel) -> None:
    request = pb.AppendRequest(drafts=[pb.Draft(subject=f"/tape/order/created/{n}") for n in range(3)])
    assert list((await channel.call(rpcs.APPEND, request)).global_seqs) == [1, 2, 3]
    assert list((await channel.call(rpcs.APPEND, request)).global_seqs) == [4, 5, 6]


async def test_a_repeated_append_request_appends_nothing(channel: GrpcChannel) -> None:
    request = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/order/created/1")], request_id="again")
    for _ in range(3):
        assert list((await channel.call(rpcs.APPEND, request)).global_seqs) == [1]


async def test_a_stream_of_appends_is_answered_in_order_and_survives_a_bad_one(channel: GrpcChannel) -> None:
    call = await channel.open_stream(rpcs.APPEND_STREAM)
    good = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/order/created/1")] * 2)
    bad = pb.AppendRequest(drafts=[pb.Draft(subject="nonsense")])
    for request in (good, bad, good):
        await call.write(request)
    await call.done_writing()
    replies = [reply async for reply in call]
    assert [list(reply.global_seqs) for reply in replies] == [[1, 2], [], [3, 4]]
    assert [reply.error_code for reply in replies] == ["", "TAPE-1002", ""]
    assert "must begin with /tape/" in replies[1].error_message


@pytest.mark.parametrize(
    ("draft", "error", "status"),
    [
        (pb.Draft(subject="/nope"), InvalidSubject, "INVALID_ARGUMENT"),
        (pb.Draft(subject="/tape/a/b", payload_json="{"), InvalidJson, "INVALID_ARGUMENT"),
        (pb.Draft(subject="/tape/a/b", payload_json='"' + "x" * (1 << 20) + '"'), PayloadTooLarge, "INVALID_ARGUMENT"),
        (pb.Draft(subject="/tape/a/b", trace_id="zz"), InvalidInput, "INVALID_ARGUMENT"),
    ],
)
async def test_bad_drafts_have_a_status_and_a_code(
    channel: GrpcChannel, server: Server, draft: pb.Draft, error: type[Exception], status: str
) -> None:
    with pytest.raises(error) as raised:
        await channel.call(rpcs.APPEND, pb.AppendRequest(drafts=[draft]))
    cause = raised.value.__cause__
    assert isinstance(cause, grpc.aio.AioRpcError)
    assert cause.code().name == status
    assert dict(cause.trailing_metadata())["tape-error-code"] == error.code  # type: ignore[attr-defined]
    assert (await server.journal.head()).global_seq == 0


async def test_an_entry_carries_the_span_of_the_caller(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.grpc_address) as raw:
        append = raw.unary_unary(
            "/tape.v1.Tape/Append",
            request_serializer=pb.AppendRequest.SerializeToString,
            response_deserializer=pb.AppendResponse.FromString,
        )
        traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await append(pb.AppendRequest(drafts=[pb.Draft(subject="/tape/a/b")]), metadata=[("traceparent", traceparent)])
    async with AsyncTapeClient(server.grpc_address) as client:
        (entry,) = await take(client.follow(), 1)
    assert (entry.trace_id, entry.span_id) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


@pytest.mark.parametrize(
    "subject",
    [
        *(f"/tape/{kind}/changed/a/b" for kind in WRITTEN_BY),
        "/tape/command/issued/shared/1",
        "/tape/value",
        "/tape/run/terminal/r",
        "/tape/event/appended/app",
    ],
)
async def test_a_client_cannot_append_what_tape_itself_writes(client: AsyncTapeClient, subject: str) -> None:
    with pytest.raises(ReservedKind, match="reserved; they are written by") as refused:
        await client.append(subject, {"forged": True})
    assert refused.value.status == "PERMISSION_DENIED"
    with pytest.raises(ReservedKind):
        await client.append_many([Draft(subject="/tape/order/paid"), Draft(subject=subject)])
    assert (await client.head()).global_seq == 0


async def test_one_reserved_draft_does_not_fail_the_appends_it_is_sent_with(client: AsyncTapeClient) -> None:
    subjects = ["/tape/order/paid/1", "/tape/value/changed/n/k", "/tape/order/paid/2"]
    answers = await asyncio.gather(*map(client.append, subjects), return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, ReservedKind, int]


@pytest.mark.parametrize("subject", ["/tape/session/text/s", "/tape/task/done/1", "/tape/event/seen", "/tape/runner/x"])
async def test_kinds_that_only_look_like_reserved_ones_are_the_users(client: AsyncTapeClient, subject: str) -> None:
    assert await client.append(subject) == 1


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


async def test_subscribe_by_subject_sends_history_then_live(client: AsyncTapeClient) -> None:
    await client.append("/tape/payment/confirmed/sweep/r1", {"n": 1})
    await client.append("/tape/price/changed/ns/k", {"n": 2})
    stream = client.subscribe_by_subject(subject_pattern="/tape/payment/**")
    first = await anext(stream)
    assert (first.global_seq, first.subject, first.payload_json) == (1, "/tape/payment/confirmed/sweep/r1", '{"n":1}')
    waiting = asyncio.create_task(take(stream, 2))
    await client.append("/tape/payment/failed/sweep/r1", {"n": 3})
    await client.append("/tape/payment/failed/sweep/r2", {"n": 4})
    assert [event.global_seq for event in await waiting] == [3, 4]


async def test_from_global_seq_is_exclusive(client: AsyncTapeClient) -> None:
    await client.append_many([Draft(subject="/tape/a/b")] * 5)
    stream = client.subscribe_by_subject(subject_pattern="", from_global_seq=3)
    assert [event.global_seq for event in await take(stream, 2)] == [4, 5]


async def test_subscribe_events_resumes_from_a_time_without_repeats(client: AsyncTapeClient) -> None:
    for number in range(3):
        await client.append("/tape/a/b", {"n": number}, run_id="r1")
        await asyncio.sleep(0.002)
    everything = await take(client.subscribe_events(), 3)
    from_second = client.subscribe_events(from_ts_ms=everything[1].ts_ms)
    assert [event.global_seq for event in await take(from_second, 2)] == [2, 3]
    live = client.subscribe_events(from_ts_ms=everything[0].ts_ms, run_id="r2")
    waiting = asyncio.create_task(take(live, 2))
    await client.append_many([Draft(subject="/tape/a/b", run_id=run) for run in ("r1", "r2", "r1", "r2")])
    assert [event.global_seq for event in await waiting] == [5, 7]


async def test_subscribe_events_narrows_by_kind_run_and_pattern_in_every_mode(client: AsyncTapeClient) -> None:
    await client.append_many(
        [Draft(subject=f"/tape/{kind}/done/{run}", run_id=run) for kind in ("a", "b") for run in ("r1", "r2")]
    )
    assert [e.global_seq for e in await take(client.subscribe_events(kind="b"), 2)] == [3, 4]
    assert [e.global_seq for e in await take(client.subscribe_events(run_id="r2"), 2)] == [2, 4]
    narrow = client.subscribe_events(from_global_seq=1, subject_pattern="/tape/**", run_id="r1", kind="b")
    assert [e.global_seq for e in await take(narrow, 1)] == [3]


async def test_subscribe_run_follows_one_run_from_a_seq(client: AsyncTapeClient) -> None:
    await client.append_many([Draft(subject="/tape/a/b", run_id=run) for run in ("r1", "r2") * 3])
    stream = client.subscribe_run(run_id="r2", from_seq=2)
    assert [(e.seq, e.global_seq) for e in [await anext(stream), await anext(stream)]] == [(2, 4), (3, 6)]
    waiting = asyncio.create_task(take(stream, 1))
    await client.append("/tape/a/b", run_id="r2")
    assert [(e.seq, e.global_seq) for e in await waiting] == [(4, 7)]


async def test_subscribe_run_can_wait_for_a_seq_to_come(server: Server, client: AsyncTapeClient) -> None:
    await client.append("/tape/a/b", run_id="r1")
    waiting = asyncio.create_task(take(client.subscribe_run(run_id="r1", from_seq=3), 1))
    async with asyncio.timeout(120):
        while not server.hub._open:
            await asyncio.sleep(0.005)
    await client.append_many([Draft(subject="/tape/a/b", run_id="r1")] * 2)
    assert [e.seq for e in await waiting] == [3]


async def test_an_unknown_run_is_not_found(client: AsyncTapeClient) -> None:
    with pytest.raises(NotFound, match="no such run"):
        await anext(client.subscribe_run(run_id="missing"))


async def test_follow_sends_batches_with_positions(client: AsyncTapeClient) -> None:
    await client.append_many([Draft(subject="/tape/a/b")] * 1_500)
    seen: list[int] = []
    async for batch in client.follow_batches():
        assert len(batch.entries) <= 1_024
        seen += [entry.global_seq for entry in batch.entries]
        assert not batch.entries or batch.position >= batch.entries[-1].global_seq
        if batch.position == 1_500:
            break
    assert seen == list(range(1, 1_501))


async def test_large_entries_travel_in_messages_that_old_clients_accept(client: AsyncTapeClient) -> None:
    payload = "x" * 700_000
    for _ in range(5):
        await client.append("/tape/a/b", payload)
    sizes = []
    async for batch in client.follow_batches():
        sizes.append(batch.ByteSize())
        if batch.position == 5:
            break
    assert max(sizes) < MAX_MESSAGE_BYTES + 700_100
    assert len([size for size in sizes if size > 1000]) == 5


async def test_follow_reports_its_position_without_a_match(
    client: AsyncTapeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape.server.grpc.journal.CHECKPOINT_S", 0.01)
    await client.append_many([Draft(subject="/tape/a/b")] * 10)
    async with asyncio.timeout(120):
        async for batch in client.follow_batches("/tape/nothing/**"):
            assert not batch.entries
            if batch.position == 10:
                break


@pytest.mark.parametrize(
    ("pattern", "cursor", "error"),
    [
        ("/tape/**/x", 0, InvalidPattern),
        ("/tape/x*", 0, InvalidPattern),
        ("", 99, CursorBeyondHead),
        ("", 2, CursorExpired),
    ],
)
async def test_bad_subscriptions_are_refused_on_every_stream(
    client: AsyncTapeClient, server: Server, pattern: str, cursor: int, error: type[Exception]
) -> None:
    await client.append_many([Draft(subject="/tape/a/b")] * 10)
    await prune(server.database, before_seq=6)
    streams = [
        client.subscribe_by_subject(subject_pattern=pattern, from_global_seq=cursor),
        client.subscribe_events(subject_pattern=pattern, from_global_seq=cursor),
        client.follow(pattern, from_global_seq=cursor),
    ]
    for stream in streams:
        with pytest.raises(error):
            await anext(stream)


async def test_a_predicate_narrows_history_and_live_alike(client: AsyncTapeClient, server: Server) -> None:
    text = "payload.n % 2 == 0 && kind == 'a'"
    streams = [
        client.subscribe_by_subject(subject_pattern="/tape/**", predicate_cel=text),
        client.follow("/tape/**", predicate_cel=text),
    ]
    await client.append_many([Draft(subject="/tape/a/b", payload_json=f'{{"n":{n}}}') for n in range(1, 5)])
    for stream in streams:
        assert [(await anext(stream)).global_seq for _ in range(2)] == [2, 4]
    waiting = [asyncio.create_task(take(stream, 2)) for stream in streams]
    await client.append("/tape/a/b", {"other": True})  # the predicate fails on it: no match, but counted
    await client.append("/tape/c/d", {"n": 2})
    await client.append_many([Draft(subject="/tape/a/b", payload_json=f'{{"n":{n}}}') for n in range(1, 5)])
    for task in waiting:
        assert [entry.global_seq for entry in await task] == [8, 10]
    assert server.metrics.registry.get_sample_value("tape_predicate_errors_total") == 2


async def test_an_empty_predicate_is_always_true_and_an_invalid_one_is_rejected_with_line_and_column(
    client: AsyncTapeClient,
) -> None:
    await client.append("/tape/a/b")
    assert (await anext(client.follow(predicate_cel=""))).global_seq == 1
    for stream in (
        client.subscribe_by_subject(subject_pattern="", predicate_cel="payload.x >"),
        client.follow(predicate_cel="payload.x >"),
    ):
        with pytest.raises(InvalidPredicate, match="line 1, column 12") as raised:
            await anext(stream)
        assert raised.value.__cause__.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[union-attr]


async def test_a_client_that_leaves_is_forgotten(client: AsyncTapeClient, server: Server) -> None:
    streams = [client.subscribe_by_subject(subject_pattern="") for _ in range(5)]
    await client.append("/tape/a/b")
    for stream in streams:
        await anext(stream)
    assert len(server.hub._open) == 5
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(120):
        while server.hub._open:
            await asyncio.sleep(0.005)


# ── values ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_value_has_versions(client: AsyncTapeClient) -> None:
    first = await client.write_value(namespace="treasury", key="fx", value_json="1.1", writer="ann")
    assert (first.version, first.value_json, first.writer, first.deleted) == (1, "1.1", "ann", False)
    second = await client.write_value(namespace="treasury", key="fx", value_json="1.2")
    assert second.version == 2
    assert second.ts_ms >= first.ts_ms > 0
    found = await client.get_value(namespace="treasury", key="fx")
    assert (found.found, found.value.value_json, found.value.version) == (True, "1.2", 2)
    assert not (await client.get_value(namespace="treasury", key="nothing")).found


async def test_compare_and_set_lets_one_of_many_win(client: AsyncTapeClient) -> None:
    results = await asyncio.gather(
        *(client.write_value(namespace="n", key="k", value_json=str(n), if_version=0) for n in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, VersionConflict) for result in results) == 19
    with pytest.raises(VersionConflict, match=r"version conflict \(have 1, expected 7\)") as raised:
        await client.write_value(namespace="n", key="k", value_json="x", if_version=7)
    assert raised.value.__cause__.code() == grpc.StatusCode.ABORTED  # type: ignore[union-attr]
    assert (await client.write_value(namespace="n", key="k", value_json="x", if_version=1)).version == 2


async def test_a_deleted_value_keeps_its_version(client: AsyncTapeClient) -> None:
    await client.write_value(namespace="n", key="k", value_json="1")
    assert (await client.delete_value(namespace="n", key="nothing")).deleted is False
    deleted = await client.delete_value(namespace="n", key="k")
    assert (deleted.deleted, deleted.version) == (True, 2)
    found = await client.get_value(namespace="n", key="k")
    assert (found.found, found.value.version, found.value.deleted) == (False, 2, True)
    with pytest.raises(VersionConflict):
        await client.write_value(namespace="n", key="k", value_json="2", if_version=0)
    assert (await client.write_value(namespace="n", key="k", value_json="2", if_version=2)).version == 3


async def test_every_value_write_is_journaled_with_its_predecessor(client: AsyncTapeClient) -> None:
    await client.write_value(namespace="n", key="user:42/x", value_json='{"a":1}', writer="ann")
    await client.write_value(namespace="n", key="user:42/x", value_json="2")
    await client.delete_value(namespace="n", key="user:42/x")
    entries = await take(client.follow(), 3)
    assert [entry.subject for entry in entries] == [
        "/tape/value/changed/n/user:42%2Fx",
        "/tape/value/changed/n/user:42%2Fx",
        "/tape/value/deleted/n/user:42%2Fx",
    ]
    assert [(entry.run_id, entry.seq) for entry in entries] == [("value:n", 1), ("value:n", 2), ("value:n", 3)]
    value = {"namespace": "n", "key": "user:42/x"}
    assert entries[1].payload == {
        "run_id": "value:n",
        **value,
        "version": 2,
        "writer": "",
        "value": {**value, "value_json": "2", "version": 2},
        "prev_version": 1,
        "prev_value_json": '{"a":1}',
    }
    assert entries[2].payload == {
        "run_id": "value:n",
        **value,
        "version": 3,
        "deleted": True,
        "prev_version": 2,
        "prev_value_json": "2",
    }


async def test_watching_shows_every_version_in_order(client: AsyncTapeClient) -> None:
    for n in range(3):
        await client.write_value(namespace="n", key="k", value_json=str(n))
        await client.write_value(namespace="n", key="other", value_json=str(n))
    stream = client.watch_value(namespace="n", key="k", from_version=1)
    waiting = asyncio.create_task(take(stream, 5))
    await client.delete_value(namespace="n", key="k")
    for n in (3, 4):
        await client.write_value(namespace="n", key="k", value_json=str(n))
    events = await waiting
    assert [event.value.version for event in events] == [2, 3, 4, 5, 6]
    assert [event.prev_version for event in events] == [1, 2, 3, 4, 5]
    assert [event.value.deleted for event in events] == [False, False, True, False, False]
    assert [event.prev_value_json for event in events] == ["0", "1", "2", "", "3"]


async def test_a_value_needs_a_namespace(client: AsyncTapeClient) -> None:
    with pytest.raises(InvalidInput, match="namespace is empty"):
        await client.write_value(namespace="", key="k", value_json="1")


# ── the service itself ───────────────────────────────────────────────────────────────────────────


REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)


async def test_every_rpc_is_served(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.grpc_address) as raw:
        for method in pb.DESCRIPTOR.services_by_name["Tape"].methods:
            if method.client_streaming or method.server_streaming:
                continue
            call = raw.unary_unary(f"/tape.v1.Tape/{method.name}")
            status = await call(b"").code()
            assert status in (grpc.StatusCode.OK, *REFUSALS), method.name


async def test_health_and_reflection_answer(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.grpc_address) as raw:
        for service in ("", "tape.v1.Tape"):
            answer = await health_pb2_grpc.HealthStub(raw).Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

    def services() -> list[str]:
        with grpc.insecure_channel(server.grpc_address) as channel:
            return list(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert "tape.v1.Tape" in await asyncio.to_thread(services)


def test_the_service_has_every_rpc_of_the_contract_and_ours() -> None:
    service = pb.DESCRIPTOR.services_by_name["Tape"]
    assert len(service.methods) == 51 + 36
    ours = {"Append", "AppendStream", "Follow", "GetHead", "GetServerInfo", "ListRuns", "RetryRuns", "ListDeadLetters"}
    assert ours <= {method.name for method in service.methods}
    assert len(pb.DESCRIPTOR.enum_types_by_name) == 8 + 4


async def test_the_journal_of_a_server_verifies(client: AsyncTapeClient, server: Server) -> None:
    await asyncio.gather(*(client.append("/tape/a/b", {"n": n}, run_id=f"r{n % 7}") for n in range(200)))
    for n in range(5):
        await client.write_value(namespace="n", key="k", value_json=str(n))
    assert (await server.database.read(verify)).ok


# ── staying connected ────────────────────────────────────────────────────────────────────────────


def test_grpc_knows_every_option_that_it_is_given() -> None:
    library = Path(cygrpc.__file__).read_bytes()  # gRPC says nothing about a name that it does not know
    assert [name for name, _ in (*OPTIONS, *grpc_options(0)) if f"{name}\0".encode() not in library] == []


def test_an_idle_client_pings_no_more_often_than_the_server_permits() -> None:
    asks, allowed = dict(OPTIONS), dict(grpc_options(0))
    assert allowed["grpc.keepalive_permit_without_calls"] == 1
    assert asks["grpc.keepalive_time_ms"] >= 2 * allowed["grpc.http2.min_ping_interval_without_data_ms"]
    assert asks["grpc.keepalive_time_ms"] > 5_000  # what older servers permit


def test_a_client_notices_a_dead_connection_within_ten_seconds() -> None:
    asks = dict(OPTIONS)
    assert asks["grpc.keepalive_time_ms"] + asks["grpc.keepalive_timeout_ms"] < 10_000
    assert asks["grpc.http2.ping_timeout_ms"] < 10_000
