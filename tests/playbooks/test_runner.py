"""Playbooks as they run, without a server: steps, arrows, lists, retries, failures, Python."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

import tape
from tape.documents.document import Document
from tape.errors import InvalidPayload, PlaybookError, RunInterrupted, StepFailed, TemplateFailed
from tape.playbooks import functions
from tape.playbooks.document import Playbook, read_playbook
from tape.playbooks.host import LocalHost, RunInfo
from tape.playbooks.runner import run_playbook

RUN = RunInfo(id="7", path="test/one", pool="shared", trace={"traceparent": "t"})


@pytest.fixture(autouse=True)
def declarations() -> Iterator[None]:
    functions.forget_declarations()
    yield
    functions.forget_declarations()


def playbook(steps: str, rest: str = "") -> Playbook:
    document = Document(f"kind: Playbook\nmetadata: {{path: test/one}}\n{rest}\nworkflow:\n{steps}")
    found = read_playbook(document)
    document.check()
    return found


async def run(steps: str, payload: dict[str, Any] | None = None, rest: str = "", host: LocalHost | None = None) -> Any:
    return await run_playbook(playbook(steps, rest), payload or {}, RUN, host or LocalHost())


async def test_steps_follow_each_other_and_see_what_came_before() -> None:
    output = await run(
        """
  - step: price
    tool: {kind: value, value: {net: "{{ amount * 2.0 }}", note: "order {{ order_id }} of {{ input.customer.name }}"}}
  - step: total
    tool: {kind: value, value: "{{ price.net + 1.0 }}"}
""",
        {"order_id": 5, "amount": 10.0, "customer": {"name": "Ann"}},
        "inputs: {order_id: integer, amount: number}\n"
        "output: {total: '{{ total }}', note: '{{ price.note }}', run: '{{ run.id }}'}",
    )
    assert output == {"total": 21.0, "note": "order 5 of Ann", "run": "7"}


async def test_without_an_output_the_last_step_is_it() -> None:
    assert await run("  - {step: a, tool: {kind: value, value: [1, '{{ [2, 3] }}']}}") == [1, [2, 3]]


BRANCHES = """
  - step: look
    tool: {kind: value, value: "{{ amount }}"}
    next:
      - {step: large, when: look > 100}
      - {step: small, when: "look > 10"}
  - step: large
    tool: {kind: value, value: large}
    next: done
  - step: small
    tool: {kind: value, value: small}
    next: [done]
  - step: done
    tool: {kind: value, value: "{{ [look, large, small] }}"}
"""


@pytest.mark.parametrize(("amount", "output"), [(500, [500, "large", {}]), (50, [50, {}, "small"]), (5, 5)])
async def test_arrows_are_taken_by_the_first_condition_that_holds(amount: int, output: Any) -> None:
    assert await run(BRANCHES, {"amount": amount}, "inputs: {amount: integer}") == output


async def test_a_step_whose_condition_does_not_hold_is_passed_over() -> None:
    steps = """
  - {step: a, when: "false", tool: {kind: value, value: 1}}
  - {step: b, when: "{{ a == {} }}", tool: {kind: value, value: 2}}
"""
    assert await run(steps) == 2


async def test_arrows_may_go_back_and_a_circle_without_end_is_stopped() -> None:
    seen: list[int] = []

    @tape.function
    def count(n: int) -> int:
        seen.append(n)
        return n + 1

    steps = """
  - step: start
    tool: {kind: value, value: 0}
    next: more
  - step: more
    tool: {kind: python, function: count, args: {n: "{{ more == {} ? 0 : more }}"}}
    next: [{step: more, when: more < 3}]
"""
    assert await run(steps) == 3
    assert seen == [0, 1, 2]
    with pytest.raises(PlaybookError, match="10000 steps"):
        await run("  - {step: a, tool: {kind: value, value: 1}, next: a}")


async def test_a_list_is_gone_through_in_order_with_so_many_at_a_time() -> None:
    at_once = most = 0

    @tape.function("double")
    async def doubled(n: int, index: int) -> dict[str, int]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(5):
            await asyncio.sleep(0)
        at_once -= 1
        return {"n": 2 * n, "index": index}

    steps = """
  - step: all
    each: numbers
    as: number
    concurrency: 3
    tool: {kind: python, function: double, args: {n: "{{ number }}", index: "{{ index }}"}}
  - step: sum
    tool: {kind: value, value: "{{ all.map(r, r.n) }}"}
"""
    assert await run(steps, {"numbers": list(range(10))}, "inputs: {numbers: array}") == [2 * n for n in range(10)]
    assert most == 3
    assert await run(steps, {"numbers": []}, "inputs: {numbers: array}") == []
    with pytest.raises(PlaybookError, match="each of step all: 'numbers' gives dict, not a list"):
        await run(steps, {"numbers": {}}, "inputs: {numbers: any}")


async def test_a_failed_attempt_is_followed_by_others() -> None:
    attempts = 0

    @tape.function
    def flaky() -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ConnectionError("not yet")
        return "done"

    assert await run("  - {step: a, retry: {attempts: 3, delay_s: 0}, tool: {kind: python, function: flaky}}") == "done"
    attempts = 0
    with pytest.raises(ConnectionError):
        await run("  - {step: a, retry: {attempts: 2, delay_s: 0}, tool: {kind: python, function: flaky}}")


async def test_a_step_has_its_time() -> None:
    @tape.function
    async def slow() -> None:
        await asyncio.Event().wait()

    with pytest.raises(PlaybookError, match=r"took longer than timeout_s 0\.01"):
        await run("  - {step: a, timeout_s: 0.01, tool: {kind: python, function: slow}}")


async def test_a_step_may_fail_and_the_rest_goes_on() -> None:
    steps = """
  - step: a
    each: "[1, 2]"
    on_error: continue
    tool: {kind: value, value: "{{ 2 / (item - 1) }}"}
  - step: b
    tool: {kind: value, value: "{{ has(a[0].error) ? a[0].error.type : 'fine' }}"}
"""
    assert await run(steps) == "TemplateFailed"


async def test_an_expression_without_a_value_names_itself_and_why() -> None:
    with pytest.raises(TemplateFailed, match=r"'input\.nothing' has no value here: .*nothing"):
        await run("  - {step: a, tool: {kind: value, value: '{{ input.nothing }}'}}")
    with pytest.raises(PlaybookError, match="'5' gives 5, which is neither true nor false"):
        await run("  - {step: a, when: '5', tool: {kind: value, value: 1}}")


async def test_inputs_have_types_defaults_and_clear_errors() -> None:
    inputs = "inputs: {id: string, n: {type: integer, default: 3}, o: {type: object, required: false}}"
    step = "  - {step: a, tool: {kind: value, value: ['{{ id }}', '{{ n }}', '{{ o }}']}}"
    assert await run(step, {"id": "x"}, inputs) == ["x", 3, None]
    assert await run(step, {"id": "x", "n": 4.0, "o": {}}, inputs) == ["x", 4.0, {}]
    with pytest.raises(InvalidPayload) as raised:
        await run(step, {"n": True, "o": []}, inputs)
    assert str(raised.value) == (
        "payload: id is missing; send a string; n is true; it must be an integer; o is []; it must be an object."
    )
    assert await run("  - {step: a, tool: {kind: value, value: '{{ x }}'}}", {}, "workload: {x: 5}") == 5


async def test_a_playbook_within_another_is_part_of_it() -> None:
    inner = playbook("  - {step: a, tool: {kind: value, value: '{{ n * 2 }}'}}", "inputs: {n: integer}")
    host = LocalHost(load=lambda path: {"inner": inner}[path])
    steps = "  - {step: a, tool: {kind: playbook, path: inner, payload: {n: '{{ n }}'}}}"
    assert await run(steps, {"n": 4}, "inputs: {n: integer}", host) == 8
    me = playbook("  - {step: a, tool: {kind: playbook, path: me}}")
    with pytest.raises(PlaybookError, match="does it call itself"):
        await run_playbook(me, {}, RUN, LocalHost(load=lambda path: me))


async def test_events_and_other_executions_are_handed_to_the_host() -> None:
    emitted: list[Any] = []

    async def publish(subject: str, payload: Any) -> None:
        emitted.append((subject, payload))

    async def start(path: str, payload: dict[str, Any], pool: str) -> str:
        emitted.append((path, payload, pool))
        return "99"

    steps = """
  - step: tell
    tool: {kind: publish, subject: "/tape/order/seen/{{ id }}", payload: {id: "{{ id }}"}}
  - step: begin
    tool: {kind: playbook, path: other, wait: false, pool: iot, payload: {x: 1}}
"""
    host = LocalHost(publish=publish, start=start)
    assert await run(steps, {"id": "5"}, "inputs: {id: string}", host) == {"execution_id": "99"}
    assert emitted == [("/tape/order/seen/5", {"id": "5"}), ("other", {"x": 1}, "iot")]
    for step in steps.strip().split("  - step")[1:]:
        with pytest.raises(PlaybookError, match="needs a server"):
            await run(f"  - step{step}", {"id": "5"}, "inputs: {id: string}")


@dataclasses.dataclass
class Order:
    id: str
    total: float


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_python_function_is_a_playbook_with_typed_inputs(is_async: bool) -> None:
    def ingest(order: Order, run: RunInfo, payload: dict[str, Any], note: str = "", **rest: Any) -> Any:
        """Take an order in."""
        return {"id": order.id, "run": run.id, "keys": sorted(payload), "note": note, "rest": rest}

    async def ingest_async(order: Order, run: RunInfo, payload: dict[str, Any], note: str = "", **rest: Any) -> Any:
        return ingest(order, run, payload, note, **rest)

    tape.playbook("domain/ingest", pool="iot")(ingest_async if is_async else ingest)
    announced = functions.declared_playbooks()["domain/ingest"].document
    document = Document(announced)
    found = read_playbook(document)
    document.check()
    assert (found.pool, [(each.name, each.type, each.required) for each in found.inputs]) == (
        "iot",
        [("order", "object", True), ("note", "string", False)],
    )
    output = await run_playbook(found, {"order": {"id": "5", "total": 1.5}, "x": 1}, RUN, LocalHost())
    assert output == {"id": "5", "run": "7", "keys": ["note", "order", "x"], "note": "", "rest": {"x": 1}}
    with pytest.raises(InvalidPayload, match=r"order: .*`str`, got `int`"):
        await run_playbook(found, {"order": {"id": 5, "total": 1.5}}, RUN, LocalHost())


async def test_what_a_function_raises_is_the_playbooks_failure() -> None:
    @tape.playbook("bad")
    def bad() -> None:
        raise KeyError("x")

    found = Playbook("bad", python="m:bad")
    with pytest.raises(StepFailed, match="step bad: KeyError: 'x'"):
        await run_playbook(found, {}, RUN, LocalHost())
    functions.forget_declarations()
    with pytest.raises(RunInterrupted, match="start it with --import m"):
        await run_playbook(found, {}, RUN, LocalHost())


def test_two_functions_cannot_be_the_same_playbook() -> None:
    tape.playbook("one")(test_two_functions_cannot_be_the_same_playbook)
    with pytest.raises(tape.errors.InvalidInput, match="two functions are declared as the playbook 'one'"):
        tape.playbook("one")(run)
    with pytest.raises(tape.errors.InvalidInput, match="pool 'No' must be"):
        tape.playbook("two", pool="No")
