"""Messages are spooled while their downstream is unavailable, and replayed in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.errors import SpoolFull, SpoolUnavailable
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.spool import replay_rate
from tape.subscriptions.spool.backend import Area, StoredObject
from tape.subscriptions.spool.disk import DiskBackend
from tape.subscriptions.spool.drain import drain
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.objects import BucketBackend
from tape.subscriptions.spool.spool import Arrival, Lane, Spool, SpoolRules


class Downstream:
    """Accepts all messages but those that the test names."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.refuses: set[str] = set()
        self.away: set[str] = set()
        self.seen: set[str] = set()
        self.calls: list[int] = []

    async def __call__(self, items: list[SpoolItem], lanes: Sequence[Lane]) -> list[RunDispatchResult]:
        self.calls.append(len(items))
        answers, stopped = [], set()
        for item, lane in zip(items, lanes, strict=True):
            answers.append(RunDispatchResult("skipped") if lane in stopped else self.one(item))
            if not answers[-1].has_run:
                stopped.add(lane)
        return answers

    def one(self, item: SpoolItem) -> RunDispatchResult:
        if item.message_id in self.away:
            return RunDispatchResult("unavailable", error="connection refused")
        if item.message_id in self.refuses:
            return RunDispatchResult("rejected", error="no such playbook")
        if item.dedup_key in self.seen:
            return RunDispatchResult("duplicate", execution_id=1)
        self.seen.add(item.dedup_key)
        self.runs.append(item.message_id)
        return RunDispatchResult("started", execution_id=len(self.runs))


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


def arrival(name: str, key: str | None = None, downstream: str = "default") -> Arrival:
    return Arrival(name, {"id": name, "data": {"n": name}}, {"playbook": "p"}, downstream, "circuit_open", None, key)


class Desk:
    """A spool in memory, with its events."""

    def __init__(self, backend: Any = None, **rules: Any) -> None:
        if backend is None:
            from obstore.store import MemoryStore

            backend = BucketBackend(MemoryStore(), "s", "memory")
        self.emitted: list[SubscriptionEvent] = []
        self.clock = Clock()
        self.spool = Spool(
            SubscriptionRef("orders", "orders"), "nats", backend, SpoolRules(**rules), emit=self.emit, now_ms=self.clock
        )

    async def emit(self, events: Sequence[SubscriptionEvent]) -> None:
        self.emitted += events

    def contexts(self, verb: str) -> list[dict[str, Any]]:
        return [event.context for event in self.emitted if event.event_type == f"subscription.{verb}"]


@pytest.mark.parametrize("ordering", ["global", "per_key", "none"])
async def test_everything_that_waited_becomes_a_run_once(ordering: str) -> None:
    desk, downstream = Desk(ordering=ordering), Downstream()
    await desk.spool.append([arrival(f"m{n}", key=f"k{n % 3}") for n in range(50)])
    report = await drain(desk.spool, downstream)
    assert sorted(downstream.runs) == sorted(f"m{n}" for n in range(50))
    assert (report.replayed, report.remaining, report.fully_drained) == (50, 0, True)
    assert (desk.spool.items, desk.spool.size_bytes) == (0, 0)
    assert len(desk.contexts("message.spooled")) == len(desk.contexts("message.replayed")) == 50


async def test_in_global_order_nothing_passes_what_cannot_go() -> None:
    desk, downstream = Desk(ordering="global"), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(5)])
    downstream.away = {"m2"}
    report = await drain(desk.spool, downstream)
    assert (downstream.runs, report.remaining) == (["m0", "m1"], 3)
    downstream.away = set()
    await drain(desk.spool, downstream)
    assert downstream.runs == [f"m{n}" for n in range(5)]


async def test_in_lanes_only_the_lane_of_what_cannot_go_waits() -> None:
    desk, downstream = Desk(ordering="per_key"), Downstream()
    await desk.spool.append([arrival(f"m{n}", key=f"k{n % 2}") for n in range(6)])
    downstream.away = {"m0"}
    report = await drain(desk.spool, downstream)
    assert (downstream.runs, report.remaining) == (["m1", "m3", "m5"], 3)
    downstream.away = set()
    await drain(desk.spool, downstream)
    assert downstream.runs == ["m1", "m3", "m5", "m0", "m2", "m4"]


async def test_without_order_only_what_cannot_go_waits() -> None:
    desk, downstream = Desk(ordering="none"), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(4)])
    downstream.away = {"m0"}
    report = await drain(desk.spool, downstream)
    assert (downstream.runs, report.remaining) == (["m1", "m2", "m3"], 1)


@settings(max_examples=40, deadline=None)
@given(st.data())
async def test_whatever_fails_and_when_each_lane_keeps_its_order(data: st.DataObject) -> None:
    ordering = data.draw(st.sampled_from(["global", "per_key"]))
    lanes = data.draw(st.lists(st.integers(0, 3), max_size=25))
    desk, downstream = Desk(ordering=ordering, max_replay_attempts=100), Downstream()
    names = [f"m{n}" for n in range(len(lanes))]
    await desk.spool.append([arrival(name, key=f"k{lane}") for name, lane in zip(names, lanes, strict=True)])
    for _ in range(3):
        downstream.away = set(data.draw(st.lists(st.sampled_from(names), max_size=5))) if names else set()
        downstream.refuses = set(data.draw(st.lists(st.sampled_from(names), max_size=5))) if names else set()
        await drain(desk.spool, downstream)
    downstream.away, downstream.refuses = set(), set()
    assert (await drain(desk.spool, downstream)).fully_drained
    expected, found = defaultdict(list), defaultdict(list)
    for name, lane in zip(names, lanes, strict=True):
        expected[lane if ordering == "per_key" else 0].append(name)
    lane_of = dict(zip(names, lanes, strict=True))
    for name in downstream.runs:
        found[lane_of[name] if ordering == "per_key" else 0].append(name)
    assert found == expected


async def test_poison_becomes_a_dead_letter_and_lets_its_lane_go_on() -> None:
    desk, downstream = Desk(ordering="global", max_replay_attempts=3), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(3)])
    downstream.refuses = {"m1"}
    reports = [await drain(desk.spool, downstream) for _ in range(3)]
    assert [report.remaining for report in reports] == [2, 2, 0]
    assert downstream.runs == ["m0", "m2"]
    (key,) = reports[-1].dead_lettered
    (dead_letter,) = desk.contexts("message.dead_lettered")
    assert (dead_letter["message_id"], dead_letter["attempts"], dead_letter["reason"]) == (
        "m1",
        3,
        "max_replay_attempts",
    )
    downstream.refuses = set()
    assert await desk.spool.requeue([key]) == 1
    await drain(desk.spool, downstream)
    assert downstream.runs == ["m0", "m2", "m1"]


async def test_a_downstream_that_is_away_makes_no_poison() -> None:
    desk, downstream = Desk(ordering="global", max_replay_attempts=1), Downstream()
    await desk.spool.append([arrival("m0")])
    downstream.away = {"m0"}
    for _ in range(5):
        assert (await drain(desk.spool, downstream)).remaining == 1
    downstream.away = set()
    assert (await drain(desk.spool, downstream)).replayed == 1


async def test_messages_of_a_downstream_that_is_still_away_wait_alone() -> None:
    desk, downstream = Desk(ordering="per_key"), Downstream()
    await desk.spool.append([arrival(f"m{n}", downstream="db" if n % 2 else "queue") for n in range(6)])
    report = await drain(desk.spool, downstream, may_pass=lambda name, lane: name == "db")
    assert (downstream.runs, report.remaining) == (["m1", "m3", "m5"], 3)


async def test_the_same_message_again_is_counted_as_a_duplicate() -> None:
    desk, downstream = Desk(), Downstream()
    await desk.spool.append([arrival("m0"), arrival("m0")])
    report = await drain(desk.spool, downstream)
    assert (report.replayed, report.deduped, downstream.runs) == (1, 1, ["m0"])


async def test_a_full_spool_takes_no_more_and_says_how_full_it_is() -> None:
    desk = Desk(max_bytes=1200)
    answers = await desk.spool.append([arrival(f"m{n}") for n in range(10)])
    taken = [answer for answer in answers if isinstance(answer, SpoolItem)]
    assert 0 < len(taken) < 10
    assert all(isinstance(answer, SpoolFull) for answer in answers[len(taken) :])
    assert desk.spool.size_bytes <= 1200
    assert [item.recv_seq for item in taken] == list(range(1, len(taken) + 1))


async def test_a_full_spool_can_dead_letter_its_oldest() -> None:
    desk, downstream = Desk(max_bytes=1200, on_full="drop_to_dlq", ordering="global"), Downstream()
    for n in range(10):
        (answer,) = await desk.spool.append([arrival(f"m{n}")])
        assert isinstance(answer, SpoolItem)
    assert desk.spool.size_bytes <= 1200
    evicted = [context["message_id"] for context in desk.contexts("message.dead_lettered")]
    await drain(desk.spool, downstream)
    assert evicted + downstream.runs == [f"m{n}" for n in range(10)]


async def test_a_full_spool_can_go_on_and_raise_the_alarm() -> None:
    desk = Desk(max_bytes=100, on_full="alert_only")
    await desk.spool.append([arrival("m0")])
    assert desk.spool.items == 1
    assert desk.contexts("spool.alert") == [{"downstream": "default", "spool_bytes": desk.spool.size_bytes}]


async def test_what_is_too_old_is_given_up() -> None:
    desk, downstream = Desk(max_age_hours=1), Downstream()
    await desk.spool.append([arrival("old")])
    desk.clock.ms += 3_600_000
    await desk.spool.append([arrival("new")])
    assert await desk.spool.expire() == 1
    await drain(desk.spool, downstream)
    assert downstream.runs == ["new"]
    assert [context["reason"] for context in desk.contexts("message.dead_lettered")] == ["retention_expired"]


async def test_a_restart_goes_on_with_what_waits_and_with_its_numbers(tmp_path: Path) -> None:
    first, second, downstream = Desk(DiskBackend(tmp_path)), Desk(DiskBackend(tmp_path)), Downstream()
    await first.spool.append([arrival(f"m{n}") for n in range(3)])
    assert await second.spool.open() == 3
    assert second.spool.size_bytes == first.spool.size_bytes
    (item,) = await second.spool.append([arrival("m3")])
    assert isinstance(item, SpoolItem)
    assert item.recv_seq > 3
    await drain(second.spool, downstream)
    assert downstream.runs == ["m0", "m1", "m2", "m3"]


async def test_no_number_is_given_out_twice_though_everything_has_left(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        desk = Desk(DiskBackend(tmp_path))
        await desk.spool.open()
        numbers += [item.recv_seq for item in await desk.spool.append([arrival("m")]) if isinstance(item, SpoolItem)]
        await drain(desk.spool, Downstream())
    assert numbers[0] == 1
    assert len(set(numbers)) == 3
    assert numbers == sorted(numbers)


async def test_two_processes_on_one_backend_use_different_numbers(tmp_path: Path) -> None:
    one, other = Desk(DiskBackend(tmp_path)).spool, Desk(DiskBackend(tmp_path)).spool
    taken = [await spool.append([arrival(f"m{n}") for n in range(800)]) for spool in (one, other) * 3]
    numbers = [item.recv_seq for items in taken for item in items if isinstance(item, SpoolItem)]
    assert len(set(numbers)) == len(numbers) == 4_800


async def test_the_next_process_emits_the_events_of_the_last_append_before_a_crash(tmp_path: Path) -> None:
    first, second = Desk(DiskBackend(tmp_path)), Desk(DiskBackend(tmp_path))
    await first.spool.append([arrival("told")])

    async def die(_: Sequence[SubscriptionEvent]) -> None:
        raise RuntimeError("killed")

    first.spool.emit = die
    together = (first.spool.append([arrival("m0")]), first.spool.append([arrival("m1")]))
    assert [str(each) for each in await asyncio.gather(*together, return_exceptions=True)] == ["killed", "killed"]
    assert await second.spool.open() == 3
    await second.spool.emit_last_batch()
    assert [context["message_id"] for context in second.contexts("message.spooled")] == ["m0", "m1"]


async def test_what_could_not_be_taken_does_not_stay_behind_in_parts(tmp_path: Path) -> None:
    class Halting(DiskBackend):
        async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
            await super().put(area, objects[:1])
            raise SpoolUnavailable("No space left on device")

    desk = Desk(Halting(tmp_path))
    with pytest.raises(SpoolUnavailable):
        await desk.spool.append([arrival("m0"), arrival("m1")])
    assert (await desk.spool.backend.measure(Area.LIVE)).items == 0


async def test_the_event_is_emitted_before_the_item_is_removed(tmp_path: Path) -> None:
    desk, downstream = Desk(DiskBackend(tmp_path), max_replay_attempts=1), Downstream()
    downstream.refuses.add("m0")
    await desk.spool.append([arrival("m0")])

    async def away(_: Sequence[SubscriptionEvent]) -> None:
        raise SpoolUnavailable("the backend is full")

    emit, desk.spool.emit = desk.spool.emit, away
    with pytest.raises(SpoolUnavailable):
        await desk.spool.dead_letter([(await only(desk), 1)], "max_replay_attempts")
    assert (await desk.spool.backend.measure(Area.LIVE)).items == 1
    desk.spool.emit = emit
    await drain(desk.spool, downstream)
    assert (await desk.spool.backend.measure(Area.LIVE)).items == 0
    assert len(desk.contexts("message.dead_lettered")) == 1


async def only(desk: Desk) -> SpoolItem:
    (stored,) = await desk.spool.backend.page(Area.LIVE, "", 10)
    item = await desk.spool.load(stored)
    assert item is not None
    return item


async def test_a_damaged_item_is_quarantined_and_reported(tmp_path: Path) -> None:
    desk, downstream = Desk(DiskBackend(tmp_path), ordering="global"), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(3)])
    (tmp_path / "00000000000000000002-m1.json").write_bytes(b'{"subscription": "ord')
    report = await drain(desk.spool, downstream)
    assert (downstream.runs, report.quarantined, report.remaining) == (["m0", "m2"], ["00000000000000000002-m1"], 0)
    assert await desk.spool.backend.get(Area.QUARANTINE, "00000000000000000002-m1") == b'{"subscription": "ord'
    (emitted,) = desk.contexts("spool.quarantined")
    assert emitted["spool_ref"] == "noetl://spool/orders/2/m1"


async def test_a_drain_can_be_stopped_between_rounds() -> None:
    desk, downstream = Desk(ordering="global", rate_per_sec=40), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(10)])
    report = await drain(desk.spool, downstream, stopping=lambda: len(downstream.runs) >= 4)
    assert (downstream.calls, report.remaining) == ([4], 6)


async def test_whether_a_new_message_would_overtake_one_that_waits() -> None:
    desk, downstream = Desk(ordering="per_key"), Downstream()
    await desk.spool.append([arrival("m0", key="a")])
    assert desk.spool.has_waiting("default", "a")
    assert not desk.spool.has_waiting("default", "b")
    await drain(desk.spool, downstream)
    assert not desk.spool.has_waiting("default", "a")


async def test_no_message_overtakes_those_of_an_earlier_process(tmp_path: Path) -> None:
    first, second, downstream = Desk(DiskBackend(tmp_path)), Desk(DiskBackend(tmp_path)), Downstream()
    await first.spool.append([arrival("m0", key="a")])
    await second.spool.open()
    assert second.spool.has_waiting("default", "b")
    await drain(second.spool, downstream)
    assert not second.spool.has_waiting("default", "b")


async def test_what_another_process_let_go_is_not_waited_for(tmp_path: Path) -> None:
    first, second, downstream = Desk(DiskBackend(tmp_path)), Desk(DiskBackend(tmp_path)), Downstream()
    await first.spool.append([arrival(f"m{n}", key="a") for n in range(3)])
    await second.spool.open()
    assert await first.spool.backend.claim()
    assert (await drain(second.spool, downstream)).remaining == 3  # not while another is at it
    await drain(first.spool, downstream)
    assert (await drain(second.spool, downstream)).fully_drained
    assert not second.spool.has_waiting("default", "a")
    assert downstream.runs == ["m0", "m1", "m2"]


async def test_purged_messages_are_reported() -> None:
    desk, downstream = Desk(ordering="global"), Downstream()
    (first, _) = await desk.spool.append([arrival("m0"), arrival("m1")])
    assert isinstance(first, SpoolItem)
    assert await desk.spool.drop([first.key, "nothing"]) == 1
    assert [dead_letter["reason"] for dead_letter in desk.contexts("message.dead_lettered")] == ["purged"]
    await drain(desk.spool, downstream)
    assert downstream.runs == ["m1"]


async def test_in_global_order_many_go_in_one_call() -> None:
    desk, downstream = Desk(ordering="global"), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(1_200)])
    await drain(desk.spool, downstream)
    assert downstream.runs == [f"m{n}" for n in range(1_200)]
    assert downstream.calls == [500, 500, 200]


async def test_lanes_share_a_call() -> None:
    desk, downstream = Desk(ordering="per_key"), Downstream()
    await desk.spool.append([arrival(f"m{n}", key=f"k{n % 3}") for n in range(30)])
    downstream.away = {"m4"}
    report = await drain(desk.spool, downstream)
    assert (len(downstream.calls), report.remaining) == (1, 9)
    assert [name for name in downstream.runs if int(name[1:]) % 3 == 1] == ["m1"]


async def test_a_poison_message_in_a_batch_is_given_up_and_those_behind_it_follow() -> None:
    desk, downstream = Desk(ordering="global", max_replay_attempts=1), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(6)])
    downstream.refuses = {"m2", "m3"}
    report = await drain(desk.spool, downstream)
    assert downstream.runs == ["m0", "m1", "m4", "m5"]
    assert (len(report.dead_lettered), report.remaining) == (2, 0)


async def test_since_when_the_oldest_waits_is_known_whatever_happens_at_the_front(tmp_path: Path) -> None:
    desk, downstream = Desk(DiskBackend(tmp_path), ordering="per_key", max_age_hours=1), Downstream()
    began = desk.clock.ms
    for n in range(4):
        await desk.spool.append([arrival(f"m{n}", key=f"k{n}")])
        desk.clock.ms += 60_000
    assert desk.spool.oldest_ms == began
    again = Desk(DiskBackend(tmp_path))
    await again.spool.open()
    assert again.spool.oldest_ms == began
    downstream.away = {"m1", "m3"}
    await drain(desk.spool, downstream)
    assert desk.spool.oldest_ms == began + 60_000
    desk.clock.ms = began + 60_000 + 3_600_000
    assert await desk.spool.expire() == 1
    assert desk.spool.oldest_ms == began + 180_000
    downstream.away = set()
    await drain(desk.spool, downstream)
    assert desk.spool.oldest_ms is None


async def test_a_message_that_does_not_fit_is_not_overtaken_by_a_smaller_one() -> None:
    desk = Desk(max_bytes=2_000)
    large = arrival("large")._replace(message={"id": "large", "data": "x" * 3_000})
    answers = await desk.spool.append([arrival("m0"), large, arrival("m1")])
    assert [isinstance(answer, SpoolItem) for answer in answers] == [True, False, False]


class Listing(BucketBackend):
    """Counts how often it is listed."""

    listings = 0

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        self.listings += 1
        return await super().page(area, after, limit)


async def test_a_full_spool_evicts_without_a_listing_per_message() -> None:
    from obstore.store import MemoryStore

    backend = Listing(MemoryStore(), "s", "memory")
    desk = Desk(backend, max_bytes=20_000, on_full="drop_to_dlq", ordering="global")
    for n in range(200):
        await desk.spool.append([arrival(f"m{n}")])
    evicted = [context["message_id"] for context in desk.contexts("message.dead_lettered")]
    assert evicted == [f"m{n}" for n in range(len(evicted))]
    assert len(evicted) > 100
    assert backend.listings < 20
    assert desk.spool.oldest_ms is not None


async def test_what_is_evicted_while_a_drain_holds_it_is_not_replayed_as_well() -> None:
    desk, downstream = Desk(ordering="global", max_bytes=20_000, on_full="drop_to_dlq", rate_per_sec=10), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(20)])

    async def replay(items: list[SpoolItem], lanes: Sequence[Lane]) -> list[RunDispatchResult]:
        if not downstream.runs:
            await desk.spool.append([arrival(f"n{n}") for n in range(40)])  # pushes others out while this one is held
        return await downstream(items, lanes)

    await drain(desk.spool, replay, stopping=lambda: len(downstream.runs) >= 3)
    evicted = {context["message_id"] for context in desk.contexts("message.dead_lettered")}
    assert evicted
    assert not evicted & set(downstream.runs)
    assert downstream.runs[0] == "m0"


@pytest.mark.parametrize(("ordering", "kept"), [("none", 0), ("global", 1), ("per_key", 2)])
async def test_memory_grows_with_lanes_and_not_with_messages(ordering: str, kept: int) -> None:
    desk = Desk(ordering=ordering, max_bytes=10_000, on_full="drop_to_dlq")
    for n in range(100):
        await desk.spool.append([arrival(f"m{n}", key=f"k{n % 2}")])
    spool = desk.spool
    assert len(spool._waiting) == kept
    assert [*spool.evicted, *spool.unemitted, *spool._evicting, *spool._replaying] == []


class Waits:
    """A clock that advances with each sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("passes", [1, 30])
async def test_no_more_are_replayed_in_a_second_than_allowed_in_however_many_passes(
    passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Waits()
    monkeypatch.setattr(replay_rate, "time", clock)
    monkeypatch.setattr(replay_rate, "asyncio", clock)
    desk, downstream = Desk(ordering="global", rate_per_sec=20), Downstream()
    await desk.spool.append([arrival(f"m{n}") for n in range(60)])
    for number in range(passes):
        enough = 60 * (number + 1) // passes
        await drain(desk.spool, downstream, stopping=lambda enough=enough: len(downstream.runs) >= enough)
    assert len(downstream.runs) == 60
    assert 2.8 <= clock.now <= 3.0
