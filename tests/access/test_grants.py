"""Tokens with grants: they append to the subjects that they may write, and see entries that they may read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.engine.security import service_keys
from tape.engine.security.service_keys import KeyRequest
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import NotFound, SubjectNotGranted, TokenRejected
from tape.model.entry import Draft
from tape.playbooks.worker import work
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.access.test_commands import DOCUMENT
from tests.engine.reactions.helpers import DLQ, Dispatcher, claim, matched, register, tasks, until
from tests.web import Stream, call

ORDERS = "/tape/order/**"
HOUR = 3_600_000_000_000
OURS = {"tenant": "ours", "user": "u", "session": "s"}


class Callers(NamedTuple):
    """A server, a client whose token has no grants, one that may read orders and write payments, and the key."""

    server: Server
    whole: AsyncTapeClient
    granted: AsyncTapeClient
    key: SigningKey

    def bearer(self, **claims: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key.mint(**OURS, **claims)}"}

    async def ask(self, method: str, body: Any, **claims: Any) -> Any:
        answer = await call(self.server.http_address, "POST", f"/v1/events/{method}", body, **self.bearer(**claims))
        return answer.json() if answer.status == 200 else answer.status


@pytest.fixture
async def callers(store_url: str, tmp_path: Path) -> AsyncIterator[Callers]:
    key, _ = load_key(tmp_path / "dev.key")
    settings = Settings(
        store=store_url,
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(tmp_path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))

        async def connect(**claims: Any) -> AsyncTapeClient:
            token = key.mint(**OURS, scopes=["service"], **claims)
            return await stack.enter_async_context(AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token))

        yield Callers(server, await connect(), await connect(read=[ORDERS], write=["/tape/order/paid/*"]), key)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_append_goes_to_granted_subjects_only(callers: Callers) -> None:
    assert await callers.granted.append("/tape/order/paid/1") == 1
    drafts = [Draft(subject="/tape/order/paid/2"), Draft(subject="/tape/order/shipped/2")]
    with pytest.raises(SubjectNotGranted, match=r"drafts\[1\]: subject '/tape/order/shipped/2' is not among the write"):
        await callers.granted.append_many(drafts)
    for subject in ("/tape/order/shipped/1", "/tape/order/paid", "/tape/order/paid/1/2", "/tape/user/made/1"):
        with pytest.raises(SubjectNotGranted, match="write grants, /tape/order/paid/\\*"):
            await callers.granted.append(subject)
    assert (await callers.whole.head()).global_seq == 1


async def test_an_encoded_subject_is_checked_as_it_will_be_stored(callers: Callers) -> None:
    token = callers.key.mint(**OURS, scopes=["service"], write=["/tape/order/paid/%2A"])
    async with AsyncTapeClient(f"tape://{callers.server.grpc_address}", id_token=token) as client:
        assert await client.append("/tape/order/paid/%2a") == 1
        with pytest.raises(SubjectNotGranted):
            await client.append("/tape/order/paid/1")


async def test_one_draft_outside_of_the_grants_fails_alone_in_a_batch_of_concurrent_appends(callers: Callers) -> None:
    subjects = [f"/tape/order/{'shipped' if number == 7 else 'paid'}/{number}" for number in range(20)]
    answers = await asyncio.gather(*map(callers.granted.append, subjects), return_exceptions=True)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, BaseException)] == [7]
    assert isinstance(answers[7], SubjectNotGranted)
    assert (await callers.whole.head()).global_seq == 19


EVENT = {"specversion": "1.0", "source": "/shop", "type": "order.shipped", "subject": "1", "data": {}}
MODES = {
    "structured": ({"content_type": "application/cloudevents+json"}, EVENT | {"id": "1"}),
    "batched": (
        {"content_type": "application/cloudevents-batch+json"},
        [EVENT | {"id": "1", "type": "order.paid"}, EVENT | {"id": "2"}],
    ),
    "binary": (
        {
            "content_type": "application/json",
            "ce_specversion": "1.0",
            "ce_id": "1",
            "ce_source": "/shop",
            "ce_type": "order.shipped",
            "ce_subject": "1",
        },
        {},
    ),
}


@pytest.mark.parametrize("mode", MODES)
async def test_a_published_event_goes_to_granted_subjects_only(callers: Callers, mode: str) -> None:
    headers, body = MODES[mode]

    async def publish(write: list[str]) -> tuple[int, Any]:
        sent = callers.bearer(write=write) | headers
        answer = await call(callers.server.http_address, "POST", "/v1/events", json.dumps(body).encode(), **sent)
        return answer.status, answer.json()

    status, answer = await publish(["/tape/order/paid/*"])
    assert (status, answer["code"]) == (403, "subject_not_granted")
    assert "/tape/order/shipped/1" in answer["message"]
    assert (await callers.whole.head()).global_seq == 0
    assert (await publish([ORDERS]))[0] == 200


async def test_a_value_is_read_and_written_as_its_entries_are(callers: Callers) -> None:
    await callers.whole.write_value(namespace="shop", key="secret", value_json="1")
    for forbidden in (
        callers.granted.write_value(namespace="shop", key="secret", value_json="2"),
        callers.granted.delete_value(namespace="shop", key="secret"),
        callers.granted.get_value(namespace="shop", key="secret"),
        anext(callers.granted.watch_value(namespace="shop", key="secret")),
    ):
        with pytest.raises(SubjectNotGranted):
            await forbidden
    token = callers.key.mint(**OURS, scopes=["service"], read=["/tape/value/*/shop/*"], write=["/tape/value/**"])
    async with AsyncTapeClient(f"tape://{callers.server.grpc_address}", id_token=token) as client:
        assert (await client.get_value(namespace="shop", key="secret")).value.value_json == "1"
        await client.write_value(namespace="shop", key="secret", value_json="3")
        values = client.watch_value(namespace="shop", key="secret")
        assert [(await anext(values)).value.value_json for _ in range(2)] == ["1", "3"]


async def test_an_execution_attaches_events_to_granted_subjects_only(callers: Callers) -> None:
    await callers.whole.register_resource(DOCUMENT)

    async def execute(subject: str) -> tuple[int, Any]:
        body = {"path": "quick", "events": [{"subject": subject, "payload": {}}]}
        headers = callers.bearer(scopes=["service"], read=[ORDERS], write=["/tape/order/paid/*"])
        answer = await call(callers.server.http_address, "POST", "/api/execute", body, **headers)
        return answer.status, answer.json()

    status, answer = await execute("/tape/order/shipped/1")
    assert (status, answer["code"]) == (403, "TAPE-1908")
    assert not (await callers.whole.list_runs()).runs
    assert (await execute("/tape/order/paid/1"))[0] == 200  # although it may not read the commands of the pool


# ── streams ──────────────────────────────────────────────────────────────────────────────────────

SUBJECTS = ["/tape/order/paid/1", "/tape/user/made/1", "/tape/order/shipped/2", "/tape/user/made/2"]
STREAMS: dict[str, Callable[[AsyncTapeClient], AsyncIterator[Any]]] = {
    "Follow": lambda client: client.follow(),
    "Follow of a wide pattern": lambda client: client.follow("/tape/*/*/*"),
    "Follow of a kind": lambda client: client.follow(kind="order"),
    "SubscribeBySubject": lambda client: client.subscribe_by_subject(subject_pattern=""),
    "SubscribeEvents": lambda client: client.subscribe_events(),
    "SubscribeRun": lambda client: client.subscribe_run(run_id="r"),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_has_granted_entries_only_from_the_past_and_live(callers: Callers, name: str) -> None:
    for subject in SUBJECTS:
        await callers.whole.append(subject, run_id="r")
    stream = STREAMS[name](callers.granted)
    assert [(await anext(stream)).subject for _ in range(2)] == [SUBJECTS[0], SUBJECTS[2]]
    for subject in SUBJECTS:  # these come from memory
        await callers.whole.append(subject, run_id="r")
    assert [(await anext(stream)).subject for _ in range(2)] == [SUBJECTS[0], SUBJECTS[2]]


@pytest.mark.parametrize("name", ["Follow", "SubscribeBySubject", "SubscribeEvents"])
async def test_a_pattern_outside_of_the_grants_is_rejected_whether_or_not_entries_fit(
    callers: Callers, name: str
) -> None:
    await callers.whole.append("/tape/user/made/1")
    calls: dict[str, Callable[[str], AsyncIterator[Any]]] = {
        "Follow": lambda pattern: callers.granted.follow(pattern),
        "SubscribeBySubject": lambda pattern: callers.granted.subscribe_by_subject(subject_pattern=pattern),
        "SubscribeEvents": lambda pattern: callers.granted.subscribe_events(subject_pattern=pattern),
    }
    for pattern in ("/tape/user/**", "/tape/none/**"):
        with pytest.raises(SubjectNotGranted, match=r"lies outside of the read grants, /tape/order/\*\*"):
            await anext(calls[name](pattern))


async def test_a_run_without_granted_entries_is_answered_like_one_that_does_not_exist(callers: Callers) -> None:
    await callers.whole.append("/tape/user/made/1", run_id="hidden")
    answers = []
    for run in ("hidden", "absent"):
        with pytest.raises(NotFound) as error:
            await anext(callers.granted.subscribe_run(run_id=run))
        answers.append(str(error.value).replace(run, "RUN"))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("query", ["", "?admin=1"])
async def test_server_sent_events_are_granted_ones_only_from_the_past_and_live(callers: Callers, query: str) -> None:
    for subject in SUBJECTS:
        await callers.whole.append(subject, user="u", session="s")
    headers = callers.bearer(read=[ORDERS], scopes=["admin"])
    async with Stream(callers.server.http_address, f"/v1/events{query}", last_event_id="0", **headers) as stream:
        assert await stream.ids(2) == [1, 3]
        head = (await callers.whole.head()).global_seq
        for subject in SUBJECTS:
            await callers.whole.append(subject, user="u", session="s")
        assert await stream.ids(2) == [head + 1, head + 3]


async def test_callers_with_other_grants_do_not_share_what_they_are_sent(callers: Callers) -> None:
    address = callers.server.http_address
    async with (
        Stream(address, **callers.bearer(read=[ORDERS])) as orders,
        Stream(address, **callers.bearer(read=["/tape/user/**"])) as users,
        Stream(address, **callers.bearer()) as all_of_them,
    ):
        await until(lambda: _open_streams(callers.server, 3), "three streams")
        for subject in SUBJECTS:
            await callers.whole.append(subject, user="u", session="s")
        assert await orders.ids(2) == [1, 3]
        assert await users.ids(2) == [2, 4]
        assert await all_of_them.ids(4) == [1, 2, 3, 4]


async def _open_streams(server: Server, count: int) -> bool:
    return server.hub.metrics.live_subscriptions._value.get() >= count


async def test_empty_read_grants_open_no_stream_list_or_count(callers: Callers) -> None:
    answer = await call(callers.server.http_address, "GET", "/v1/events", **callers.bearer(read=[]))
    assert (answer.status, answer.json()["code"]) == (403, "subject_not_granted")
    assert await callers.ask("list", {}, read=[]) == 403
    assert await callers.ask("aggregate", {"window": HOUR, "bucket": HOUR}, read=[]) == 403


# ── lists and counts ─────────────────────────────────────────────────────────────────────────────


async def test_a_list_pages_through_granted_entries_only(callers: Callers) -> None:
    for number in range(40):
        await callers.whole.append(
            f"/tape/{'order' if number % 4 == 0 else 'user'}/made/{number}", user="u", session="s"
        )
    found, cursor = [], 0
    while True:
        page = await callers.ask("list", {"limit": 3, "cursor": cursor}, read=[ORDERS])
        assert len(page["events"]) <= 3
        found += [event["sequence"] for event in reversed(page["events"])]
        if not (cursor := page["next_cursor"]):
            break
    assert found == list(range(37, 0, -4))
    page = await callers.ask("list", {"filter": {"event_types": ["user.made"]}}, read=[ORDERS])
    assert (page["events"], page["has_more"]) == ([], False)


GRANTED_COUNTS = [
    (["/tape/order/**"], {"order.paid": 6, "order.shipped": 2}),
    (["/tape/order/paid/*"], {"order.paid": 4}),
    (["/tape/order/paid/1"], {"order.paid": 3}),
    (["/tape/order/paid/1", "/tape/*/made/**"], {"order.paid": 3, "user.made": 1}),
    (["**"], {"order.paid": 6, "order.shipped": 2, "user.made": 1}),
    (["/tape/none/**"], {}),
]


@pytest.mark.parametrize(("read", "counted"), GRANTED_COUNTS)
async def test_counts_are_those_of_granted_entries_before_and_after_they_are_folded(
    callers: Callers, read: list[str], counted: dict[str, int]
) -> None:
    subjects = [
        *["/tape/order/paid/1"] * 3,
        "/tape/order/paid/2",
        *["/tape/order/paid/2/3"] * 2,
        *["/tape/order/shipped/1"] * 2,
        "/tape/user/made/1",
    ]
    for subject in subjects:
        await callers.whole.append(subject, user="u", session="s", run_id="r")

    async def count(**narrowed: Any) -> dict[str, int]:
        body = {"window": HOUR, "bucket": HOUR, "filter": narrowed}
        (bucket,) = (await callers.ask("aggregate", body, read=read))["buckets"]
        return dict(bucket["counts"])

    assert await count() == counted
    assert await count(run_ids=["r"]) == counted
    assert await count(event_types=["order.paid"]) == {k: v for k, v in counted.items() if k == "order.paid"}


async def test_a_kind_with_a_dot_is_not_taken_for_a_granted_type(callers: Callers) -> None:
    for subject in ("/tape/order/paid/1", "/tape/order.paid", "/tape/order.paid"):
        await callers.whole.append(subject, user="u", session="s")
    body = {"window": HOUR, "bucket": HOUR}
    (bucket,) = (await callers.ask("aggregate", body, read=[ORDERS]))["buckets"]
    assert bucket["counts"] == {"order.paid": 1}


# ── reactions and tasks ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pattern", ["**", "/tape/*/paid/**", "/tape/user/**", "/tape/user/made/1"])
async def test_a_reaction_cannot_be_registered_on_entries_that_its_caller_may_not_read(
    callers: Callers, pattern: str
) -> None:
    with pytest.raises(SubjectNotGranted, match="goes beyond the read grants"):
        await register(callers.granted, "r", subject_pattern=pattern)
    assert not (await callers.whole.list_reactions()).reactions


async def test_a_reaction_within_the_grants_works(callers: Callers) -> None:
    await register(callers.granted, "r", subject_pattern="/tape/order/*/**")
    for subject in SUBJECTS:
        await callers.whole.append(subject)
    await matched(callers.whole)
    assert [task.subject for task in await claim(callers.granted, "r")] == [SUBJECTS[0], SUBJECTS[2]]
    for task in await tasks(callers.granted, "r"):
        assert (await callers.granted.complete_task(task_id=task.task_id, owner="w")).task.task_id == task.task_id


async def _answer(call: Awaitable[Any]) -> str:
    try:
        return repr(await call)
    except Exception as error:
        return f"{type(error).__name__} {error}"


HIDDEN_CALLS: dict[str, Callable[[AsyncTapeClient, str], Awaitable[Any]]] = {
    "claim": lambda client, reaction: client.claim_tasks(reaction_id=reaction, owner="w"),
    "list": lambda client, reaction: client.list_tasks(reaction_id=reaction),
    "statistics": lambda client, reaction: client.get_reaction_stats(reaction),
    "explain": lambda client, reaction: client.explain_reaction(reaction, 1),
    "deregister": lambda client, reaction: client.deregister_reaction(reaction),
    "redrive": lambda client, reaction: client.redrive_tasks(filter=pb.TaskFilter(reaction_id=reaction)),
}


@pytest.mark.parametrize("name", HIDDEN_CALLS)
async def test_a_reaction_on_entries_beyond_the_grants_is_answered_like_one_that_does_not_exist(
    callers: Callers, name: str
) -> None:
    await register(callers.whole, "hidden", subject_pattern="**")
    await callers.whole.append("/tape/user/made/1")
    await matched(callers.whole)
    assert [reaction.reaction_id for reaction in (await callers.granted.list_reactions()).reactions] == []
    hidden, absent = [await _answer(HIDDEN_CALLS[name](callers.granted, each)) for each in ("hidden", "absent")]
    assert hidden.replace("hidden", "NAME") == absent.replace("absent", "NAME")
    assert len(await tasks(callers.whole, "hidden")) == 1


async def test_the_name_of_a_hidden_reaction_stays_taken(callers: Callers) -> None:
    await register(callers.whole, "r", subject_pattern="**")
    with pytest.raises(SubjectNotGranted, match="is taken"):
        await register(callers.granted, "r")


async def test_tasks_of_entries_beyond_the_grants_do_not_exist(callers: Callers) -> None:
    await register(callers.whole, "r", subject_pattern="**", retry_max=0, dlq_after_n=1)
    for subject in SUBJECTS:
        await callers.whole.append(subject)
    await matched(callers.whole)
    by_subject = {task.subject: task.task_id for task in await claim(callers.whole, "r")}
    for task_id in by_subject.values():
        await callers.whole.nack_task(task_id=task_id, owner="w", error="no", permanent=True)
    dead = (await callers.granted.list_tasks(reaction_id="", status=DLQ, limit=1)).tasks
    assert [task.subject for task in dead] == [SUBJECTS[2]]
    dead = (await callers.granted.list_tasks(reaction_id="", status=DLQ)).tasks
    assert [task.subject for task in dead] == [SUBJECTS[2], SUBJECTS[0]]
    hidden = by_subject[SUBJECTS[1]]
    with pytest.raises(NotFound):
        await callers.granted.get_task(hidden)
    with pytest.raises(NotFound):
        await callers.granted.redrive_tasks(task_ids=[hidden])
    assert (await callers.granted.redrive_tasks(everything=True)).redriven == 2
    assert {task.subject for task in (await callers.whole.list_tasks(reaction_id="", status=DLQ)).tasks} == {
        SUBJECTS[1],
        SUBJECTS[3],
    }


async def test_a_dispatcher_gets_no_tasks_once_its_reaction_goes_beyond_its_grants(callers: Callers) -> None:
    await register(callers.whole, "r")
    dispatcher = Dispatcher(callers.granted, "w", ["r"], window=10)
    await callers.whole.append("/tape/order/paid/1")
    await dispatcher.until(lambda each: each.tasks, "the task of an order")
    await register(callers.whole, "r", subject_pattern="**")
    await callers.whole.append("/tape/user/made/1")
    await matched(callers.whole)
    assert len(await tasks(callers.whole, "r")) == 2
    dispatcher.say(completed=[dispatcher.tasks[0].task_id])
    await dispatcher.until(lambda each: each.settled, "the answer to its report")
    await dispatcher.close()
    assert [task.subject for task in dispatcher.tasks] == ["/tape/order/paid/1"]


async def test_an_explanation_and_a_dry_run_use_granted_entries_only(callers: Callers) -> None:
    await register(callers.granted, "r")
    for subject in SUBJECTS:
        await callers.whole.append(subject)
    await matched(callers.whole)
    assert (await callers.granted.explain_reaction("r", 1)).matched
    refused = [await _answer(callers.granted.explain_reaction("r", number)) for number in (2, 99)]
    assert refused[0].replace("entry 2", "N") == refused[1].replace("entry 99", "N")
    dry_run = await callers.granted.test_reaction(subject_pattern="**")
    assert (dry_run.matched, [entry.subject for entry in dry_run.samples]) == (2, [SUBJECTS[0], SUBJECTS[2]])
    with pytest.raises(SubjectNotGranted):
        await callers.granted.test_reaction(subject_pattern="/tape/user/**")


# ── keys and workers ─────────────────────────────────────────────────────────────────────────────


async def test_a_service_key_with_grants_is_narrowed_over_both_protocols(callers: Callers) -> None:
    request = KeyRequest("shop", "ours", ("service",), read=[ORDERS], write=["/tape/order/paid/*"])
    issued = await callers.server.database.write(lambda tx: service_keys.create(tx, request, by="operator"))
    async with AsyncTapeClient(f"tape://{callers.server.grpc_address}", id_token=issued.text) as client:
        for subject in SUBJECTS:
            await callers.whole.append(subject)
        stream = client.follow()
        assert [(await anext(stream)).subject for _ in range(2)] == [SUBJECTS[0], SUBJECTS[2]]
        with pytest.raises(SubjectNotGranted):
            await client.append("/tape/user/made/1")
    headers = {"content_type": "application/cloudevents+json", "authorization": f"Bearer {issued.text}"}
    answer = await call(callers.server.http_address, "POST", "/v1/events", EVENT | {"id": "1"}, **headers)
    assert (answer.status, answer.json()["code"]) == (403, "subject_not_granted")


PUBLISHING = """\
kind: Playbook
metadata: {{path: {path}}}
workflow:
  - {{step: a, tool: {{kind: publish, subject: {subject}, payload: {{}}}}}}
"""


async def test_what_a_playbook_publishes_is_checked_against_the_grants_of_its_worker(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for name, subject in (("good", "/tape/order/paid/1"), ("bad", "/tape/order/shipped/1")):
        await callers.whole.register_resource(PUBLISHING.format(path=name, subject=subject))
        runs.append(str((await callers.whole.execute(name)).execution_id))
    token = callers.key.mint(**OURS, scopes=["service"], read=["/tape/command/issued/**"], write=["/tape/order/paid/*"])
    monkeypatch.setenv("TAPE_TOKEN", token)
    await matched(callers.whole)
    await asyncio.wait_for(work(f"tape://{callers.server.grpc_address}", once=True), 120)
    states = [(await callers.whole.get_run(run)).status for run in runs]
    assert states == [pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_FAILED]
    assert (await anext(callers.whole.follow("/tape/order/**"))).subject == "/tape/order/paid/1"


# ── the claim ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("claim", "detail"),
    [
        ("/tape/order/**", "not an object"),
        ({"reads": ["**"]}, "'reads' is not known"),
        ({"read": "/tape/order/**"}, "read is not a list"),
        ({"write": [1]}, "write is not a list"),
        ({"read": [""]}, "read is not a list"),
        ({"read": ["order"]}, "must begin with '/'"),
        ({"write": ["/tape/**/paid"]}, r"\*\* may only stand at the end"),
        ({"read": ["/tape/order/paid/1"] * 65}, "65 patterns; 64 is the limit"),
    ],
)
async def test_a_token_whose_grants_cannot_be_read_is_rejected(
    callers: Callers, monkeypatch: pytest.MonkeyPatch, claim: Any, detail: str
) -> None:
    import jwt

    encode = jwt.encode
    monkeypatch.setattr(jwt, "encode", lambda claims, *rest, **more: encode(claims | {"tape": claim}, *rest, **more))
    headers = callers.bearer()
    answer = await call(callers.server.http_address, "POST", "/v1/events/list", {}, **headers)
    assert (answer.status, answer.json()["code"]) == (401, "auth_rejected")
    token = headers["authorization"].removeprefix("Bearer ")
    async with AsyncTapeClient(f"tape://{callers.server.grpc_address}", id_token=token) as client:
        with pytest.raises(TokenRejected, match=f"tape_claim_invalid .*{detail}"):
            await client.head()
