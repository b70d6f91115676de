"""POST /v1/events, redaction and artifacts: in over HTTP or gRPC, clean on the journal, and served back."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tape.base.redaction_policy import HASH, RedactionPolicy
from tape.client import AsyncTapeClient
from tape.errors import RedactionFailed
from tape.journal.reader import EVERYTHING
from tape.model.entry import Draft, Entry
from tape.server.server import Server
from tests.conftest import settings_for
from tests.server.test_stream import MINE
from tests.services import ServerProcess
from tests.web import Answer, Stream, call

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created", "subject": "42", "data": {"n": 1}}
ONE = {"content_type": "application/cloudevents+json; charset=utf-8"}
MANY = {"content_type": "application/cloudevents-batch+json"}


async def publish(server: Server, body: Any, **headers: str) -> Answer:
    return await call(server.http_address, "POST", "/v1/events", body, **MINE | headers)


async def entries(server: Server) -> list[Entry]:
    head = (await server.journal.head()).global_seq
    subscription = await server.hub.subscribe(EVERYTHING, 0)
    found: list[Entry] = []
    while len(found) < head:
        found += (await subscription.next()).entries
    subscription.close()
    return found


async def test_an_event_is_appended_as_the_caller_with_everything_it_says(server: Server) -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    answer = await publish(server, EVENT | {"partitionkey": "order-42", "traceparent": trace}, **ONE)
    assert (answer.status, answer.json()) == (200, {"global_seqs": [1]})
    entry = (await entries(server))[0]
    assert (entry.type, entry.subject, entry.run_id) == ("order.created", "/tape/order/created/42", "order-42")
    assert (entry.tenant, entry.user, entry.session) == ("shop", "ada", "s1")
    assert (entry.payload, entry.trace_id, entry.span_id) == ({"n": 1}, "a" * 32, "b" * 16)


async def test_a_repeated_event_is_appended_once(server: Server) -> None:
    first = (await publish(server, EVENT, **ONE)).json()["global_seqs"]
    again = (await publish(server, [EVENT, EVENT | {"id": "2"}, EVENT], **MANY)).json()["global_seqs"]
    assert (first, again) == ([1], [1, 2, 1])
    other = await call(server.http_address, "POST", "/v1/events", EVENT, **ONE, **MINE | {"x_harbor_session": "s2"})
    assert other.json()["global_seqs"] == [3]  # another session's ids are its own
    assert (await publish(server, EVENT | {"source": "/else"}, **ONE)).json()["global_seqs"] == [4]


async def test_binary_mode_takes_attributes_from_headers_and_any_data(server: Server) -> None:
    head = {"ce_specversion": "1.0", "ce_source": "/shop", "ce_type": "order.created", "ce_subject": "caf%C3%A9"}
    for number, (media, body) in enumerate(
        [("application/json", b'{"n": 1}'), ("text/plain", "é".encode()), ("image/gif", b"GIF\xff"), ("", b"")]
    ):
        answer = await publish(server, body, ce_id=str(number), **head, **({"content_type": media} if media else {}))
        assert answer.status == 200, answer.body
    found = await entries(server)
    assert found[0].subject == "/tape/order/created/caf%C3%A9"
    assert [entry.payload for entry in found] == [
        {"n": 1},
        "é",
        {"data_base64": base64.b64encode(b"GIF\xff").decode(), "datacontenttype": "image/gif"},
        {},
    ]


async def test_ignored_attributes_are_listed(server: Server) -> None:
    answer = await publish(server, EVENT | {"time": "2026-01-01T00:00:00Z", "mine": 7}, **ONE)
    assert answer.json()["ignored"] == ["mine", "time"]


async def test_data_in_base64_is_decoded(server: Server) -> None:
    event = {name: value for name, value in EVENT.items() if name != "data"}
    await publish(server, event | {"data_base64": base64.b64encode(b'{"n": 2}').decode()}, **ONE)
    assert (await entries(server))[0].payload == {"n": 2}


async def test_what_was_published_can_be_listed_as_cloudevents(server: Server) -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    await publish(server, EVENT | {"partitionkey": "order-42", "traceparent": trace, "subject": "a/b c"}, **ONE)
    accept = {"accept": "application/cloudevents-batch+json"}
    answer = await call(server.http_address, "POST", "/v1/events/list", {}, **MINE, **accept)
    assert answer.headers["content-type"] == "application/cloudevents-batch+json"
    assert answer.headers["tape-next-cursor"] == "0"
    (event,) = answer.json()
    assert event["recordedtime"] == event["time"]
    assert {name: value for name, value in event.items() if not name.endswith("time")} == {
        "specversion": "1.0",
        "id": "1",
        "source": "/tape/shop",
        "type": "order.created",
        "subject": "a/b c",
        "datacontenttype": "application/json",
        "data": {"n": 1},
        "sequence": "00000000000000000001",
        "partitionkey": "order-42",
        "traceparent": trace,
    }
    again = await publish(server, [event], **MANY)
    assert again.status == 200
    assert again.json()["ignored"] == ["recordedtime", "sequence", "time"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({k: v for k, v in EVENT.items() if k != "id"}, "'id' is missing"),
        (EVENT | {"specversion": "0.3"}, "specversion '0.3'"),
        (EVENT | {"type": "created"}, "must have a dot"),
        (EVENT | {"type": "Order.Created"}, "lower-case"),
        (EVENT | {"subject": "/tape/order/paid/1"}, "is not of type"),
        (EVENT | {"data_base64": "%%%"}, "base64"),
        (EVENT | {"partitionkey": "x" * 600}, "run_id"),
        ([], "between 1 and 1000"),
        ([EVENT, EVENT | {"type": "x"}], r"events[1]: type 'x'"),
        (b"{", "failed to decode"),
        (b"\xff\xfe", "failed to decode"),
        (7, "failed to decode"),
    ],
)
async def test_a_bad_event_refuses_the_request_and_says_why(server: Server, body: Any, message: str) -> None:
    answer = await publish(server, body, **(MANY if isinstance(body, list) else ONE))
    assert (answer.status, answer.json()["code"]) == (400, "invalid_request")
    assert message in answer.json()["message"]
    assert (await server.journal.head()).global_seq == 0


async def test_other_content_is_refused_and_too_much_of_it_too(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, max_payload_bytes=1000)) as server:
        assert (await publish(server, {"a": 1})).status == 400
        large = EVENT | {"data": {"x": "y" * 1500}}
        refused = await publish(server, large, **ONE)
        assert (refused.status, refused.json()["code"]) == (413, "request_too_large")
        refused = await publish(server, EVENT | {"data": {"x": "y" * 5000}}, **ONE)
        assert (refused.status, refused.json()["code"]) == (413, "request_too_large")


def test_an_acknowledged_event_survives_a_killed_server(tmp_path: Path) -> None:

    async def send(server: ServerProcess, number: int) -> list[int]:
        address = server.http_url.removeprefix("http://")
        answer = await call(address, "POST", "/v1/events", EVENT | {"id": str(number)}, **ONE)
        return list(answer.json()["global_seqs"])

    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        first = [asyncio.run(send(server, number)) for number in range(5)]
        server.kill()
        server.start()
        assert [asyncio.run(send(server, number)) for number in range(6)] == [*first, [6]]


# ── redaction ────────────────────────────────────────────────────────────────────────────────────


async def test_a_secret_is_never_stored_whichever_endpoint_received_it(tmp_path: Path) -> None:
    file = tmp_path / "tape.db"
    async with Server(settings_for(f"sqlite:{file}", safe_types="order.safe")) as server:
        await publish(server, EVENT | {"data": {"password": "S3CR3T-1"}}, **ONE)
        async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            await client.append("/tape/order/created/1", {"headers": {"Authorization": "S3CR3T-2"}})
            await client.append("/tape/order/safe/1", {"token": "kept"})
        found = [entry.payload for entry in await entries(server)]
        assert found == [{"password": "***"}, {"headers": {"Authorization": "***"}}, {"token": "kept"}]
    for stored in tmp_path.rglob("*"):
        assert not stored.is_file() or b"S3CR3T" not in stored.read_bytes()


async def test_secrets_are_hidden_by_the_policy_of_the_tenant_and_counted(tmp_path: Path) -> None:
    policies = (("acme", RedactionPolicy(action=HASH)), ("lab", RedactionPolicy(dry_run=True)))
    settings = settings_for(f"sqlite:{tmp_path / 'tape.db'}", redaction=policies, redaction_key="k" * 32)
    async with Server(settings) as server:
        async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            for tenant in ("acme", "lab", "other"):
                await client.append("/tape/order/created/1", {"password": "S3CR3T-1"}, tenant=tenant)
        hashed, kept, masked = (entry.payload["password"] for entry in await entries(server))
        assert hashed.startswith("***:")
        assert (kept, masked) == ("S3CR3T-1", "***")
        counted = server.metrics.redactions
        assert [counted.labels("key", action)._value.get() for action in ("hash", "dry_run", "mask")] == [1, 1, 1]


async def test_a_large_hostile_payload_is_searched_in_linear_time_while_the_server_answers(server: Server) -> None:
    hostile = EVENT | {"data": {"text": "data:;a=" * 100_000}}
    async with asyncio.timeout(20):  # backtracking took minutes, on the event loop
        answers = await asyncio.gather(publish(server, hostile, **ONE), publish(server, EVENT | {"id": "2"}, **ONE))
    assert [answer.status for answer in answers] == [200, 200]


async def test_a_payload_that_cannot_be_searched_is_rejected_and_audited_without_it(server: Server) -> None:
    deep = json.loads('{"a":' * 70 + '{"token":"S3CR3T"}' + "}" * 70)
    answer = await publish(server, EVENT | {"data": deep}, **ONE)
    assert (answer.status, answer.json()["code"]) == (422, "payload_invalid")
    with pytest.raises(RedactionFailed):
        await server.journal.append([Draft(subject="/tape/a/b", payload_json=json.dumps(deep))])
    found = await entries(server)
    assert [entry.type for entry in found] == ["audit.redaction_failed"] * 2
    assert found[0].session == "s1"
    assert "S3CR3T" not in found[0].payload_json


# ── artifacts ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["folder", "memory"])
async def test_large_fields_travel_as_references_and_are_served_to_their_owner(
    sqlite_url: str, tmp_path: Path, kind: str
) -> None:
    url = str(tmp_path / "artifacts") if kind == "folder" else "memory:///"
    async with Server(settings_for(sqlite_url, artifacts=url, artifact_threshold_bytes=1000)) as server:
        text, rows = "ü" * 900, [{"row": number} for number in range(200)]
        data = {"small": 1, "text": text, "deep": {"rows": rows, "also": 2}, "token": "x" * 5000}
        assert (await publish(server, EVENT | {"data": data}, **ONE)).status == 200
        async with Stream(server.http_address, last_event_id="0", **MINE) as stream:
            payload = (await stream.frames(1))[0].data["payload"]
        assert (payload["small"], payload["token"], payload["deep"]["also"]) == (1, "***", 2)
        reference = payload["text"]
        assert reference["size_bytes"] == 1800
        path = f"/v1/artifacts/{reference['artifact_ref']}"
        served = await call(server.http_address, "GET", path, **MINE)
        assert (served.status, served.body.decode()) == (200, text)
        assert served.headers["content-type"] == reference["mime"]
        listed = payload["deep"]["rows"]["artifact_ref"]
        assert (await call(server.http_address, "GET", f"/v1/artifacts/{listed}", **MINE)).json() == rows
        other = MINE | {"x_harbor_session": "s2"}
        assert (await call(server.http_address, "GET", path, **other)).status == 404
        for bad in ("x", "..", "%2e%2e%2fetc", "a" * 64 + ".exe", "0" * 64 + ".txt"):
            answer = await call(server.http_address, "GET", f"/v1/artifacts/{bad}", **MINE)
            assert answer.status == 404
        widened = await call(server.http_address, "GET", f"{path}?session=s1", **other)
        assert (widened.status, widened.body.decode()) == (200, text)
        assert [entry.type for entry in await entries(server)] == ["order.created", "audit.admin_scope_used"]


async def test_an_artifact_store_that_fails_refuses_the_append(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with Server(settings_for(sqlite_url, artifacts=str(tmp_path / "file"))) as server:
        answer = await publish(server, EVENT | {"data": {"x": "y" * 40_000}}, **ONE)
        assert (answer.status, answer.json()["code"]) == (503, "runtime_error")
        assert (await server.journal.head()).global_seq == 0
