"""Plans that go to a server: in requests of their own or in batches, and what its answers mean."""

from __future__ import annotations

from typing import Any

import pytest

from tape.errors import ApiRefused, ServerUnreachable
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.http import BATCH_BYTES, ServerDispatch
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.routing import AppliedHeader, DedupKey, Plan


class Server:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers = list(answers)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((path, body))
        answer = self.answers.pop(0) if self.answers else {"status": "started", "execution_id": "7"}
        if isinstance(answer, Exception):
            raise answer
        return answer


def plans(number: int, size: int = 1) -> list[Plan]:
    return [
        Plan(subscription="s", source="nats", message_id=str(each), playbook="p", payload={"text": "x" * size})
        for each in range(number)
    ]


def dispatch(server: Server, **options: Any) -> ServerDispatch:
    return ServerDispatch(server, SubscriptionRef("s", "s", 5), **options)  # type: ignore[arg-type]  # it answers like one


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"status": "started", "execution_id": "12"}, RunDispatchResult("started", 12)),
        ({"status": "duplicate", "execution_id": "11"}, RunDispatchResult("duplicate", 11)),
        (ApiRefused("Playbook not found: p", 404), RunDispatchResult("rejected", error="Playbook not found: p")),
        (ApiRefused("too large", 413), RunDispatchResult("rejected", error="too large")),
        (ApiRefused("wrong token", 403), RunDispatchResult("unavailable", error="wrong token")),
        (ApiRefused("busy", 429), RunDispatchResult("unavailable", error="busy")),
        (ApiRefused("broken", 500), RunDispatchResult("unavailable", error="broken")),
        (ServerUnreachable("nobody there"), RunDispatchResult("unavailable", error="nobody there")),
    ],
)
async def test_what_the_server_says_decides_whose_trouble_it_is(answer: Any, outcome: RunDispatchResult) -> None:
    assert await dispatch(Server(answer))(plans(1)) == [outcome]


async def test_applied_headers_are_reported_by_name() -> None:
    server = Server()
    (plan,) = plans(1)
    applied = (AppliedHeader("x-route", "dispatch.playbook", "p"),)
    await dispatch(server, worker_id="runtime-1")([Plan(**{**_fields(plan), "applied": applied})])
    (event,) = server.asked[0][1]["events"]
    assert event["subject"] == "/tape/subscription/message.directives_applied/s"
    assert (event["payload"]["emitter"], event["payload"]["worker_id"]) == ("subscription_runtime", "runtime-1")


async def test_a_request_says_where_it_comes_from() -> None:
    server = Server()
    (plan,) = plans(1)
    await dispatch(server)([Plan(**{**_fields(plan), "pool": "iot", "dedup": DedupKey("k", 60)})])
    path, body = server.asked[0]
    assert path == "/api/execute"
    assert body == {
        "path": "p",
        "payload": {"text": "x"},
        "subscription": "s",
        "message_id": "0",
        "parent_execution_id": 5,
        "execution_pool": "iot",
        "dedup": {"key": "k", "window_secs": 60},
    }


def _fields(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__struct_fields__}


async def test_batches_keep_to_their_size_and_each_plan_has_its_own_answer() -> None:
    ok = {"status": "started", "execution_id": "1"}
    bad = {"status": "error", "error": "Resource not found: Playbook not found: p"}
    server = Server({"results": [ok, bad]}, {"results": [ok, ok]}, {"results": [ok]})
    answers = await dispatch(server, batch_max=2)(plans(5))
    assert [(path, len(body["executions"])) for path, body in server.asked] == [
        ("/api/execute/batch", 2),
        ("/api/execute/batch", 2),
        ("/api/execute/batch", 1),
    ]
    assert [answer.outcome for answer in answers] == ["started", "rejected", "started", "started", "started"]


async def test_a_batch_is_split_where_it_would_be_too_large_for_the_server() -> None:
    one = {"results": [{"status": "started", "execution_id": "1"}]}
    server = Server(one, one, one)
    answers = await dispatch(server, batch_max=100)(plans(3, BATCH_BYTES - 1_000))
    assert [len(body["executions"]) for _, body in server.asked] == [1, 1, 1]
    assert [answer.outcome for answer in answers] == ["started"] * 3


async def test_a_batch_that_is_refused_as_a_whole_is_sent_one_by_one() -> None:
    server = Server(
        ApiRefused("cannot be read", 400), {"status": "started", "execution_id": "1"}, ApiRefused("no", 422)
    )
    answers = await dispatch(server, batch_max=10, concurrency=1)(plans(2))
    assert [answer.outcome for answer in answers] == ["started", "rejected"]


async def test_a_batch_without_an_answer_is_unavailable_as_a_whole() -> None:
    answers = await dispatch(Server(ServerUnreachable("gone")), batch_max=10)(plans(3))
    assert answers == [RunDispatchResult("unavailable", error="gone")] * 3


OK = {"status": "started", "execution_id": "1"}
BAD = {"status": "error", "error": "Resource not found: Playbook not found: p"}
SKIPPED = {"status": "skipped", "error": "not tried"}


async def test_replays_of_a_lane_go_together_and_name_it() -> None:
    server = Server({"results": [OK] * 4})
    answers = await dispatch(server).in_lanes(plans(4), ["a", "b", "a", "c"])
    ((path, body),) = server.asked
    assert path == "/api/execute/batch"
    lanes = [each.get("lane") for each in body["executions"]]
    assert lanes[0] == lanes[2] is not None
    assert (lanes[1], lanes[3]) == (None, None)  # alone in its lane: no order to keep
    assert [answer.outcome for answer in answers] == ["started"] * 4


async def test_a_lane_that_stopped_in_one_batch_is_left_out_of_the_next() -> None:
    size = BATCH_BYTES // 2 - 1_000
    server = Server({"results": [OK, BAD]}, {"results": [OK]})
    answers = await dispatch(server).in_lanes(plans(4, size), ["a", "b", "b", "a"])
    assert [[each["message_id"] for each in body["executions"]] for _, body in server.asked] == [["0", "1"], ["3"]]
    assert [answer.outcome for answer in answers] == ["started", "rejected", "skipped", "started"]


async def test_what_the_server_skipped_was_not_tried() -> None:
    server = Server({"results": [OK, BAD, SKIPPED]})
    answers = await dispatch(server).in_lanes(plans(3), ["a", "a", "a"])
    assert [answer.outcome for answer in answers] == ["started", "rejected", "skipped"]


async def test_after_a_batch_that_is_lost_no_other_is_sent() -> None:
    server = Server(ServerUnreachable("gone"))
    answers = await dispatch(server).in_lanes(plans(4, BATCH_BYTES // 2 - 1_000), ["a", "b", "a", "c"])
    assert len(server.asked) == 1
    assert [answer.outcome for answer in answers] == ["unavailable", "unavailable", "skipped", "skipped"]


async def test_lanes_of_a_batch_that_is_refused_as_a_whole_go_one_by_one_in_their_order() -> None:
    server = Server(ApiRefused("too large", 413), OK, ApiRefused("no", 422), OK, OK)
    answers = await dispatch(server, concurrency=1).in_lanes(plans(5), ["a", "b", "a", "b", "a"])
    assert [body["message_id"] for _, body in server.asked[1:]] == ["0", "1", "2", "4"]
    assert all("lane" not in body for _, body in server.asked[1:])
    assert [answer.outcome for answer in answers] == ["started", "rejected", "started", "skipped", "started"]
