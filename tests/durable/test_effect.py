"""Effects that are declared: on record before the act, settled after it, never twice."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

import tape
from tape import (
    RetryPolicy,
    TapeClient,
    cancel_run,
    durable_run,
    effect,
    idempotency_key,
    outbox_tool,
    run_id_of,
)
from tape.effect import effect_meta_of, get_status_check, get_tool_compensator, tool_name_of
from tape.errors import (
    AckLost,
    EffectFailed,
    EffectUnknown,
    InvalidInput,
    InvalidJson,
    NotInRun,
    ResultNotRecorded,
    RunCancelled,
    ScopeDenied,
)
from tape.proto import tape_pb2 as pb


class Bank:
    """What happened outside."""

    def __init__(self) -> None:
        self.moved: list[tuple[int, str]] = []

    def move(self, amount: int, key: str) -> dict[str, Any]:
        self.moved.append((amount, key))
        return {"reference": f"t-{len(self.moved)}"}


def run_of(url: str, invocation: str = "i-1", **options: Any) -> tape.DurableRun:
    return durable_run("app", user_id="u", session_id="s", invocation_id=invocation, url=url, **options)


@contextlib.contextmanager
def drive_that_dies(url: str, **options: Any) -> Iterator[tape.DurableRun]:
    """A drive of the run whose process dies at the end of the block, at the latest."""
    with contextlib.suppress(KeyboardInterrupt), run_of(url, lease_ttl_ms=1, **options) as run:
        yield run
        raise KeyboardInterrupt


def effects_of(client: TapeClient, run_id: str) -> dict[str, pb.EffectRecord]:
    """A run's effects by their keys, from its journal."""
    keys = {}
    for entry in client.subscribe_run(run_id=run_id):
        payload = json.loads(entry.payload_json)
        if entry.kind == "effect":
            keys[payload["idempotency_key"]] = None
        if entry.kind == "run" and payload["status"] != "running":
            break
    return {key: client.get_effect(run_id=run_id, idempotency_key=key).effect for key in keys}


# ── once ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_effect_is_on_record_with_its_arguments_and_its_result(url: str, observer: TapeClient) -> None:
    bank = Bank()

    @effect
    def transfer(amount: int, tool_context: Any = None) -> dict[str, Any]:
        return bank.move(amount, idempotency_key(tool_context))

    with run_of(url) as run:
        assert transfer(5) == {"reference": "t-1"}
    [(key, record)] = effects_of(observer, run.run_id).items()
    assert bank.moved == [(5, key)]
    assert key == f"{run.run_id}/no-decision/transfer/0"
    assert record.status == pb.EFFECT_STATUS_CONFIRMED
    assert json.loads(record.request_json) == {"amount": 5}
    assert json.loads(record.response_json) == {"reference": "t-1"}


def test_a_run_that_died_after_the_act_acts_again_with_the_same_key(url: str) -> None:
    bank = Bank()
    dies = True

    @effect
    def transfer(amount: int, tool_context: Any = None) -> dict[str, Any]:
        answer = bank.move(amount, idempotency_key(tool_context))
        if dies:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt), run_of(url, lease_owner="first", lease_ttl_ms=1):
        transfer(5)
    dies = False
    with run_of(url, lease_owner="second"):
        transfer(5)
    assert len(bank.moved) == 2
    assert len(set(bank.moved)) == 1


def test_a_redriven_run_gets_recorded_results_and_does_not_act(url: str) -> None:
    bank = Bank()

    @effect
    def transfer(amount: int) -> dict[str, Any]:
        return bank.move(amount, "")

    def agent(stop: bool) -> list[Any]:
        with run_of(url, lease_ttl_ms=1):
            found = [transfer(1), transfer(2)]
            if stop:
                raise KeyboardInterrupt
            return [*found, transfer(3)]

    with pytest.raises(KeyboardInterrupt):
        agent(stop=True)
    assert agent(stop=False) == [{"reference": "t-1"}, {"reference": "t-2"}, {"reference": "t-3"}]
    assert [amount for amount, _ in bank.moved] == [1, 2, 3]


def test_what_is_done_within_an_effect_is_skipped_with_it_and_takes_nobodys_number(url: str) -> None:
    said: list[str] = []

    @effect
    def say(word: str) -> str:
        said.append(word)
        return word

    @effect
    def greet() -> str:
        return say("inner")

    def agent(stop: bool) -> tuple[str, str]:
        with run_of(url, lease_ttl_ms=1):
            first = greet()
            if stop:
                raise KeyboardInterrupt
            return first, say("outer")

    with pytest.raises(KeyboardInterrupt):
        agent(stop=True)
    assert agent(stop=False) == ("inner", "outer")
    assert said == ["inner", "outer"]


def test_an_effect_may_call_itself(url: str) -> None:
    @effect
    def count(down: int) -> int:
        return 0 if down == 0 else 1 + count(down - 1)

    with run_of(url):
        assert count(3) == 3


def test_a_key_of_your_own_is_used_as_it_is(url: str, observer: TapeClient) -> None:
    @effect(key_from=lambda invoice: f"invoice-{invoice}")
    def pay(invoice: str) -> None:
        return None

    with run_of(url) as run:
        pay("42")
        pay("42")
    assert list(effects_of(observer, run.run_id)) == ["invoice-42"]


def test_outside_of_a_run_the_function_is_an_ordinary_one() -> None:
    @effect
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    with pytest.raises(NotInRun, match="durable_run"):
        idempotency_key(None)


async def test_coroutines_are_effects_too(url: str) -> None:
    bank = Bank()

    @effect
    async def transfer(amount: int, tool_context: Any = None) -> dict[str, Any]:
        await asyncio.sleep(0)
        return bank.move(amount, idempotency_key(tool_context))

    answers = []
    for _ in range(2):
        with drive_that_dies(url):
            answers.append([await transfer(1), *await asyncio.gather(*(transfer(n) for n in range(2, 10)))])
    assert answers[0] == answers[1]
    assert sorted(amount for amount, _ in bank.moved) == list(range(1, 10))
    assert [key.rpartition("/")[2] for _, key in sorted(bank.moved)] == [str(n) for n in range(9)]


# ── results ──────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Receipt:
    number: int
    lines: list[str]


def test_a_result_comes_back_as_what_the_function_says_it_returns_first_and_later(url: str) -> None:
    @effect
    def buy() -> Receipt:
        return Receipt(7, ["a"])

    @effect
    def nothing() -> None:
        return None

    @effect
    def pair():  # type: ignore[no-untyped-def]
        return (1, 2)

    for _ in range(2):
        with drive_that_dies(url):
            assert buy() == Receipt(7, ["a"])
            assert nothing() is None
            assert pair() == [1, 2]  # JSON has no tuples, so there are none the first time either


def test_a_result_that_json_cannot_say_is_an_error_but_the_act_is_confirmed(url: str, observer: TapeClient) -> None:
    @effect
    def buy() -> object:
        return object()

    with pytest.raises(ResultNotRecorded, match="confirmed"), run_of(url) as run:
        buy()
    [record] = effects_of(observer, run.run_id).values()
    assert record.status == pb.EFFECT_STATUS_CONFIRMED


def test_arguments_that_json_cannot_say_are_refused_before_anything_happens(url: str) -> None:
    @effect
    def buy(what: object) -> None:
        raise AssertionError("it must not come to this")

    with pytest.raises(InvalidJson, match="buy"), run_of(url):
        buy(object())


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


def test_a_failure_is_recorded_and_raised_again_in_every_drive(url: str, observer: TapeClient) -> None:
    attempts = []

    @effect
    def pay() -> None:
        attempts.append(1)
        raise ValueError("no funds")

    for _ in range(2):
        with drive_that_dies(url):
            with pytest.raises(EffectFailed, match="no funds") as failed:
                pay()
            assert failed.value.error_type == "ValueError"
    assert len(attempts) == 1


def test_a_retry_policy_tries_again_within_one_effect(url: str, observer: TapeClient) -> None:
    attempts = []

    @effect(retry=RetryPolicy(max_attempts=3, initial_interval_s=0))
    def pay() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("later")
        return "paid"

    with run_of(url) as run:
        assert pay() == "paid"
    assert len(attempts) == 3
    assert len(effects_of(observer, run.run_id)) == 1


def test_a_lost_answer_makes_the_effect_unknown_and_leaves_the_run_to_be_recovered(
    url: str, observer: TapeClient
) -> None:
    @effect
    def pay() -> None:
        raise AckLost("the line went dead")

    with pytest.raises(EffectUnknown), run_of(url, lease_ttl_ms=1) as run:
        pay()
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_RUNNING
    [lost] = observer.list_pending_effects(include_pending=False).effects
    assert lost.status == pb.EFFECT_STATUS_UNKNOWN


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"reference": "found"}, {"reference": "found"}),
        ("confirmed", None),
        (True, None),
        (False, {"reference": "t-2"}),
    ],
)
def test_a_status_check_decides_what_became_of_an_unknown_effect(url: str, answer: Any, result: Any) -> None:
    bank = Bank()
    asked: list[tuple[int, str]] = []
    is_lost = True

    def look(amount: int, idempotency_key: str) -> Any:
        asked.append((amount, idempotency_key))
        return answer

    @effect(status_check=look)
    def pay(amount: int, tool_context: Any = None) -> Any:
        done = bank.move(amount, idempotency_key(tool_context))
        if is_lost:
            raise AckLost("the line went dead")
        return done

    with pytest.raises(EffectUnknown), run_of(url, lease_ttl_ms=1):
        pay(5)
    is_lost = False
    with run_of(url):
        assert pay(5) == result
    assert asked == [bank.moved[0]]
    assert len(bank.moved) == (2 if answer is False else 1)  # what did not happen may be done again, with the same key
    assert len(set(bank.moved)) == 1


def test_a_status_check_without_an_answer_leaves_the_effect_unknown(url: str) -> None:
    @effect(status_check=lambda key: None)
    def pay() -> None:
        raise AckLost("the line went dead")

    for _ in range(2):
        with pytest.raises(EffectUnknown), run_of(url, lease_ttl_ms=1):
            pay()


def test_what_is_unsafe_and_inline_is_never_repeated(url: str, observer: TapeClient) -> None:
    calls = []

    @effect(semantics="non_idempotent", allow_unsafe=True)
    def wire() -> None:
        calls.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), run_of(url, lease_ttl_ms=1):
        wire()
    with pytest.raises(EffectUnknown), run_of(url, lease_ttl_ms=1):
        wire()
    assert len(calls) == 1
    assert [each.tool_name for each in observer.list_pending_effects(include_pending=False).effects] == ["wire"]


def test_a_cancelled_run_begins_nothing_new(url: str) -> None:
    @effect
    def pay() -> None:
        raise AssertionError("it must not come to this")

    with drive_that_dies(url) as run:
        cancel_run(run.run_id, reason="changed my mind", url=url)
        with pytest.raises(RunCancelled):
            pay()


# ── scopes, business keys, the outbox ────────────────────────────────────────────────────────────


def test_an_effect_needs_the_scope_that_it_declares(url: str, observer: TapeClient) -> None:
    @effect(scope="payments")
    def pay() -> str:
        return "paid"

    with pytest.raises(ScopeDenied) as denied, run_of(url, "without"):
        pay()
    assert (denied.value.scope, denied.value.tool) == ("payments", "pay")
    with run_of(url, "with", scopes=["payments"]):
        assert pay() == "paid"


def test_an_outbox_effect_waits_for_its_dispatcher_with_what_the_body_prepared(url: str, observer: TapeClient) -> None:
    @outbox_tool(connector="bank", business_key="{invoice}")
    def wire(invoice: str, amount: int) -> dict[str, Any]:
        return {"to": invoice, "cents": amount * 100}

    with run_of(url, scopes=["bank"]) as run:
        answer = wire("inv-1", 5)
    assert answer["status"] == "pending"
    assert answer["business_key"] == "inv-1"
    [waiting] = observer.list_effects_to_dispatch(connector="bank").effects
    assert json.loads(waiting.request_json) == {"to": "inv-1", "cents": 500}
    assert (waiting.run_id, waiting.semantics) == (run.run_id, pb.EFFECT_SEMANTICS_NON_IDEMPOTENT)


def test_a_dispatched_effect_gives_its_response_to_the_run_that_asks_again(url: str, observer: TapeClient) -> None:
    @outbox_tool(connector="bank", business_key="{invoice}")
    def wire(invoice: str) -> None:
        return None

    def agent() -> Any:
        with drive_that_dies(url, scopes=["bank"]):
            return wire("inv-1")

    assert agent()["status"] == "pending"
    [waiting] = observer.list_effects_to_dispatch().effects
    assert json.loads(waiting.request_json) == {"invoice": "inv-1"}
    observer.record_external_observation(
        run_id=waiting.run_id,
        idempotency_key=waiting.idempotency_key,
        resolution=pb.EFFECT_RESOLUTION_CONFIRMED,
        external_ref="b-7",
        response_json='{"ok": true}',
    )
    assert agent() == {"ok": True}


def test_the_same_business_of_another_run_is_not_done_again(url: str) -> None:
    calls = []

    @effect(connector="bank", business_key=lambda invoice: invoice)
    def pay(invoice: str) -> str:
        calls.append(invoice)
        return "paid"

    for invocation in ("a", "b"):
        with run_of(url, invocation):
            assert pay("inv-1") == "paid"
    assert calls == ["inv-1"]


# ── compensation ─────────────────────────────────────────────────────────────────────────────────


def refund(amount: int) -> None:
    """Undoes a payment."""


def test_an_effect_registers_what_undoes_it_before_it_acts(url: str, observer: TapeClient) -> None:
    @effect(compensate=refund, max_attempts=3)
    def pay(amount: int, tool_context: Any = None) -> None:
        [obligation] = observer.list_obligations(run_id=run_id_of(tool_context)).obligations
        assert obligation.kind == "refund"
        assert json.loads(obligation.payload_json) == {"amount": 5}
        assert obligation.effect_key == idempotency_key(tool_context)
        assert obligation.max_attempts == 3

    with run_of(url):
        pay(5)


def test_a_compensation_payload_may_be_made_of_the_result(url: str, observer: TapeClient) -> None:
    @effect(compensate=refund, compensation_payload=lambda amount, result: {"amount": amount, "ref": result["ref"]})
    def pay(amount: int) -> dict[str, str]:
        return {"ref": "t-1"}

    with run_of(url) as run:
        pay(5)
    [obligation] = observer.list_obligations(run_id=run.run_id).obligations
    assert json.loads(obligation.payload_json) == {"amount": 5, "ref": "t-1"}


def test_what_failed_need_not_be_undone(url: str, observer: TapeClient) -> None:
    @effect(compensate=refund)
    def pay(amount: int) -> None:
        raise ValueError("no funds")

    with pytest.raises(EffectFailed), run_of(url) as run:
        pay(5)
    assert not observer.list_obligations(run_id=run.run_id).obligations
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_FAILED


# ── declarations ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        ({"semantics": "sometimes"}, "semantics 'sometimes'"),
        ({"dispatch": "pigeon"}, "dispatch 'pigeon'"),
        ({"dispatch": "outbox"}, "name the connector"),
        ({"business_key": "x"}, "business_key of 'act' requires connector"),
        ({"semantics": "non_idempotent"}, "allow_unsafe"),
        ({"semantics": "non_idempotent", "dispatch": "outbox", "connector": "bank"}, "scope='bank'"),
        (
            {"semantics": "non_idempotent", "dispatch": "outbox", "connector": "bank", "allow_unsafe": True},
            "has no scope",
        ),
        ({"semantics": "non_idempotent", "dispatch": "outbox", "connector": "bank", "scope": "pay"}, "business_key"),
    ],
)
def test_a_declaration_that_cannot_be_made_safe_is_refused_at_once(declared: dict[str, Any], complaint: str) -> None:
    def act() -> None:
        """Never called."""

    with pytest.raises(InvalidInput, match=complaint):
        effect(**declared)(act)


def test_a_business_key_that_names_no_argument_says_which_there_are(url: str) -> None:
    @effect(connector="bank", business_key="{bill}")
    def pay(invoice: str) -> None:
        """Never called."""

    with pytest.raises(InvalidInput, match=r"'bill'.*invoice"), run_of(url):
        pay("inv-1")


def test_what_was_declared_can_be_asked_for() -> None:
    @effect(compensate=refund, status_check=lambda key: None, scope="payments")
    def pay_with_meta(amount: int) -> None:
        """Never called."""

    meta = effect_meta_of(pay_with_meta)
    assert meta is not None
    assert (meta["name"], meta["scope"], meta["dispatch"]) == ("pay_with_meta", "payments", "inline")
    assert tool_name_of(pay_with_meta) == "pay_with_meta"
    assert effect_meta_of(len) is None
    assert get_status_check("pay_with_meta") is not None
    registered = get_tool_compensator("pay_with_meta")
    assert registered is not None
    assert registered["compensator_ref"] == "tests.durable.test_effect:refund"


def test_the_package_is_the_decorator_however_it_was_imported() -> None:
    import tape.effect as package

    assert tape.effect is package

    @tape.effect
    def plain(n: int) -> int:
        return n

    assert plain(3) == 3
    assert package.idempotency_key is idempotency_key
