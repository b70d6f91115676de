"""Changed code: a resumed run is stopped before it acts on something else than it has recorded."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import runpy
import signal
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tape
from tape import TapeClient, durable_run, effect, outbox_tool
from tape.durable import determinism
from tape.errors import InvalidInput, RunChanged
from tape.proto import tape_pb2 as pb
from tests.forked import Forked


def run_of(url: str, invocation: str = "i-1", **options: Any) -> tape.DurableRun:
    return durable_run("app", user_id="u", session_id="s", invocation_id=invocation, url=url, **options)


@contextlib.contextmanager
def drive_that_dies(url: str, **options: Any) -> Iterator[tape.DurableRun]:
    """An execution of the run whose process dies at the end of the block."""
    with contextlib.suppress(KeyboardInterrupt), run_of(url, lease_ttl_ms=1, **options) as run:
        yield run
        raise KeyboardInterrupt


class Shop:
    """Effects that note what they did, each under a name of the test's choosing."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    def tool(self, name: str, **options: Any) -> Any:
        def act(what: str = "", at: int = 0) -> str:
            self.acts.append(f"{name} {what}".strip())
            return f"{name} {what}"

        act.__name__ = act.__qualname__ = name
        return effect(**options)(act)


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ── arguments and requests ───────────────────────────────────────────────────────────────────────


def test_changed_arguments_stop_the_run_and_both_sides_are_shown(url: str, shop: Shop, observer: TapeClient) -> None:
    charge = shop.tool("charge")
    with drive_that_dies(url):
        charge("ann")
    with pytest.raises(RunChanged) as stopped, run_of(url) as run:
        charge("bob")
    line = inspect.getsource(inspect.getmodule(run_of)).splitlines().index('        charge("bob")') + 1  # type: ignore[arg-type]
    assert shop.acts == ["charge ann"]
    change = stopped.value
    assert change.difference == 'what: recorded "ann", now "bob"'
    assert (change.file, change.line) == (__file__, line)
    for expected in ("'charge'", "TAPE-2440", "ann", "bob", f"{__file__}:{line}", "run.version", 'on_change="accept"'):
        assert expected in f"{change.code} {change}"
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_RUNNING, "it stays open, to be resumed"


def test_the_arguments_of_an_effect_that_was_never_settled_are_compared_before_it_acts(url: str, shop: Shop) -> None:
    @effect
    def charge(what: str) -> None:
        shop.acts.append(what)
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), run_of(url, lease_ttl_ms=1):
        charge("ann")
    with pytest.raises(RunChanged), run_of(url):
        charge("bob")
    assert shop.acts == ["ann"]


def test_a_warning_takes_the_recorded_result(url: str, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    charge = shop.tool("charge", on_change="warn")
    with drive_that_dies(url):
        charge("ann")
    with caplog.at_level(logging.WARNING), run_of(url):
        assert charge("bob") == "charge ann"
    assert 'what: recorded "ann", now "bob"' in caplog.text
    assert shop.acts == ["charge ann"]


def test_a_run_or_an_effect_may_accept_what_is_recorded(url: str, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    charge, ship = shop.tool("charge"), shop.tool("ship", on_change="accept")
    with drive_that_dies(url):
        charge("ann")
        ship("ann")
    with drive_that_dies(url, on_change="accept"):
        assert charge("bob") == "charge ann"
    with run_of(url):
        charge("ann")
        assert ship("bob") == "ship ann"
    assert shop.acts == ["charge ann", "ship ann"]
    assert not caplog.records


def test_fields_that_vary_are_left_out(url: str, shop: Shop) -> None:
    charge, ship = shop.tool("charge", digest=["at"]), shop.tool("ship", digest=lambda what: what)
    with drive_that_dies(url):
        charge("ann", at=1)
        ship("ann", at=1)
    with run_of(url):
        charge("ann", at=2)
        ship("ann", at=2)
    assert len(shop.acts) == 2


def test_a_changed_request_of_a_decision_stops_the_run(url: str) -> None:
    with drive_that_dies(url) as run:
        run.decide(lambda: "buy", request={"prompt": "a", "at": 1}, digest=["at"])
    with pytest.raises(RunChanged, match="the decision 0") as stopped, run_of(url, lease_ttl_ms=1) as run:
        run.decide(lambda: "sell", request={"prompt": "b", "at": 2}, digest=["at"])
    assert 'prompt: recorded "a", now "b"' in stopped.value.difference
    with drive_that_dies(url) as run:
        assert run.decide(lambda: "sell", request={"prompt": "b"}, on_change="accept") == "buy"
    with run_of(url) as run:
        assert run.decide(lambda: "sell", request={"prompt": "a", "at": 2}, digest=["at"]) == "buy"


def test_changes_in_async_code_are_located_too(url: str) -> None:
    @effect
    async def charge(what: str) -> str:
        return what

    async def agent(what: str, prompt: str) -> None:
        async def make() -> str:
            return "buy"

        async with run_of(url, lease_ttl_ms=1) as run:
            await run.decide_async(make, request=prompt)
            await charge(what)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(agent("ann", "a"))
    for arguments in (("bob", "a"), ("ann", "b")):
        with pytest.raises(RunChanged) as stopped:
            asyncio.run(agent(*arguments))
        assert stopped.value.file == __file__


def test_records_without_a_digest_are_accepted(url: str, shop: Shop, observer: TapeClient) -> None:
    """What an earlier version of the SDK, or another language, has recorded."""
    ids = {"app_name": "app", "user_id": "u", "session_id": "s", "invocation_id": "i-1"}
    run_id = observer.begin_run(**ids, lease_owner="old", lease_ttl_ms=1).run_id
    observer.record_decision(run_id=run_id, decision_index=0, response_json='{"decision": "buy"}')
    begun = observer.begin_effect(run_id=run_id, decision_index=0, tool_name="charge", request_json='{"what": "x"}')
    observer.complete_effect(run_id=run_id, idempotency_key=begun.idempotency_key, status=2, response_json='"recorded"')
    charge = shop.tool("charge")
    with run_of(url, lease_wait_s=5) as run:
        assert run.decide(lambda: "sell", request="anything") == "buy"
        assert charge("ann") == "recorded"
        shop.tool("ship")("ann")
    assert shop.acts == ["ship ann"]


# ── names and order ──────────────────────────────────────────────────────────────────────────────


def test_a_renamed_tool_does_not_act_again(url: str, shop: Shop, observer: TapeClient) -> None:
    with drive_that_dies(url) as run:
        shop.tool("charge")("ann")
    with pytest.raises(RunChanged) as stopped, run_of(url):
        shop.tool("charge_card")("ann")
    assert shop.acts == ["charge ann"]
    assert "'charge'" in str(stopped.value)
    assert "'charge_card'" in str(stopped.value)
    assert stopped.value.file == __file__
    key = f"{run.run_id}/no-decision/charge_card/0"
    assert not observer.get_effect(run_id=run.run_id, idempotency_key=key).found


def test_a_renamed_tool_of_the_outbox_leaves_no_obligation(url: str, observer: TapeClient) -> None:
    def undo() -> None: ...

    def send(what: str) -> None: ...

    def send_mail(what: str) -> None: ...

    declared = partial(outbox_tool, connector="mail", business_key="{what}", compensate=undo)
    with drive_that_dies(url, scopes=["mail"]) as run:
        declared()(send)("a")
    with pytest.raises(RunChanged), run_of(url):
        declared()(send_mail)("b")
    assert [each.effect_key for each in observer.list_obligations(run_id=run.run_id).obligations] == [
        f"{run.run_id}/no-decision/send/0"
    ]


@pytest.mark.parametrize(
    "changed",
    [["b", "a"], ["b"], ["x", "a", "b"], ["a", "x", "b"]],
    ids=["swapped", "removed", "added before", "added between"],
)
def test_another_order_of_the_recorded_steps_is_a_change(url: str, shop: Shop, changed: list[str]) -> None:
    with drive_that_dies(url):
        for name in ("a", "b"):
            shop.tool(name)()
    with pytest.raises(RunChanged), run_of(url):
        [shop.tool(name)() for name in changed]
    assert shop.acts == ["a", "b"]


def test_a_step_before_a_recorded_decision_is_a_change(url: str, shop: Shop) -> None:
    with drive_that_dies(url) as run:
        run.decide(lambda: 1)
        shop.tool("a")()
        run.decide(lambda: 2)

    def drive(*steps: Any) -> None:
        with run_of(url, lease_ttl_ms=1) as run:
            for step in steps:
                run.decide(lambda: 0) if isinstance(step, int) else shop.tool(step)()

    for steps, recorded in (
        ((1, "a", "b"), "the decision 1"),
        ((1, 2), "order of the steps"),
        (("b",), "the decision 0"),
    ):
        with pytest.raises(RunChanged, match=recorded):
            drive(*steps)
    assert shop.acts == ["a"]


def test_a_decision_before_a_recorded_effect_is_a_change(url: str, shop: Shop) -> None:
    with drive_that_dies(url):
        shop.tool("a")()
    asked = []
    with pytest.raises(RunChanged, match="'a'"), run_of(url) as run:
        run.decide(lambda: asked.append(1))
    assert not asked, "the model is not asked in vain"


def test_steps_after_the_record_are_new(url: str, shop: Shop) -> None:
    with drive_that_dies(url):
        shop.tool("a")()
    with run_of(url) as run:
        shop.tool("a")()
        run.decide(lambda: 1)
        shop.tool("b")()
        shop.tool("c")()
    assert shop.acts == ["a", "b", "c"]


def test_a_renamed_tool_within_an_effect_is_a_change(url: str, shop: Shop) -> None:
    def outer(inner: str) -> Any:
        @effect
        def order() -> None:
            shop.tool(inner)()
            raise KeyboardInterrupt

        return order

    with contextlib.suppress(KeyboardInterrupt), run_of(url, lease_ttl_ms=1):
        outer("reserve")()
    with pytest.raises(RunChanged, match=r"position 0\.0"), run_of(url):
        outer("hold")()
    assert shop.acts == ["reserve"]


def test_tasks_beside_the_run_may_come_in_any_order(url: str) -> None:
    acts: list[str] = []

    def tool(name: str) -> Any:
        async def act() -> None:
            acts.append(name)

        act.__name__ = name
        return effect(act)

    async def agent(order: list[list[str]]) -> None:
        async def branch(names: list[str]) -> None:
            for name in names:
                await tool(name)()

        async with run_of(url, lease_ttl_ms=1):
            await tool("first")()
            await asyncio.gather(*map(branch, order))
            await tool("last")()
            raise KeyboardInterrupt

    for order in ([["a", "b"], ["c"]], [["c", "d"], ["a", "b"]]):
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(agent(order))
    assert sorted(acts) == ["a", "b", "c", "d", "first", "last"]


def test_samples_and_keys_of_your_own_may_be_added_and_used_again(url: str, shop: Shop) -> None:
    pay = shop.tool("pay", key_from=lambda what: f"invoice-{what}")
    with drive_that_dies(url):
        pay("7", at=1)
        assert pay("7", at=2) == "pay 7"
    with run_of(url) as run:
        determinism.now(run)
        pay("7", at=1)
        pay("7", at=2)
        shop.tool("ship")("7")
    assert shop.acts == ["pay 7", "ship 7"]


def test_a_moved_step_can_be_accepted(url: str, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with drive_that_dies(url):
        shop.tool("a")()
    with drive_that_dies(url, on_change="warn"):
        shop.tool("b")()
    assert "recorded another step at position 0" in caplog.text
    with run_of(url, on_change="accept"):
        shop.tool("c")()
        shop.tool("a")()
        shop.tool("b")()
    assert shop.acts == ["a", "b", "c"]


@pytest.mark.parametrize("position", ["x", "1.", "1..2", "9" * 11, ".".join("0" * 17)])
def test_a_position_that_none_can_be_is_rejected(url: str, observer: TapeClient, position: str) -> None:
    with run_of(url) as run:
        with pytest.raises(InvalidInput, match="position"):
            observer.begin_effect(run_id=run.run_id, decision_index=0, tool_name="a", position=position)
        with pytest.raises(InvalidInput, match="digest"):
            observer.record_decision(run_id=run.run_id, decision_index=0, digest="x" * 129)


def test_an_unknown_reaction_to_changes_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="on_change 'ignore'"):
        durable_run("app", on_change="ignore")
    with pytest.raises(InvalidInput, match="on_change 'ignore'"):
        effect(on_change="ignore")(lambda: None)


# ── versions ─────────────────────────────────────────────────────────────────────────────────────


def test_a_new_run_has_the_newest_version_and_keeps_it(url: str) -> None:
    with drive_that_dies(url) as run:
        assert run.version("refund", 2) == 2
        assert run.version("refund", 2) == 2
    with drive_that_dies(url) as run:
        assert run.version("refund", 3) == 2
    with run_of(url, "i-2") as run:
        assert run.version("refund", 3) == 3


def test_a_run_that_passed_the_point_before_it_existed_has_the_lowest_version(url: str, shop: Shop) -> None:
    def new_code(run: tape.DurableRun) -> None:
        shop.tool("charge")()
        if run.version("check fraud", 2) >= 2:
            shop.tool("check")()
        shop.tool("ship")()
        if run.version("survey", 2) >= 2:
            shop.tool("ask")()

    with drive_that_dies(url):
        shop.tool("charge")()
        shop.tool("ship")()
    with drive_that_dies(url) as run:
        new_code(run)
    assert shop.acts == ["charge", "ship", "ask"]
    with run_of(url) as run:
        new_code(run)
    assert shop.acts == ["charge", "ship", "ask"]
    with run_of(url, "i-2") as run:
        new_code(run)
    assert shop.acts[3:] == ["charge", "check", "ship", "ask"]


def test_a_run_of_an_older_client_that_passed_the_point_has_the_lowest_version(url: str, observer: TapeClient) -> None:
    ids = {"app_name": "app", "user_id": "u", "session_id": "s", "invocation_id": "i-1"}
    run_id = observer.begin_run(**ids, lease_owner="old", lease_ttl_ms=1).run_id
    observer.record_decision(run_id=run_id, decision_index=0, response_json='{"decision": 1}')
    with run_of(url, lease_wait_s=5) as run:
        assert run.version("early", 2) == 1
        run.decide(lambda: 2)
        assert run.version("late", 2) == 2


def test_a_version_that_the_code_does_not_know_stops_the_run(url: str) -> None:
    with drive_that_dies(url) as run:
        run.version("refund", 3)
    for newest, lowest in ((2, 1), (5, 4)):
        with pytest.raises(RunChanged, match="version 3 of 'refund'"), run_of(url, lease_ttl_ms=1) as run:
            run.version("refund", newest, lowest=lowest)
    with pytest.raises(InvalidInput, match="goes from 3 to 2"), run_of(url, "i-2") as run:
        run.version("other", 2, lowest=3)


# ── a process that dies and comes back with other code ───────────────────────────────────────────

AGENT = """
    import os, signal, sys
    from pathlib import Path
    from tape import durable_run, effect, RunChanged

    url, world, amount = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    name, dies = sys.argv[4], sys.argv[5] == "dies"

    def pay(amount):
        with world.open("a") as file:
            file.write(f"{name} {amount}\\n")
        return amount

    pay.__name__ = name
    pay = effect(pay)

    try:
        with durable_run("treasury", invocation_id="monday", url=url, lease_ttl_ms=1, lease_wait_s=10) as run:
            run.decide(lambda: "pay", request={"amount": amount})
            pay(amount)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
        print("done")
    except RunChanged as change:
        print(change.code, Path(change.file).name)
"""


def test_a_killed_agent_that_comes_back_with_other_code_does_not_act(url: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(textwrap.dedent(AGENT))
    world = tmp_path / "world"

    def agent(amount: int, name: str, dies: str = "") -> Forked:
        program = partial(runpy.run_path, str(script), run_name="__main__")
        return Forked([url, str(world), str(amount), name, dies], program=program)

    first = agent(10, "pay", "dies")
    assert first.wait(60) == -signal.SIGKILL
    first.kill()
    assert agent(20, "pay").finish() == "TAPE-2440 agent.py\n"
    assert agent(10, "pay_out").finish() == "TAPE-2440 agent.py\n"
    assert agent(10, "pay").finish() == "done\n"
    assert world.read_text() == "pay 10\n"
