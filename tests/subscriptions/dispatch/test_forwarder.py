"""What can go is dispatched, what cannot waits, and only what is safe is acknowledged."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tape.subscriptions.dispatch.forwarder as forwarder_module
from tape.base.telemetry.metrics import Metrics
from tape.brokers.source import RedeliveryLimits
from tape.errors import SpoolUnavailable
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.assembly import forwarder_of, rules_of
from tape.subscriptions.dispatch.forwarder import Forwarder
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.message import SourceMessage, receive
from tape.subscriptions.routing import Plan, resolve
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.objects import BucketBackend
from tape.subscriptions.spool.spool import Spool
from tests.objects import free_ports
from tests.subscriptions.specs import subscription

pytestmark = pytest.mark.usefixtures("loopback_allowed")

REF = SubscriptionRef("orders", "subscriptions/orders", 7)
_WAITING = {"mode": "buffer_and_ack", "backend": "memory", "ordering_key": "lane"}


class World:
    """A downstream that can be switched off, a clock, and a subscription that survives its process."""

    def __init__(self, **spool: Any) -> None:
        from obstore.store import MemoryStore

        spool.setdefault("circuit", {"trip_after": 2, "probe_after_ms": 1000})
        self.subscription = subscription(spool=_WAITING | spool)
        self.store = MemoryStore()
        self.is_up = True
        self.breaks: Exception | None = None
        self.unknown: set[str] = set()
        self.away: set[str] = set()
        self.runs: list[str] = []
        self.seen: dict[str, int] = {}
        self.emitted: list[SubscriptionEvent] = []
        self.now = 1_000_000
        self.calls = 0
        self.windows: list[int] = []

    async def begin(self, *, redelivers: bool = True) -> Forwarder:
        spec = self.subscription.spec.spool
        spool = None
        if spec.mode != "off":
            backend = BucketBackend(self.store, "s", "memory")
            spool = Spool(REF, "nats", backend, rules_of(self.subscription), emit=self.emit, now_ms=lambda: self.now)
        forwarder = Forwarder(
            self.subscription,
            REF,
            self.dispatch,
            spool=spool,
            emit=self.emit,
            redelivers=redelivers,
            now_ms=lambda: self.now,
        )
        await forwarder.start()
        return forwarder

    async def dispatch(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        self.calls += 1
        self.windows += [plan.dedup.window_secs for plan in plans if plan.dedup is not None]
        return [self.one(plan) for plan in plans]

    def one(self, plan: Plan) -> RunDispatchResult:
        if self.breaks is not None:
            raise self.breaks
        if not self.is_up or plan.message_id in self.away:
            return RunDispatchResult("unavailable", error="connection refused")
        if plan.message_id in self.unknown:
            return RunDispatchResult("rejected", error="no such playbook")
        if plan.dedup is not None and plan.dedup.key in self.seen:
            return RunDispatchResult("duplicate", self.seen[plan.dedup.key])
        self.runs.append(plan.message_id)
        if plan.dedup is not None:
            self.seen[plan.dedup.key] = len(self.runs)
        return RunDispatchResult("started", len(self.runs))

    async def emit(self, events: Sequence[SubscriptionEvent]) -> None:
        self.emitted += events

    def message(self, name: str, lane: str = "a") -> tuple[SourceMessage, Plan]:
        message = receive("nats", name, b'{"v": 1}', [("lane", lane)])
        return message, resolve(self.subscription, message)

    def types(self) -> list[str]:
        return [event.event_type.removeprefix("subscription.") for event in self.emitted]


async def test_while_all_is_well_messages_become_runs_and_nothing_is_written() -> None:
    world = World()
    forwarder = await world.begin()
    answers = await forwarder.forward([world.message("m0"), world.message("m1", "b")])
    assert [answer.outcome for answer in answers] == ["started", "started"]
    assert (world.runs, world.emitted, world.calls) == (["m0", "m1"], [], 1)
    assert forwarder.may_fetch() is None


async def test_no_message_overtakes_one_of_its_lane_that_could_not_go() -> None:
    world = World()
    world.away.add("m1")
    forwarder = await world.begin()
    messages = [world.message("m0"), world.message("m1"), world.message("m2"), world.message("n0", "b")]
    answers = await forwarder.forward(messages)
    assert [answer.outcome for answer in answers] == ["started", "held", "held", "started"]
    assert world.runs == ["m0", "n0"]


async def test_a_rejected_message_blocks_no_others() -> None:
    world = World(ordering="global")
    world.unknown |= {"m0", "m2"}
    forwarder = await world.begin()
    answers = await forwarder.forward([world.message(f"m{n}") for n in range(4)])
    assert [answer.outcome for answer in answers] == ["rejected", "started", "rejected", "started"]
    assert world.runs == ["m1", "m3"]


async def test_a_replay_is_recognized_by_what_happened_since_its_message_came() -> None:
    world = World(circuit={"trip_after": 1, "probe_after_ms": 1000})
    world.subscription = subscription(spool=_WAITING, dedup={"enabled": True, "window_secs": 300})
    world.is_up = False
    forwarder = await world.begin()
    await forwarder.forward([world.message("m0")] * 5)
    world.is_up = True
    world.now += 3_600_000
    await forwarder.drain()
    assert world.windows[0] == 300
    assert world.windows[-1] == 300 + 3_600


async def test_a_clock_that_is_set_back_keeps_nothing_waiting_for_longer() -> None:
    world = World()
    world.is_up = False
    forwarder = await world.begin()
    await forwarder.forward([world.message("m0"), world.message("m1")])
    world.is_up = True
    world.now -= 3_600_000
    assert (await forwarder.drain()).remaining == 2
    world.now += 1_000
    assert (await forwarder.drain()).remaining < 2


async def test_hybrid_buffers_in_time_though_the_clock_is_set_back() -> None:
    world = World(mode="hybrid", hybrid_escalate_after_ms=5_000)
    world.is_up = False
    forwarder = await world.begin()
    await forwarder.forward([world.message("m0"), world.message("m1", "b")])
    world.now -= 3_600_000
    assert forwarder.may_fetch() == 0
    world.now += 5_000
    assert forwarder.may_fetch() is None


async def test_circuits_whose_file_is_damaged_begin_closed() -> None:
    world = World()
    await BucketBackend(world.store, "s", "memory").put(Area.CONTROL, [("circuit-state", b'{"default": {"ph')])
    forwarder = await world.begin()
    assert forwarder.circuits.are_closed


async def test_whatever_goes_wrong_with_the_spool_it_is_looked_after_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World(circuit={"trip_after": 1, "probe_after_ms": 0, "probe_interval_ms": 10})
    world.is_up = False
    forwarder = await world.begin()
    await forwarder.forward([world.message("m0")])
    assert forwarder.spool is not None
    load_intact, failures = forwarder.spool.expire, iter([ZeroDivisionError("a fault of ours")])

    async def expire() -> int:
        for failure in failures:
            raise failure
        return await load_intact()

    forwarder.spool.expire = expire  # type: ignore[method-assign]
    world.is_up = True
    running = asyncio.create_task(forwarder.run())
    while not world.runs:
        await asyncio.sleep(0.01)
    forwarder.stop()
    await running
    assert "a fault of ours" in caplog.text


async def test_a_failure_while_the_circuit_is_closed_leaves_the_message_to_its_source() -> None:
    world = World()
    forwarder = await world.begin()
    world.is_up = False
    (answer,) = await forwarder.forward([world.message("m0")])
    assert (answer.outcome, answer.is_durable) == ("held", False)


async def test_an_outage_from_beginning_to_end() -> None:
    world = World()
    forwarder = await world.begin()
    world.is_up = False
    first = await forwarder.forward([world.message("m0")])
    second = await forwarder.forward([world.message("m1")])  # opens the circuit, and takes its message along
    rest = await forwarder.forward([world.message(f"m{n}") for n in range(2, 6)])
    assert [answer.outcome for answer in first + second + rest] == ["held"] + ["spooled"] * 5
    calls = world.calls
    assert (await forwarder.drain()).remaining == 5
    assert world.calls == calls  # nothing is tried while the circuit is open
    world.is_up = True
    world.now += 1000
    reports = [await forwarder.drain() for _ in range(2)]
    assert sum(report.replayed for report in reports) == 5
    assert world.runs == ["m1", "m2", "m3", "m4", "m5"]
    assert [kind for kind in world.types() if kind.startswith("circuit")] == ["circuit.opened", "circuit.closed"]
    assert world.types().count("message.spooled") == world.types().count("message.replayed") == 5
    assert forwarder.may_fetch() is None


async def test_a_probe_that_fails_opens_the_circuit_again() -> None:
    world = World()
    forwarder = await world.begin()
    world.is_up = False
    for n in range(3):
        await forwarder.forward([world.message(f"m{n}")])
    world.now += 1000
    calls = world.calls
    await forwarder.drain()
    await forwarder.drain()
    assert world.calls == calls + 1
    assert forwarder.circuits["default"].state.trips == 2


async def test_a_probe_that_never_left_is_not_waited_for() -> None:
    world = World()
    forwarder = await world.begin()
    world.is_up = False
    for n in range(3):
        await forwarder.forward([world.message(f"m{n}")])
    world.is_up, world.now = True, world.now + 1000
    assert forwarder.spool is not None
    emitted = forwarder.spool.emit

    async def fails(events: Sequence[SubscriptionEvent]) -> None:
        raise SpoolUnavailable("no space left")

    forwarder.spool.emit = fails  # the drain cannot say that it begins, and its probe stays where it is
    with pytest.raises(SpoolUnavailable):
        await forwarder.drain()
    forwarder.spool.emit = emitted
    while (await forwarder.drain()).remaining:
        pass
    assert world.runs == ["m1", "m2"]


async def test_a_message_on_its_way_that_raises_leaves_no_probe_behind() -> None:
    world = World(mode="off")
    forwarder = await world.begin()
    world.is_up = False
    for n in range(2):
        await forwarder.forward([world.message(f"m{n}")])
    world.is_up, world.now = True, world.now + 1000
    world.breaks = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await forwarder.forward([world.message("m0")])
    world.breaks = None
    (answer,) = await forwarder.forward([world.message("m0")])
    assert answer.outcome == "started"


async def test_without_a_spool_messages_stay_at_their_source_and_one_of_them_is_the_probe() -> None:
    world = World(mode="off")
    forwarder = await world.begin()
    world.is_up = False
    for n in range(2):
        await forwarder.forward([world.message(f"m{n}")])
    assert forwarder.may_fetch() == 0
    world.now += 1000
    assert forwarder.may_fetch() == 1
    world.is_up = True
    (answer,) = await forwarder.forward([world.message("m0")])
    assert answer.outcome == "started"
    assert forwarder.may_fetch() is None


async def test_hybrid_leaves_a_short_outage_to_the_source_and_buffers_a_long_one() -> None:
    world = World(mode="hybrid", hybrid_escalate_after_ms=5000)
    forwarder = await world.begin()
    world.is_up = False
    for n in range(2):
        (answer,) = await forwarder.forward([world.message(f"m{n}")])
        assert answer.outcome == "held"
    assert forwarder.may_fetch() == 0
    world.now += 5000
    world.is_up = False
    assert forwarder.may_fetch() is None
    await forwarder.forward([world.message("probe")])
    (answer,) = await forwarder.forward([world.message("m2")])
    assert answer.outcome == "spooled"


@pytest.mark.parametrize(
    ("redelivery", "outcome"),
    [
        (RedeliveryLimits(deliveries_left=5), "held"),
        (RedeliveryLimits(deliveries_left=1), "spooled"),
        (RedeliveryLimits(deliveries_left=0), "spooled"),
        (RedeliveryLimits(expires_at_ms=1_000_000 + 3_600_000), "held"),
        (RedeliveryLimits(expires_at_ms=1_000_000 + 30_000), "spooled"),
    ],
)
async def test_hybrid_buffers_messages_that_are_about_to_expire_at_their_source(
    redelivery: RedeliveryLimits, outcome: str
) -> None:
    world = World(mode="hybrid", hybrid_escalate_after_ms=60_000)
    forwarder = await world.begin()
    world.is_up = False
    (answer,) = await forwarder.forward([world.message("m0")], [redelivery])  # the circuit is closed still
    assert answer.outcome == outcome
    (answer,) = await forwarder.forward([world.message("m1")], [redelivery])
    assert answer.outcome == outcome


async def test_where_hybrid_has_to_keep_one_it_keeps_those_with_it_and_behind_it() -> None:
    world = World(mode="hybrid", hybrid_escalate_after_ms=60_000, circuit={"trip_after": 1, "probe_after_ms": 1000})
    forwarder = await world.begin()
    world.is_up = False
    await forwarder.forward([world.message("m0")], [RedeliveryLimits(9)])
    answers = await forwarder.forward(
        [world.message("m1"), world.message("m2")], [RedeliveryLimits(9), RedeliveryLimits(1)]
    )
    assert [answer.outcome for answer in answers] == ["spooled", "spooled"]
    assert forwarder.may_fetch() is None
    (answer,) = await forwarder.forward([world.message("m3")], [RedeliveryLimits(9)])
    assert answer.outcome == "spooled"


async def test_hybrid_fetches_again_before_its_source_forgets_what_was_left_to_it() -> None:
    world = World(mode="hybrid", hybrid_escalate_after_ms=10**9, circuit={"trip_after": 1, "probe_after_ms": 10**9})
    forwarder = await world.begin()
    world.is_up = False
    redelivery = RedeliveryLimits(expires_at_ms=world.now + 600_000)
    (answer,) = await forwarder.forward([world.message("m0")], [redelivery])
    assert (answer.outcome, forwarder.may_fetch()) == ("held", 0)
    world.now += 540_000
    assert forwarder.may_fetch() is None
    (answer,) = await forwarder.forward([world.message("m0")], [redelivery])
    assert answer.outcome == "spooled"


async def test_without_a_spool_an_expiring_message_is_reported_as_dropped() -> None:
    world = World(mode="off")
    forwarder = await world.begin()
    world.is_up = False
    await forwarder.forward([world.message("m0")], [RedeliveryLimits(1)])
    assert world.types() == []
    await forwarder.forward([world.message("m0")], [RedeliveryLimits(0)])
    (emitted,) = [event.context for event in world.emitted if event.event_type.endswith("message.dropped")]
    assert (emitted["message_id"], emitted["reason"]) == ("m0", "source_gives_up")


async def test_hybrid_buffers_at_once_what_its_source_would_not_bring_again() -> None:
    world = World(mode="hybrid", hybrid_escalate_after_ms=60_000)
    forwarder = await world.begin(redelivers=False)
    world.is_up = False
    answers = [(await forwarder.forward([world.message(f"m{n}")]))[0] for n in range(3)]
    assert [answer.outcome for answer in answers] == ["spooled", "spooled", "spooled"]


async def test_a_restart_in_the_middle_of_an_outage_goes_on_with_it() -> None:
    world = World()
    forwarder = await world.begin()
    world.is_up = False
    for n in range(4):
        await forwarder.forward([world.message(f"m{n}")])
    again = await world.begin()
    assert "spool.recovered" in world.types()
    assert not again.circuits.are_closed
    (answer,) = await again.forward([world.message("m4")])
    assert answer.outcome == "spooled"
    world.is_up, world.now = True, world.now + 1000
    while (await again.drain()).remaining:
        pass
    assert world.runs == ["m1", "m2", "m3", "m4"]


async def test_a_replay_that_was_dispatched_but_not_removed_makes_no_second_run() -> None:
    world = World()
    forwarder = await world.begin()
    world.is_up = False
    for n in range(3):
        await forwarder.forward([world.message(f"m{n}")])
    world.is_up, world.now = True, world.now + 1000

    async def dies(events: Sequence[SubscriptionEvent]) -> None:
        if any(event.event_type.endswith("message.replayed") for event in events):
            raise ConnectionError("killed between the dispatch and the removal")
        world.emitted.extend(events)

    again = await world.begin()
    assert again._spool is not None
    again._spool.emit = dies
    with pytest.raises(ConnectionError):
        await again.drain()
    last = await world.begin()
    while (await last.drain()).remaining:
        pass
    assert world.runs == ["m1", "m2"]


async def test_new_messages_wait_behind_those_that_wait() -> None:
    world = World(drain={"on_recovery": "ordered_then_live"})
    forwarder = await world.begin()
    world.is_up = False
    for n in range(3):
        await forwarder.forward([world.message(f"m{n}", lane="a")])
    world.is_up, world.now = True, world.now + 1000
    forwarder.circuits.record("default", succeeded=True, now_ms=world.now)
    assert forwarder.may_fetch() == 0
    (answer,) = await forwarder.forward([world.message("m3", lane="b")])
    assert answer.outcome == "spooled"


async def test_interleaved_only_those_of_the_same_lane_wait() -> None:
    world = World(drain={"on_recovery": "interleave"})
    forwarder = await world.begin()
    world.is_up = False
    for n in range(3):
        await forwarder.forward([world.message(f"m{n}", lane="a")])
    world.is_up = True
    forwarder.circuits.record("default", succeeded=True, now_ms=world.now)
    assert forwarder.may_fetch() is None
    answers = await forwarder.forward([world.message("m3", lane="a"), world.message("m4", lane="b")])
    assert [answer.outcome for answer in answers] == ["spooled", "started"]


async def test_what_others_put_into_an_empty_spool_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder_module, "_CHECK_S", 0.0)
    world = World(circuit={"trip_after": 1, "probe_after_ms": 0, "probe_interval_ms": 10})
    forwarder, another = await world.begin(), await world.begin()
    world.is_up = False
    await another.forward([world.message("m0")])
    world.is_up = True
    running = asyncio.create_task(forwarder.run())
    async with asyncio.timeout(30):
        while not world.runs:
            await asyncio.sleep(0.01)
        forwarder.stop()
        await running
    assert world.runs == ["m0"]


async def test_a_full_spool_leaves_messages_to_their_source_and_says_so() -> None:
    world = World(retention={"max_bytes": 1500})
    forwarder = await world.begin()
    world.is_up = False
    answers = [(await forwarder.forward([world.message(f"m{n}")]))[0] for n in range(10)]
    assert {answer.outcome for answer in answers[-3:]} == {"held"}
    assert world.types().count("message.dropped") > 0
    assert len(answers) == world.types().count("message.spooled") + sum(a.outcome == "held" for a in answers)


async def test_a_playbook_that_does_not_exist_opens_no_circuit() -> None:
    world = World()
    forwarder = await world.begin()
    world.unknown = {f"m{n}" for n in range(5)}
    answers = await forwarder.forward([world.message(f"m{n}") for n in range(5)])
    assert {answer.outcome for answer in answers} == {"rejected"}
    assert forwarder.circuits.are_closed


@settings(max_examples=30, deadline=None)
@given(st.data())
async def test_whatever_happens_every_message_becomes_one_run_in_the_order_of_its_lane(data: st.DataObject) -> None:
    world = World(ordering=data.draw(st.sampled_from(["per_key", "global"])))
    forwarder = await world.begin()
    lanes: dict[str, list[str]] = defaultdict(list)
    number = 0
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["send", "send", "switch", "wait", "drain", "kill"])):
            case "send":
                count = data.draw(st.integers(1, 4))
                batch = [(f"m{number + n}", data.draw(st.sampled_from("abc"))) for n in range(count)]
                number += count
                # A source that keeps its order brings again what was not acknowledged before it goes on.
                for name, lane in batch:
                    for _ in range(4):
                        (answer,) = await forwarder.forward([world.message(name, lane)])
                        if answer.is_durable:
                            break
                    assert answer.is_durable
                    lanes[lane].append(name)
            case "switch":
                world.is_up = not world.is_up
            case "wait":
                world.now += 1000
            case "drain":
                await forwarder.drain()
            case _:
                forwarder = await world.begin()
    world.is_up = True
    for _ in range(10):
        world.now += 1000
        if not (await forwarder.drain()).remaining:
            break
    lane_of = {name: lane for lane, names in lanes.items() for name in names}
    found: dict[str, list[str]] = defaultdict(list)
    for name in world.runs:
        found[lane_of[name]].append(name)
    assert found == lanes


@pytest.fixture
async def switch() -> AsyncIterator[tuple[int, Any]]:
    (port,) = free_ports(1)
    servers: list[asyncio.Server] = []

    async def turn(on: bool) -> None:
        if on:
            servers.append(await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port))
        else:
            for server in servers:
                server.close()
            servers.clear()

    yield port, turn
    await turn(False)


async def test_a_downstream_that_is_probed_opens_and_closes_its_circuit_by_itself(switch: tuple[int, Any]) -> None:
    port, turn = switch
    await turn(True)
    declared = [{"name": "db", "type": "tcp", "target": f"127.0.0.1:{port}"}]
    world = World(circuit={"trip_after": 1, "probe_interval_ms": 20, "probe_after_ms": 600_000, "downstream": declared})
    forwarder = await world.begin()
    running = asyncio.create_task(forwarder.run())
    await turn(False)
    async with asyncio.timeout(120):
        while forwarder.circuits.are_closed:
            await asyncio.sleep(0.01)
        (answer,) = await forwarder.forward([world.message("m0")])
        assert answer.outcome == "spooled"
        await turn(True)
        while not world.runs:
            await asyncio.sleep(0.01)
        forwarder.stop()
        await running
    assert world.runs == ["m0"]


async def test_metrics_count_the_events_of_the_journal(tmp_path: Path) -> None:
    wanted = subscription(
        spool=_WAITING | {"backend": "local_disk", "path": str(tmp_path), "circuit": {"trip_after": 1}}
    )
    metrics, is_up = Metrics(), False

    async def dispatch(plans: Sequence[Plan]) -> list[RunDispatchResult]:
        return [RunDispatchResult("started", 1) if is_up else RunDispatchResult("unavailable")] * len(plans)

    async def emit(emitted: Sequence[SubscriptionEvent]) -> None:
        """Nobody listens."""

    forwarder = forwarder_of(wanted, REF, dispatch, emit, metrics=metrics)
    await forwarder.start()
    message = receive("nats", "m0", b"{}")
    await forwarder.forward([(message, resolve(wanted, message))])
    page = metrics.render().decode()
    assert 'tape_subscription_spooled_total{source="nats"} 1.0' in page
    assert 'tape_subscription_circuit_transitions_total{downstream="default",transition="opened"} 1.0' in page
    where = f'{{source="nats",subscription="{wanted.path}"}}'
    assert f"tape_subscription_spool_items{where} 1.0" in page
    (age,) = re.findall(rf"tape_subscription_spool_oldest_age_seconds{re.escape(where)} (\S+)", page)
    assert 0 <= float(age) < 3600
    is_up = True
    forwarder.circuits.record("default", succeeded=True, now_ms=0)
    await forwarder.drain()
    page = metrics.render().decode()
    assert 'tape_subscription_circuit_transitions_total{downstream="default",transition="closed"} 1.0' in page
    assert 'tape_subscription_replayed_total{source="nats"} 1.0' in page
    assert f"tape_subscription_spool_bytes{where} 0.0" in page
    assert f"tape_subscription_spool_oldest_age_seconds{where} 0.0" in page
    await forwarder.close()
    assert "tape_subscription_spool_items{" not in metrics.render().decode()
