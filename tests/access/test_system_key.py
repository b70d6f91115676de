"""The system key appends reserved kinds, and readers of such entries survive a malformed payload."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape import ServerBackend, stream
from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.client.append_batcher import AppendBatcher
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import RequestConflict, ReservedKind, ScopeRequired, SessionOutOfReach
from tape.model.entry import Draft
from tape.playbooks.worker import work
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tape.sinks import FnSink
from tape.sinks.relay import outbox_relay_tick
from tests.access.test_commands import DOCUMENT
from tests.engine.reactions.helpers import matched, register, tasks
from tests.web import call

TOKEN = "the-internal-token"
# Payloads that no writer of reserved kinds produces.
MALFORMED = [
    "{}",
    "[]",
    "null",
    '"text"',
    "1e300",
    "[[[[[[[[]]]]]]]]",
    '{"namespace": 1, "key": [], "version": -1}',
    '{"namespace": "n", "key": "k", "version": 1e99, "prev_version": {}, "prev_value_json": null, "value": []}',
    '{"execution_id": [], "path": {}, "catalog_id": "x", "payload": 7}',
    '{"FromSeq": "a"}',
    '{"seq": -4}',
    '{"seq": "x", "kind": {}}',
]


class Guarded(NamedTuple):
    """A server with keys and an internal token; clients of a service, and of the system."""

    server: Server
    client: AsyncTapeClient
    system: AsyncTapeClient
    key: SigningKey

    @property
    def url(self) -> str:
        return f"tape://{self.server.grpc_address}"


@pytest.fixture
async def guarded(store_url: str, tmp_path: Path) -> AsyncIterator[Guarded]:
    key, _ = load_key(tmp_path / "dev.key")
    settings = Settings(
        store=store_url,
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(tmp_path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
        internal_token=TOKEN,
    )
    token = key.mint(tenant="ours", user="u", session="s", scopes=["service", "admin"])
    async with Server(settings) as server:
        url = f"tape://{server.grpc_address}"
        async with AsyncTapeClient(url, id_token=token) as client, AsyncTapeClient(url, id_token=TOKEN) as system:
            yield Guarded(server, client, system, key)


async def put(system: AsyncTapeClient, subject: str, payloads: list[str] = MALFORMED, **fields: Any) -> None:
    await system.append_many([Draft(subject=subject, payload_json=each, tenant="ours", **fields) for each in payloads])


# ── who may ──────────────────────────────────────────────────────────────────────────────────────

EVENT = {"specversion": "1.0", "id": "1", "source": "/restore", "type": "value.changed", "subject": "n/k", "data": {}}


async def publish(server: Server, token: str) -> int:
    headers = {"content_type": "application/cloudevents+json", "authorization": f"Bearer {token}"}
    return (await call(server.http_address, "POST", "/v1/events", EVENT, **headers)).status


async def test_the_system_key_appends_reserved_kinds_by_every_call_and_is_audited(guarded: Guarded) -> None:
    draft = Draft(subject="/tape/value/changed/n/k", tenant="ours")
    with pytest.raises(ReservedKind):
        await guarded.client.append(draft.subject)
    with pytest.raises(ReservedKind):
        await guarded.client.append_many([draft], request_id="r")
    token = guarded.key.mint(tenant="ours", user="u", session="s", scopes=["service", "admin", "tenant:*"])
    assert await publish(guarded.server, token) == 403
    assert (await guarded.client.head()).global_seq == 0

    assert await guarded.system.append(draft.subject, tenant="ours") == 1
    assert len(await guarded.system.append_many([draft, draft], request_id="r")) == 2
    assert await publish(guarded.server, TOKEN) == 200

    stream = guarded.system.follow("/tape/audit/**")
    audited = 0
    while audited < 4:
        entry = await anext(stream)
        assert (entry.payload["Method"], entry.payload["Scope"]) == ("append.reserved", "system")
        assert entry.payload["KeyID"] == "internal"
        audited += entry.payload["Count"]
    assert audited == 4


async def test_what_the_system_appends_of_other_kinds_is_not_audited(guarded: Guarded) -> None:
    await guarded.system.append("/tape/order/paid/1")
    await guarded.system.append("/tape/value/changed/n/k")
    entry = await anext(guarded.system.follow("/tape/audit/**"))
    assert entry.payload["Count"] == 1


async def test_callers_of_an_open_server_append_no_reserved_kinds(store_url: str) -> None:
    settings = Settings(store=store_url, listen="127.0.0.1:0", http_listen="127.0.0.1:0")
    async with Server(settings) as server, AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        with pytest.raises(ReservedKind):
            await client.append("/tape/value/changed/n/k")
        assert await publish(server, "") == 403
        assert (await client.head()).global_seq == 0


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


async def test_one_reserved_draft_fails_alone_among_concurrent_appends(guarded: Guarded) -> None:
    subjects = [f"/tape/{'run/terminal' if number == 3 else 'order/paid'}/{number}" for number in range(12)]
    answers = await asyncio.gather(*map(guarded.client.append, subjects), return_exceptions=True)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, BaseException)] == [3]
    assert isinstance(answers[3], ReservedKind)
    assert sorted(answer for answer in answers if isinstance(answer, int)) == list(range(1, 12))


@pytest.mark.parametrize("kind", [RequestConflict, ScopeRequired, SessionOutOfReach, ReservedKind])
async def test_a_batch_that_is_rejected_for_one_draft_is_split(kind: type[Exception]) -> None:
    sent: list[list[str]] = []

    async def send(drafts: Any, request_id: str, first_write_wins: bool) -> list[int]:
        sent.append([draft.subject for draft in drafts])
        await asyncio.sleep(0)
        if any(draft.subject == "bad" for draft in drafts):
            raise kind("no")
        return list(range(len(drafts)))

    batcher = AppendBatcher(send)
    names = ["a", "b", "c", "bad", "d"]
    answers = await asyncio.gather(*(batcher.append([Draft(subject=name)]) for name in names), return_exceptions=True)
    assert [name for name, answer in zip(names, answers, strict=True) if isinstance(answer, kind)] == ["bad"]
    assert ["bad"] in sent


async def test_the_backend_of_a_session_leaves_out_the_entry_that_is_not_permitted(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ["/tape/session/system.note/*", "/tape/session/text/*"]
    token = guarded.key.mint(tenant="ours", user="u", session="s", scopes=["agent"], write=write)
    monkeypatch.setenv("TAPE_TOKEN", token)

    def mirror() -> list[str]:
        backend = ServerBackend(guarded.url, session="chat")
        for seq, kind in enumerate(["text", "tool", "text"]):
            backend.append({"seq": seq, "t": 0.0, "kind": kind, "type": kind})
        backend.flush()
        kept = [entry["kind"] for entry in backend.read_since(0)]
        assert [entry["kind"] for entry in backend.refused] == ["tool"]
        backend.close()
        return kept

    assert await asyncio.to_thread(mirror) == ["text", "text"]


# ── readers ──────────────────────────────────────────────────────────────────────────────────────


async def test_watchers_of_a_value_skip_and_count_malformed_entries(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    await guarded.client.write_value(namespace="n", key="k", value_json="1")
    watched = guarded.client.watch_value(namespace="n", key="k")
    assert (await anext(watched)).value.value_json == "1"
    await put(guarded.system, "/tape/value/changed/n/k")
    await put(guarded.system, "/tape/value/deleted/n/k")
    await guarded.client.write_value(namespace="n", key="k", value_json="2")
    assert (await anext(watched)).value.value_json == "2"
    fresh = guarded.client.watch_value(namespace="n", key="k", from_version=1)
    assert (await anext(fresh)).value.value_json == "2"
    assert "skipped a malformed value entry at global_seq 2" in caplog.text
    counted = guarded.server.hub.metrics.malformed_entries.labels("WatchValue")._value.get()
    assert counted == 4 * len(MALFORMED)


async def test_a_session_skips_malformed_entries_of_its_run(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = guarded.key.mint(tenant="ours", user="u", session="s", scopes=["agent"])
    monkeypatch.setenv("TAPE_TOKEN", token)
    caplog.set_level(logging.WARNING, "tape.session")

    def record(text: str) -> int:
        backend = ServerBackend(guarded.url, session="chat")
        head = backend.head()
        backend.append({"seq": head, "t": 0.0, "kind": "text", "type": text})
        backend.flush()
        found = [entry["type"] for entry in backend.read_since(0) if "type" in entry]
        backend.close()
        assert found[-1] == text
        return backend.skipped

    assert await asyncio.to_thread(record, "first") == 0
    await put(guarded.system, "/tape/session/text/chat", run_id="chat")
    await put(guarded.system, "/tape/effect/confirmed/pay/chat", run_id="chat")
    assert await asyncio.to_thread(record, "second") > 0
    assert "skipped the entry at global_seq" in caplog.text


async def test_the_relay_publishes_malformed_entries_as_they_are(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPE_TOKEN", guarded.key.mint(tenant="ours", user="u", session="s", scopes=["worker"]))
    for subject in ("/tape/value/changed/n/k", "/tape/bus/dropped/1", "/tape/command/issued/shared/1"):
        await put(guarded.system, subject)
    found: list[str] = []
    sink = FnSink(lambda entry: found.append(entry.payload_json))
    done = await asyncio.to_thread(outbox_relay_tick, guarded.url, sink)
    assert done == len(found) == 3 * len(MALFORMED)
    assert found == MALFORMED * 3


async def test_a_worker_dead_letters_malformed_commands_and_runs_the_others(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPE_TOKEN", guarded.key.mint(tenant="ours", user="u", session="s", scopes=["service"]))
    await guarded.client.register_resource(DOCUMENT)
    first = (await guarded.client.execute("quick")).execution_id
    await put(guarded.system, "/tape/command/issued/shared/x", run_id="x")
    last = (await guarded.client.execute("quick")).execution_id
    await matched(guarded.system)
    await asyncio.wait_for(work(guarded.url, once=True), 120)
    for execution in (first, last):
        assert (await guarded.client.get_run(str(execution))).status == pb.RUN_STATUS_TERMINAL
    dead = (await guarded.client.list_tasks(reaction_id="pool:shared", status=pb.TASK_STATUS_DLQ)).tasks
    assert len(dead) == len(MALFORMED)
    assert all("the command" in task.last_error for task in dead)


async def test_the_matcher_counts_predicates_that_fail_on_malformed_entries_and_goes_on(guarded: Guarded) -> None:
    await register(
        guarded.client, "r", subject_pattern="/tape/effect/**", predicate_cel='payload.status.state.startsWith("d")'
    )
    await register(
        guarded.client, "agent", subject_pattern="/tape/effect/**", handler_kind=pb.HANDLER_KIND_AGENT, agent_app="shop"
    )
    await put(guarded.system, "/tape/effect/confirmed/pay/x", run_id="x")
    await put(guarded.system, "/tape/effect/confirmed/pay/x", ['{"status": {"state": "done"}}'], run_id="x")
    await matched(guarded.system)
    assert len(await tasks(guarded.client, "r")) == 1
    (stats,) = (await guarded.client.get_reaction_stats("r")).stats
    assert stats.predicate_errors == len(MALFORMED)
    assert len((await guarded.client.list_runs(app_name="shop")).runs) == len(MALFORMED) + 1


async def test_a_stream_of_a_client_takes_an_entry_for_no_gap(guarded: Guarded) -> None:
    await put(guarded.system, "/tape/bus/dropped", user="u", session="s")
    await guarded.client.append("/tape/order/paid/1", user="u", session="s")
    token = guarded.key.mint(tenant="ours", user="u", session="s")
    gaps: list[Any] = []
    found = []
    async for event in stream(f"http://{guarded.server.http_address}", after=0, token=token, on_gap=gaps.append):
        found.append(event.type)
        if event.type == "order.paid":
            break
    assert found == ["bus.dropped"] * len(MALFORMED) + ["order.paid"]
    assert gaps == []
