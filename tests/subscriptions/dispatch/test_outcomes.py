"""Outcomes of runs feed the circuits: which run counts for which downstream, and which message is the next probe."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tape.client import AsyncTapeClient
from tape.engine.executions.execute import ExecuteRequest, checked_request, execute_batch
from tape.model.dispatch_result import RunDispatchResult
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tape.subscriptions.dispatch.circuit import CircuitPhase, Circuits
from tape.subscriptions.dispatch.in_server import WriterDownstreams
from tape.subscriptions.dispatch.outcomes import OTHERS_FIRST_MS, TASK_DUE_MS, OutcomeFeed, ResumedRun
from tests.engine.reactions.helpers import DLQ, claim, matched, tasks

POOL = "pool:shared"
PATH = "subscriptions/orders"
PLAYBOOK = "kind: Playbook\nmetadata: {path: domain/order}\nworkflow:\n  - {step: one, tool: {kind: value, value: 1}}\n"


class Desk:
    """A subscription with the downstreams `orders` and `payments`, and a worker that reports what a test says."""

    def __init__(self, server: Server, client: AsyncTapeClient, **options: bool) -> None:
        self._server = server
        self._client = client
        self.now = 1_000_000
        self.resumed: list[str] = []
        self.circuits = Circuits(["orders", "payments"], trip_after=2, probe_after_ms=10_000)
        self.feed = OutcomeFeed(
            WriterDownstreams(server.database, PATH),
            self.circuits,
            probe_timeout_ms=30_000,
            now_ms=lambda: self.now,
            resumed=self._note,
            **options,
        )

    def _note(self, run: ResumedRun) -> None:
        self.resumed.append(str(run.execution_id))

    async def start(self, *keys: str) -> list[str]:
        await self._client.register_resource(PLAYBOOK, if_changed=True)
        requests = [
            checked_request(
                ExecuteRequest(
                    path="domain/order",
                    payload={},
                    subscription=PATH,
                    downstream="orders",
                    ordering_key=key,
                    execution_pool="shared",
                )
            )
            for key in keys
        ]
        found = await self._server.database.write(lambda tx: execute_batch(tx, requests))
        await matched(self._client)
        return [each.run_id for each in found if isinstance(each, RunDispatchResult)]

    async def claim(self) -> dict[str, str]:
        return {task.source_run_id: task.task_id for task in await claim(self._client, POOL, "w")}

    async def settle(
        self, completed: Sequence[str] = (), unavailable: Sequence[str] = (), answered: str = "", at: str = "orders"
    ) -> None:
        failed = [pb.TaskFailure(task_id=each, error="503", unavailable=at) for each in unavailable]
        answers = [pb.TaskAnswers(downstream=answered, task_ids=[*completed, *unavailable])] if answered else []
        await self._client.settle_tasks(owner="w", completed=completed, failed=failed, answered=answers)
        await self.feed.step()

    async def fail_until_open(self, *keys: str) -> list[str]:
        """Two runs find `orders` unavailable, which opens its circuit."""
        ids = await self.start(*keys)
        await self.feed.step()
        await self.settle(unavailable=list((await self.claim()).values()))
        assert self.phase is CircuitPhase.OPEN
        assert await self.claim() == {}, "the pool starts no task for an open downstream"
        return ids

    async def probe(self) -> dict[str, str]:
        """The task that is let go when the next probe is due."""
        self.now += 10_000
        await self.feed.step()
        return await self.claim()

    @property
    def phase(self) -> CircuitPhase:
        return self.circuits["orders"].phase


@pytest.fixture
async def desk(server: Server, client: AsyncTapeClient) -> Desk:
    return Desk(server, client)


async def test_the_success_of_a_step_counts_for_the_downstream_that_it_names_and_for_no_other(desk: Desk) -> None:
    await desk.fail_until_open("a", "b")
    probed = await desk.probe()
    await desk.settle(completed=list(probed.values()), answered="payments")
    assert desk.phase is CircuitPhase.OPEN
    probed = await desk.probe()
    await desk.settle(completed=list(probed.values()), answered="orders")
    assert desk.phase is CircuitPhase.CLOSED


async def test_a_run_that_never_reaches_its_downstream_does_not_count_and_the_next_message_is_tried(desk: Desk) -> None:
    ids = await desk.fail_until_open("a", "b")
    probed = await desk.probe()
    assert list(probed) == [ids[0]]
    await desk.settle(completed=list(probed.values()))
    assert desk.phase is CircuitPhase.OPEN
    await desk.feed.step()
    assert list(await desk.claim()) == [ids[1]], "at once, not after another probe_after_ms"


async def test_an_answer_of_a_run_that_goes_on_closes_the_circuit(desk: Desk, client: AsyncTapeClient) -> None:
    await desk.fail_until_open("a", "b")
    probed = await desk.probe()
    answers = [pb.TaskAnswers(downstream="orders", task_ids=list(probed.values()))]
    await client.settle_tasks(owner="w", answered=answers)
    await desk.feed.step()
    assert desk.phase is CircuitPhase.CLOSED
    assert len(await desk.claim()) == 1, "the other run goes on"


async def test_a_message_that_fails_is_not_the_probe_twice_running_while_another_waits(desk: Desk) -> None:
    ids = await desk.fail_until_open("a", "b")
    order = []
    for _ in range(4):
        probed = await desk.probe()
        order += list(probed)
        await desk.settle(unavailable=list(probed.values()))
    assert order == [ids[0], ids[1], ids[0], ids[1]]


async def test_a_message_that_waits_alone_gives_others_time_to_be_the_probe(desk: Desk) -> None:
    ids = await desk.fail_until_open("a", "b")
    probed = await desk.probe()
    await desk.settle(unavailable=list(probed.values()))
    probed = await desk.probe()
    await desk.settle(completed=list(probed.values()))  # only the first waits now, and it was not the last probe
    await desk.feed.step()
    probed = await desk.claim()
    assert list(probed) == [ids[0]]
    await desk.settle(unavailable=list(probed.values()))
    assert await desk.probe() == {}
    assert desk.phase is CircuitPhase.OPEN, "the next message from the spool or the source is the probe"
    desk.now += OTHERS_FIRST_MS
    await desk.feed.step()
    assert list(await desk.claim()) == [ids[0]], "none came"


async def test_the_attempts_of_a_poison_message_count_once_another_has_succeeded_there(
    desk: Desk, client: AsyncTapeClient
) -> None:
    poison, _ = await desk.fail_until_open("a", "b")
    probed = await desk.probe()
    await desk.settle(unavailable=[probed[poison]])
    probed = await desk.probe()
    await desk.settle(completed=list(probed.values()), answered="orders")
    assert desk.phase is CircuitPhase.CLOSED
    await desk.feed.step()
    claimed = await desk.claim()
    assert list(claimed) == [poison]
    await desk.settle(unavailable=list(claimed.values()))
    (task,) = [each for each in await tasks(client, POOL) if each.source_run_id == poison]
    assert task.attempts == 1
    assert await tasks(client, POOL, DLQ) == []


async def test_an_attempt_that_got_further_does_not_count(desk: Desk, client: AsyncTapeClient) -> None:
    poison, other = await desk.fail_until_open("a", "b")
    probed = await desk.probe()
    await desk.settle(unavailable=list(probed.values()))
    probed = await desk.probe()
    await desk.settle(completed=[probed[other]], answered="orders")
    await desk.feed.step()
    claimed = await desk.claim()
    await desk.settle(unavailable=[claimed[poison]], answered="orders")
    (task,) = [each for each in await tasks(client, POOL) if each.source_run_id == poison]
    assert task.attempts == 0


async def test_a_message_accepted_as_the_probe_that_waits_behind_the_last_one_lets_that_be_tried(desk: Desk) -> None:
    (first, second) = await desk.fail_until_open("a", "b")
    probed = await desk.probe()
    await desk.settle(completed=list(probed.values()))
    await desk.feed.step()
    probed = await desk.claim()
    await desk.settle(unavailable=list(probed.values()))  # `b` waits alone, and was the last probe
    assert first not in probed
    await desk.start("b")
    desk.now += 10_000
    desk.circuits.decide("orders", desk.now)
    desk.feed.await_probe("orders")
    await desk.feed.step()
    assert desk.phase is CircuitPhase.HALF_OPEN
    desk.now += OTHERS_FIRST_MS
    await desk.feed.step()
    assert list(await desk.claim()) == [second]


async def test_a_message_accepted_as_the_probe_that_gets_no_task_makes_way(desk: Desk) -> None:
    await desk.fail_until_open("a", "b")
    for _ in range(2):
        probed = await desk.probe()
        await desk.settle(completed=list(probed.values()))
    desk.circuits.decide("orders", desk.now)
    desk.feed.await_probe("orders")
    await desk.feed.step()
    assert desk.phase is CircuitPhase.HALF_OPEN
    desk.now += TASK_DUE_MS
    await desk.feed.step()
    assert desk.phase is CircuitPhase.OPEN


async def test_while_a_probe_is_declared_an_accepted_dispatch_is_no_answer(desk: Desk) -> None:
    await desk.feed.step()
    assert desk.feed.is_answer("orders")
    desk.feed.note_probe("orders", is_up=False)
    assert not desk.feed.is_answer("orders")
    assert desk.feed.is_answer("payments")


async def test_a_downstream_that_only_a_step_names_has_a_circuit_too(desk: Desk) -> None:
    await desk.start("a", "b")
    await desk.feed.step()
    await desk.settle(unavailable=list((await desk.claim()).values()), at="stock")
    assert desk.circuits["stock"].phase is CircuitPhase.OPEN
    assert desk.phase is CircuitPhase.CLOSED
    assert desk.circuits.route("stock") == "orders", "messages are routed to declared downstreams"


async def test_a_process_without_deliveries_leaves_it_to_others_to_hold(
    server: Server, client: AsyncTapeClient
) -> None:
    idle = Desk(server, client, keeps=False)
    await idle.start("a", "b")
    await idle.feed.step()
    await idle.settle(unavailable=list((await idle.claim()).values()))
    assert idle.phase is CircuitPhase.OPEN
    counts = await WriterDownstreams(server.database, PATH).read()
    assert not counts["orders"].held


async def test_an_outage_of_five_minutes_uses_up_no_attempt_and_every_run_goes_on(
    desk: Desk, client: AsyncTapeClient
) -> None:
    """The clock of the circuits is simulated; the probes of five minutes fail one after the other."""
    ids = await desk.fail_until_open("a", "b")
    began_ms = desk.now
    while desk.now - began_ms < 300_000:
        probed = await desk.probe()
        assert len(probed) == 1
        await desk.settle(unavailable=list(probed.values()))
        assert desk.phase is CircuitPhase.OPEN
    assert [each.attempts for each in await tasks(client, POOL)] == [0, 0]
    probed = await desk.probe()
    await desk.settle(completed=list(probed.values()), answered="orders")
    await desk.feed.step()
    rest = await desk.claim()
    assert {*probed, *rest} == set(ids)
    assert sorted(desk.resumed) == sorted(ids)
