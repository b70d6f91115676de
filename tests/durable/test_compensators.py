"""Compensators: called with what they ask for, and rejected when they ask for what they can never get."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, TypedDict

import msgspec
import pytest

import tape
from tape import TapeClient, effect
from tape.connectors.base import clear, register
from tape.connectors.local import LocalConnector
from tape.effect import register_tool_compensator
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb
from tape.reactors import compensate_once, outbox_dispatch_once


class Booking(TypedDict):
    ticket: str


@dataclasses.dataclass
class Ticket:
    ticket: str


class TicketStruct(msgspec.Struct):
    ticket: str


def cancel(ticket: str) -> None: ...


def book_typed(flight: str) -> Booking:
    return {"ticket": "T-1"}


def book_dataclass(flight: str) -> Ticket | None:
    return Ticket("T-1")


def book_struct(flight: str) -> TicketStruct:
    return TicketStruct("T-1")


def book_dict(flight: str) -> dict[str, str]:
    return {"ticket": "T-1"}


def book_anything(flight: str) -> Any:
    return {"ticket": "T-1"}


def book_with_the_name(ticket: str) -> None: ...


def book_with_any_name(**ticket: str) -> None: ...


@pytest.mark.parametrize(
    "tool",
    [book_typed, book_dataclass, book_struct, book_dict, book_anything, book_with_the_name, book_with_any_name],
    ids=lambda tool: tool.__name__,
)
def test_a_compensator_may_ask_for_arguments_and_for_fields_of_the_result(tool: Callable[..., Any]) -> None:
    effect(compensate=cancel)(tool)


def book_number(flight: str) -> int:
    return 1


def book_silently(flight: str):  # type: ignore[no-untyped-def]
    return {"ticket": "T-1"}


@pytest.mark.parametrize("tool", [book_number, book_silently], ids=lambda tool: tool.__name__)
def test_an_unknown_required_parameter_is_rejected_at_decoration(tool: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match=r"requires 'ticket'.*flight.*idempotency_key"):
        effect(compensate=cancel)(tool)


@pytest.mark.parametrize(
    "compensator",
    [
        lambda payload: None,
        lambda flight, result, run_id: None,
        lambda seat="1a": None,
        lambda *things, **named: None,
        lambda request, /: None,
        [].append,
    ],
)
def test_known_and_optional_parameters_are_fine(compensator: Callable[..., Any]) -> None:
    effect(compensate=compensator)(book_number)


def fail_after(url: str, tool: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The id of a run that failed after it called a tool."""

    def fail() -> None:
        with run:
            tool(*arguments)
            raise ValueError("no car")

    run = tape.durable_run("trips", url=url, **options)
    with pytest.raises(ValueError, match="no car"):
        fail()
    return run.run_id


def test_fields_of_the_result_are_offered_by_name(url: str, observer: TapeClient) -> None:
    given: list[tuple[Any, ...]] = []

    def undo(ticket: str, flight: str, *, price: int = 0) -> None:
        given.append((ticket, flight, price))

    @effect(compensate=undo)
    def book(flight: str) -> dict[str, Any]:
        return {"ticket": "T-1", "flight": "of the result", "price": 5}

    fail_after(url, book, "LH 1")
    assert [each["outcome"] for each in compensate_once(client=observer)] == ["compensated"]
    assert given == [("T-1", "LH 1", 5)], "an argument comes before a field of the result"


def test_a_compensator_that_lacks_a_field_fails_and_does_not_get_something_else(
    url: str, observer: TapeClient, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[Any] = []

    def undo(ticket: Any) -> None:
        given.append(ticket)

    @effect(compensate=undo, max_attempts=1)
    def book_without_ticket(flight: str) -> dict[str, str]:
        return {"seat": "1a"}

    with caplog.at_level(logging.WARNING):
        run_id = fail_after(url, book_without_ticket, "LH 1")
    assert "lacks 'ticket'" in caplog.text, "it is said while the effect can still be looked at"
    (report,) = compensate_once(client=observer)
    assert report["outcome"] == "stuck"
    assert "requires 'ticket'" in report["reason"]
    assert observer.get_run(run_id).status == pb.RUN_STATUS_STUCK
    assert not given


def test_an_outbox_effect_of_another_language_gets_its_obligation(url: str, observer: TapeClient) -> None:
    """Such a client makes one call, BeginEffect; the dispatcher knows what undoes it."""
    undone: list[tuple[str, str]] = []

    def refund(invoice: str, ref: str) -> None:
        undone.append((invoice, ref))

    register_tool_compensator("pay", refund)
    register(LocalConnector("bank", lambda invoice: {"ref": f"tx-{invoice}"}))
    ids = {"app_name": "shop", "user_id": "u", "session_id": "s", "invocation_id": "other"}
    run_id = observer.begin_run(**ids, lease_ttl_ms=1).run_id
    observer.begin_effect(
        run_id=run_id,
        decision_index=-1,
        tool_name="pay",
        request_json='{"invoice": "7"}',
        dispatch_mode=pb.EFFECT_DISPATCH_MODE_OUTBOX,
        connector="bank",
    )
    try:
        assert [each["outcome"] for each in outbox_dispatch_once(client=observer)] == ["confirmed"]
        (obligation,) = observer.list_obligations(run_id=run_id).obligations
        assert obligation.kind == "refund"
        observer.end_run(run_id=run_id, status=pb.RUN_STATUS_FAILED)
        assert [each["outcome"] for each in compensate_once(client=observer)] == ["compensated"]
    finally:
        clear()
    assert undone == [("7", "tx-7")]


def test_a_payload_of_the_result_is_registered_when_the_dispatcher_has_it(url: str, observer: TapeClient) -> None:
    def void(ref: str) -> None: ...

    register(LocalConnector("bank", lambda invoice: {"ref": f"tx-{invoice}"}))

    @effect(
        compensate=void,
        compensation_payload=lambda invoice, result: {"ref": result["ref"], "invoice": invoice},
        dispatch="outbox",
        connector="bank",
    )
    def pay_later(invoice: str) -> None: ...

    try:
        with tape.durable_run("shop", url=url) as run:
            pay_later("7")
        assert not observer.list_obligations(run_id=run.run_id).obligations
        assert [each["outcome"] for each in outbox_dispatch_once(client=observer)] == ["confirmed"]
    finally:
        clear()
    (obligation,) = observer.list_obligations(run_id=run.run_id).obligations
    assert obligation.payload_json == '{"ref":"tx-7","invoice":"7"}'
