"""The dispatcher: handlers run on tasks, once each where all goes well, and again where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.errors import InvalidInput, NeverRetry, NotFound, NothingToDispatch, ServerUnreachable
from tape.model.task_pacing import pace
from tape.proto import tape_pb2 as pb
from tape.reactions import Envelope, ReactionDef, run_dispatcher
from tape.reactions import consumer as line_module
from tape.reactions.consumer import ReleaseTask, TaskConsumer
from tape.reactions.counters import Tally
from tape.reactions.dispatcher import dispatch
from tape.reactions.invocation import HandlerInvoker
from tape.reactions.slots import acquire_slot, release_slot
from tape.reactions.threads import Threads
from tape.server.grpc.tasks import TasksService
from tape.server.server import Server
from tests.conftest import settings_for
from tests.engine.reactions.helpers import CLAIMED, DLQ, DONE, PENDING, claim, matched, register, tasks, until

HOUR = 3_600_000_000  # in microseconds


def reaction(handler: Callable[[Envelope], Any], **fields: Any) -> ReactionDef:
    """A reaction on orders, with many at once allowed unless the test says otherwise."""
    defaults = {
        "subject_pattern": "/tape/order/**",
        "reaction_id": "r",
        "max_concurrency": 1_000,
        "retry_backoff_ms": 1,
    }
    return ReactionDef(handler=handler, **(defaults | fields))


class Running:
    """A dispatcher on this loop."""

    def __init__(self, url: str, known: list[ReactionDef], options: dict[str, Any]) -> None:
        self.tally = Tally()
        self.stop = threading.Event()
        self.task = asyncio.create_task(
            dispatch(url, known, stop=self.stop, tally=self.tally, **({"claim_max": 100} | options))
        )

    async def until(self, condition: Callable[[Tally], object], what: str) -> None:
        """Wait for its counts; an error of the dispatcher is raised here."""
        async with asyncio.timeout(120):
            while not condition(self.tally):
                if self.task.done():
                    self.task.result()
                    raise AssertionError(f"the dispatcher ended before {what}: {self.tally}")
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Stop it and wait until it has ended."""
        self.stop.set()
        await asyncio.wait_for(self.task, 120)


@contextlib.asynccontextmanager
async def running(server: Server, *known: ReactionDef, **options: Any) -> AsyncIterator[Running]:
    """A dispatcher that is stopped in the end. Its reactions are registered before this returns."""
    url = f"tape://{server.grpc_address}"
    dispatcher = Running(url, list(known), options)
    async with AsyncTapeClient(url) as client:

        async def is_registered() -> bool:
            if dispatcher.task.done():
                dispatcher.task.result()
            return len((await client.list_reactions()).reactions) >= len(known)

        await until(is_registered, "registration")
    try:
        yield dispatcher
    finally:
        await dispatcher.end()


async def fill(client: AsyncTapeClient, count: int, **fields: Any) -> None:
    for number in range(count):
        await client.append(f"/tape/order/paid/{number}", {"n": number}, **fields)


# ── what a handler gets ──────────────────────────────────────────────────────────────────────────


async def test_a_handler_gets_the_entry_with_its_payload_parsed(server: Server, client: AsyncTapeClient) -> None:
    got: list[Envelope] = []
    async with running(server, reaction(got.append)) as dispatcher:
        await client.append("/tape/order/paid/a%2Fb", {"n": [1, {"k": None}]}, run_id="run-1", schema_version=3)
        await dispatcher.until(lambda tally: tally.done == 1, "the task")
    (envelope,) = got
    entry = await anext(client.follow("/tape/order/**"))
    for name in ("global_seq", "run_id", "seq", "kind", "subject", "ts_ms", "schema_version", "payload", "trace_id"):
        assert getattr(envelope, name) == envelope[name] == getattr(entry, name), name
    assert (envelope.event_id, envelope.attempt, envelope.reaction_id) == ("run-1/1", 1, "r")
    with pytest.raises(KeyError):
        envelope["nothing"]
    assert [task.status for task in await tasks(client)] == [DONE]


async def test_functions_and_coroutine_functions_both_handle(server: Server, client: AsyncTapeClient) -> None:
    loop_thread, threads = threading.get_ident(), {}

    def on_a_thread(envelope: Envelope) -> None:
        threads["function"] = threading.get_ident()

    async def on_the_loop(envelope: Envelope) -> None:
        threads["coroutine"] = threading.get_ident()

    known = [reaction(on_a_thread, reaction_id="a"), reaction(on_the_loop, reaction_id="b")]
    async with running(server, *known) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 2, "both")
    assert threads["coroutine"] == loop_thread != threads["function"]


async def test_each_task_runs_once_over_two_dispatchers(server: Server, client: AsyncTapeClient) -> None:
    seen: list[tuple[str, int]] = []
    began = {"one": threading.Event(), "two": threading.Event()}

    def handler(name: str) -> Callable[[Envelope], None]:
        def handle(envelope: Envelope) -> None:
            began[name].set()
            for each in began.values():  # neither does it all before the other is there
                assert each.wait(120)
            seen.append((name, envelope.global_seq))

        return handle

    async with (
        running(server, reaction(handler("one")), claim_max=5) as one,
        running(server, reaction(handler("two")), claim_max=5) as two,
    ):
        await fill(client, 200)
        await until(lambda: _true(one.tally.done + two.tally.done == 200), "all of them")
    assert sorted(seq for _, seq in seen) == list(range(1, 201))
    assert {name for name, _ in seen} == {"one", "two"}


async def _true(value: bool) -> bool:
    return value


async def test_a_reaction_does_not_fire_on_what_its_handler_writes(server: Server, client: AsyncTapeClient) -> None:
    async def handler(envelope: Envelope) -> None:
        await client.append("/tape/order/shipped/1", {"of": envelope.global_seq})

    async with running(server, reaction(handler)) as dispatcher:
        await client.append("/tape/order/paid/1", {})
        await dispatcher.until(lambda tally: tally.done == 1, "the task")
        await matched(client)
    assert [task.source_global_seq for task in await tasks(client)] == [1]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_that_raises_is_tried_again(server: Server, client: AsyncTapeClient) -> None:
    attempts: list[tuple[int, str]] = []

    def flaky(envelope: Envelope) -> None:
        attempts.append((envelope.attempt, envelope.last_error))
        if envelope.attempt < 3:
            raise ValueError("not yet")

    async with running(server, reaction(flaky)) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 1, "success")
        assert dispatcher.tally.failed == 2
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    assert attempts[1][1].startswith("ValueError: not yet (")
    assert "in flaky)" in attempts[1][1]


async def test_a_task_that_always_fails_becomes_a_dead_letter_and_blocks_no_other(
    server: Server, client: AsyncTapeClient
) -> None:
    def poisoned(envelope: Envelope) -> None:
        if envelope.payload["n"] == 1:
            raise RuntimeError("poison")

    async with running(server, reaction(poisoned, dlq_after_n=3)) as dispatcher:
        await fill(client, 5)
        await dispatcher.until(lambda tally: tally.done == 4 and tally.dead == 1, "four and a dead letter")
    (dead,) = await tasks(client, status=DLQ)
    assert (dead.source_global_seq, dead.attempts) == (2, 3)
    assert dead.last_error.startswith("RuntimeError: poison")


async def test_a_handler_can_say_that_another_attempt_makes_no_sense(server: Server, client: AsyncTapeClient) -> None:
    async def hopeless(envelope: Envelope) -> None:
        raise NeverRetry("no such customer")

    async with running(server, reaction(hopeless)) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.dead == 1, "the dead letter")
    (dead,) = await tasks(client, status=DLQ)
    assert (dead.attempts, dead.last_error) == (1, "no such customer")


async def test_a_handler_that_exits_has_failed_and_the_dispatcher_lives(
    server: Server, client: AsyncTapeClient
) -> None:
    def exits(envelope: Envelope) -> None:
        if envelope.attempt == 1:
            raise SystemExit(3)

    async def exits_too(envelope: Envelope) -> None:
        exits(envelope)

    async with running(server, reaction(exits), reaction(exits_too, reaction_id="b")) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 2, "success in the end")
        assert dispatcher.tally.failed == 2


async def test_a_handler_that_cancels_itself_has_failed(server: Server, client: AsyncTapeClient) -> None:
    async def cancels(envelope: Envelope) -> None:
        if envelope.attempt == 1:
            raise asyncio.CancelledError

    async with running(server, reaction(cancels)) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 1, "success in the end")
        assert (dispatcher.tally.failed, dispatcher.tally.released) == (1, 0)


async def test_a_handler_that_takes_too_long_is_cancelled_and_tried_again(
    server: Server, client: AsyncTapeClient
) -> None:
    ended: list[str] = []

    async def hangs(envelope: Envelope) -> None:
        if envelope.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

    async with running(server, reaction(hangs, timeout_s=0.05)) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 1, "the second attempt")
    assert ended == ["cancelled"]


async def test_a_function_that_hangs_on_its_thread_keeps_its_slot_and_no_other(
    server: Server, client: AsyncTapeClient
) -> None:
    release = threading.Event()

    def hangs(envelope: Envelope) -> None:
        if envelope.payload["n"] == 0 and envelope.attempt == 1:
            release.wait(120)

    async with running(server, reaction(hangs, timeout_s=1, max_concurrency=2)) as dispatcher:
        await fill(client, 4)
        await dispatcher.until(lambda tally: tally.done == 4, "all of them, one in the second attempt")
        await dispatcher.until(lambda tally: tally.failed >= 1 and tally.stuck == 1, "the one thread that hangs")
        release.set()
        await dispatcher.until(lambda tally: tally.stuck == 0, "the thread")


# ── leases ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_lease_of_a_long_handler_is_renewed(server: Server, client: AsyncTapeClient) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(envelope: Envelope) -> None:
        begun.set()
        release.wait(120)

    async with running(server, reaction(slow), lease_ms=10_000) as dispatcher:
        await fill(client, 1)
        await until(lambda: _true(begun.is_set()), "the handler")
        first = (await tasks(client))[0].lease_expires_at_ms

        async def is_renewed() -> bool:
            (task,) = await tasks(client)
            assert (task.status, task.attempts) == (CLAIMED, 1)
            assert await claim(client, owner="thief") == []
            return task.lease_expires_at_ms > first

        await until(is_renewed, "a renewal")
        release.set()
        await dispatcher.until(lambda tally: tally.done == 1, "the end")
        assert dispatcher.tally.lost == 0


async def test_a_handler_whose_lease_was_lost_is_cancelled_and_not_reported(
    server: Server, client: AsyncTapeClient
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(envelope: Envelope) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with running(server, reaction(slow), lease_ms=5_000) as dispatcher:
        await fill(client, 1)
        await asyncio.wait_for(begun.wait(), 120)
        far = time.time_ns() // 1_000_000 + 60_000
        (stolen,) = await claim(client, owner="thief", now_ms=far)
        await asyncio.wait_for(ended.wait(), 120)
        await dispatcher.until(lambda tally: tally.lost == 1 and tally.in_flight == 0, "the loss")
    assert (await client.complete_task(task_id=stolen.task_id, owner="thief")).task.status == DONE


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


class Gauge:
    """How many are inside, and how many ever were at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1


async def test_max_concurrency_holds_in_the_process(server: Server, client: AsyncTapeClient) -> None:
    gauge, together = Gauge(), asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        with gauge.inside():
            if gauge.now == 3:
                together.set()
            await together.wait()
            await asyncio.sleep(0)

    async with running(server, reaction(handler, max_concurrency=3)) as dispatcher:
        await fill(client, 20)
        await dispatcher.until(lambda tally: tally.done == 20, "all")
    assert gauge.most == 3


async def test_claim_max_is_how_many_are_held(server: Server, client: AsyncTapeClient) -> None:
    release = asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        await release.wait()

    await register(client, retry_backoff_ms=1)
    await fill(client, 20)
    await matched(client)
    async with running(server, reaction(handler), claim_max=4) as dispatcher:
        await dispatcher.until(lambda tally: tally.in_flight == 4, "four")
        assert len(await tasks(client, status=CLAIMED)) == 4
        release.set()
        await dispatcher.until(lambda tally: tally.done == 20, "all")


async def test_a_rate_is_kept_in_the_process_too(
    server: Server, client: AsyncTapeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted: list[int] = []

    def noted(rate: int, next_us: int, now_us: int, wanted: int) -> tuple[int, int, int]:
        answer = pace(rate, next_us, now_us, wanted)
        granted.extend([now_us] * answer[0])
        return answer

    monkeypatch.setattr(line_module, "pace", noted)
    await register(client)  # the server knows of no rate
    known = reaction(lambda envelope: None, rate_limit_per_s=100)
    async with running(server, known, register=False) as dispatcher:
        await fill(client, 40)
        await dispatcher.until(lambda tally: tally.done == 40, "all")
    assert len(granted) == 40
    assert granted[-1] - granted[0] >= 290_000  # 40 at 100 a second, a burst of 10 at first


async def test_a_busy_reaction_does_not_starve_another(server: Server, client: AsyncTapeClient) -> None:
    release = asyncio.Event()

    async def blocked(envelope: Envelope) -> None:
        await release.wait()

    done: list[int] = []
    known = [
        reaction(blocked, reaction_id="a"),
        reaction(lambda envelope: done.append(1), reaction_id="b", subject_pattern="/tape/invoice/**"),
    ]
    async with running(server, *known, claim_max=2) as dispatcher:
        await fill(client, 10)
        await dispatcher.until(lambda tally: tally.in_flight == 2, "a full window")
        await client.append("/tape/invoice/sent/1")
        await dispatcher.until(lambda tally: tally.done == 1, "the other reaction")
        release.set()
        await dispatcher.until(lambda tally: tally.done == 11, "the rest")


# ── stopping, once, and servers that come and go ─────────────────────────────────────────────────


async def test_stopping_finishes_what_runs_and_gives_back_the_rest_untried(
    server: Server, client: AsyncTapeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()
    monkeypatch.setattr(line_module, "pace", lambda rate, next_us, now_us, wanted: (int(not next_us), 1, now_us + HOUR))

    async def handler(envelope: Envelope) -> None:
        await release.wait()

    await register(client)
    await fill(client, 6)
    await matched(client)
    # The server knows of no rate and hands all of them out; here, five of them wait for an hour.
    known = reaction(handler, rate_limit_per_s=1)
    async with running(server, known, register=False) as dispatcher:
        await dispatcher.until(lambda tally: tally.in_flight == 6, "all of them")
        dispatcher.stop.set()
        await dispatcher.until(lambda tally: tally.released == 5, "five given back")
        release.set()
    assert dispatcher.tally.done == 1
    found = await tasks(client)
    assert [task.status for task in found].count(DONE) == 1
    assert [(task.attempts, task.lease_owner) for task in found if task.status == PENDING] == [(0, "")] * 5


async def test_a_task_that_comes_just_before_the_stop_is_given_back_too() -> None:
    called: list[Envelope] = []
    tally = Tally()
    consumer = TaskConsumer("r", HandlerInvoker(called.append, "r", Threads(1)), tally, max_concurrency=5)
    consumer.accept([pb.Task(task_id="before", subject="/tape/a/b")])
    consumer.stop()
    consumer.accept([pb.Task(task_id="after", subject="/tape/a/b")])
    await asyncio.sleep(0)
    assert consumer.reports().released == ["before", "after"]
    assert (called, tally.in_flight, consumer.in_flight) == ([], 0, {})


# ── slots and prefetching ────────────────────────────────────────────────────────────────────────


def some(count: int) -> list[pb.Task]:
    return [pb.Task(task_id=str(number), subject="/tape/a/b") for number in range(count)]


async def settled() -> None:
    """Let everything that can go on go on."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_prefetched_task_is_prepared_and_runs_when_it_has_a_slot() -> None:
    prepared, acting, done = [], [], []
    go = asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        prepared.append(envelope.task_id)
        await asyncio.gather(acquire_slot(), acquire_slot())  # the concurrent steps of a handler share one slot
        acting.append(envelope.task_id)
        await go.wait()
        release_slot()
        release_slot()
        done.append(envelope.task_id)

    consumer = TaskConsumer("r", HandlerInvoker(handler, "r", Threads(1)), Tally(), max_concurrency=2, prefetch=3)
    consumer.accept(some(5))
    await settled()
    assert (prepared, acting) == (["0", "1", "2", "3", "4"], ["0", "1"])
    go.set()
    await settled()
    assert done == prepared
    assert consumer.reports().completed == prepared


@pytest.mark.parametrize(
    ("seconds", "window"), [(0.0001, 2 + 64), (0.01, 2 + 20), (0.05, 2 + 4), (1.0, 2), (0.1, 2 + 2)]
)
async def test_the_faster_the_handlers_the_more_tasks_are_prefetched(seconds: float, window: int) -> None:
    consumer = TaskConsumer("r", HandlerInvoker(print, "r", Threads(1)), Tally(), max_concurrency=2, prefetch=64)
    assert consumer.window == 2  # no duration is known yet
    consumer.record_duration(seconds)
    assert consumer.window == window
    consumer.stop()
    assert consumer.window == 0


async def test_a_prefetched_task_that_waits_long_for_a_slot_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_module, "MAX_WAIT_S", 0.0)
    go = asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        if envelope.task_id == "2":
            await go.wait()  # it waits for something other than a slot
        await acquire_slot()
        await go.wait()

    consumer = TaskConsumer("r", HandlerInvoker(handler, "r", Threads(1)), Tally(), max_concurrency=1, prefetch=8)
    consumer.record_duration(0.001)
    consumer.accept(some(3))
    await settled()
    consumer.release_waiting()
    await settled()
    assert consumer.reports().released == ["1"]
    go.set()
    await settled()
    assert sorted(consumer.reports().completed) == ["0", "2"]


async def test_a_handler_that_cannot_begin_gives_its_task_back() -> None:
    async def handler(envelope: Envelope) -> None:
        raise ReleaseTask("not here")

    consumer = TaskConsumer("r", HandlerInvoker(handler, "r", Threads(1)), Tally())
    consumer.accept(some(1))
    await settled()
    assert consumer.reports().released == ["0"]


async def test_what_does_not_finish_in_time_is_cut_short(server: Server, client: AsyncTapeClient) -> None:
    async def handler(envelope: Envelope) -> None:
        await asyncio.Event().wait()

    async with running(server, reaction(handler), drain_s=0.05) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.in_flight == 1, "the handler")
    (task,) = await tasks(client)
    assert (task.status, task.attempts) == (PENDING, 1)
    assert "cancelled before it was done" in task.last_error


async def test_once_works_off_what_is_there_and_returns(server: Server, client: AsyncTapeClient) -> None:
    url = f"tape://{server.grpc_address}"
    await register(client, retry_backoff_ms=1_000_000)
    await fill(client, 50)
    seen: list[int] = []

    def handler(envelope: Envelope) -> None:
        if envelope.payload["n"] == 7:
            raise ValueError("later")
        seen.append(envelope.payload["n"])

    tally = Tally()
    known = [reaction(handler, retry_backoff_ms=1_000_000)]
    await asyncio.wait_for(
        asyncio.to_thread(run_dispatcher, url, once=True, reactions=known, claim_max=8, tally=tally), 120
    )
    assert (tally.done, tally.failed) == (49, 1)
    assert sorted(seen) == [n for n in range(50) if n != 7]


async def test_once_waits_for_a_rate(server: Server, client: AsyncTapeClient) -> None:
    await register(client, rate_limit_per_s=100)
    await fill(client, 30)
    tally = Tally()
    known = [reaction(lambda envelope: None, rate_limit_per_s=100)]
    url = f"tape://{server.grpc_address}"
    await asyncio.wait_for(
        asyncio.to_thread(run_dispatcher, url, once=True, reactions=known, poll_interval_s=0.02, tally=tally), 120
    )
    assert tally.done == 30


@pytest.mark.parametrize("missing", [["dispatch_tasks"], ["dispatch_tasks", "settle_tasks"]])
async def test_a_server_that_cannot_push_is_polled(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, missing: list[str]
) -> None:
    for name in missing:
        monkeypatch.delattr(TasksService, name)
    release = threading.Event()

    def handler(envelope: Envelope) -> None:
        if envelope.payload["n"] == 3:
            release.wait(120)
        if envelope.payload["n"] == 4 and envelope.attempt == 1:
            raise ValueError("once")

    async with Server(settings_for(sqlite_url)) as server, AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        options = {"poll_interval_s": 0.02, "claim_max": 4, "lease_ms": 10_000}
        async with running(server, reaction(handler, max_concurrency=4), **options) as dispatcher:
            await fill(client, 12)
            await dispatcher.until(lambda tally: tally.done == 11, "all but the slow one")
            first = (await tasks(client, status=CLAIMED))[0].lease_expires_at_ms

            async def is_renewed() -> bool:
                return (await tasks(client, status=CLAIMED))[0].lease_expires_at_ms > first

            await until(is_renewed, "renewals")
            release.set()
            await dispatcher.until(lambda tally: tally.done == 12, "all")
            assert dispatcher.tally.is_polling
            assert (dispatcher.tally.failed, dispatcher.tally.lost) == (1, 0)


async def test_a_server_that_restarts_is_found_again_and_reports_arrive(store_url: str) -> None:
    server = Server(settings_for(store_url))
    await server.start()
    address = server.grpc_address
    begun, release = asyncio.Event(), asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        begun.set()
        await release.wait()

    async with running(server, reaction(handler)) as dispatcher:
        async with AsyncTapeClient(f"tape://{address}") as client:
            await fill(client, 1)
            await asyncio.wait_for(begun.wait(), 120)
        await server.stop()
        release.set()
        async with Server(settings_for(store_url, listen=address)), AsyncTapeClient(f"tape://{address}") as client:
            await dispatcher.until(lambda tally: tally.done == 1, "the report after the restart")
            await fill(client, 1)
            await dispatcher.until(lambda tally: tally.done == 2, "a new task")
            assert dispatcher.tally.reconnects >= 1
            assert {task.attempts for task in await tasks(client)} == {1}
            await dispatcher.end()


async def test_what_cannot_be_served_is_said(server: Server) -> None:
    url = f"tape://{server.grpc_address}"
    known = [reaction(lambda envelope: None, reaction_id="unknown")]
    with pytest.raises(NothingToDispatch, match=r"@tape\.on"):
        await dispatch(url, [])
    with pytest.raises(NotFound, match="'unknown'"):
        await dispatch(url, known, register=False)
    with pytest.raises(ServerUnreachable):
        await dispatch("tape://127.0.0.1:1", known)
    for option in ("claim_max", "lease_ms", "poll_interval_s"):
        with pytest.raises(InvalidInput, match=f"{option} 0"):
            await dispatch(url, known, **{option: 0})


async def test_a_reaction_deleted_and_registered_again_goes_on(server: Server, client: AsyncTapeClient) -> None:
    async with running(server, reaction(lambda envelope: None)) as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 1, "the first")
        await client.deregister_reaction("r")
        await client.append("/tape/order/paid/unseen")
        await register(client)
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 2, "the one after")
    assert len(await tasks(client)) == 2


async def test_a_prefix_keeps_two_registrations_apart(server: Server, client: AsyncTapeClient) -> None:
    seen: list[str] = []
    known = reaction(lambda envelope: seen.append(envelope.reaction_id))
    async with running(server, known, prefix="acme-", owner="me") as dispatcher:
        await fill(client, 1)
        await dispatcher.until(lambda tally: tally.done == 1, "the task")
    assert seen == ["acme-r"]
    assert [task.lease_owner for task in await tasks(client, "acme-r")] == ["me"]


async def test_handlers_see_the_context_of_their_own_task_only(server: Server, client: AsyncTapeClient) -> None:
    mark: contextvars.ContextVar[int] = contextvars.ContextVar("mark", default=0)
    leaks: list[int] = []

    async def handler(envelope: Envelope) -> None:
        leaks.append(mark.get())
        mark.set(1)

    async with running(server, reaction(handler)) as dispatcher:
        await fill(client, 5)
        await dispatcher.until(lambda tally: tally.done == 5, "all")
    assert leaks == [0] * 5
