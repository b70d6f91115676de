"""A dispatcher dies at the worst moments, and what must happen once happens once: counted at the receiver."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tape.client import TapeClient
from tape.proto import tape_pb2 as pb
from tape.reactors import fire_due_timers_once
from tests.forked import Forked
from tests.reactors.scene import begin, effect_of, send
from tests.receiver import Receiver
from tests.services import ServerProcess, difference, wait_for

pytestmark = pytest.mark.usefixtures("loopback_allowed")

DISPATCHER = partial(runpy.run_path, str(Path(__file__).with_name("dispatcher.py")), run_name="__main__")


@pytest.fixture
def client(store_url: str) -> Iterator[TapeClient]:
    with ServerProcess(store_url) as server, TapeClient(server.url) as client:
        yield client


@pytest.fixture
def bank() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@contextmanager
def dispatcher(client: TapeClient, bank: Receiver, folder: Path) -> Iterator[Forked]:
    folder.mkdir(exist_ok=True)
    process = Forked([client.url, bank.url, str(folder)], program=DISPATCHER)
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("semantics", [pb.EFFECT_SEMANTICS_NON_IDEMPOTENT, pb.EFFECT_SEMANTICS_IDEMPOTENT])
def test_killed_between_claim_and_send_it_is_sent_once_by_the_next(
    client: TapeClient, bank: Receiver, tmp_path: Path, semantics: int
) -> None:
    run_id = begin(client)
    key = send(client, run_id, semantics, amount=5)
    with dispatcher(client, bank, tmp_path / "first") as first:
        wait_for((tmp_path / "first/claimed").exists, "the first dispatcher to claim it")
        first.kill()
    assert bank.ledger() == []
    (tmp_path / "second").mkdir()
    (tmp_path / "second/go").touch()
    with dispatcher(client, bank, tmp_path / "second"):
        wait_for(lambda: effect_of(client, run_id, key).status == pb.EFFECT_STATUS_CONFIRMED, "the second to send it")
    assert [(each["key"], each["body"]) for each in bank.ledger()] == [(key, {"amount": 5})]


def test_killed_between_send_and_record_it_is_found_and_not_sent_again(
    client: TapeClient, bank: Receiver, tmp_path: Path
) -> None:
    run_id = begin(client)
    key = send(client, run_id, amount=5)
    bank.post("/hold")
    (tmp_path / "first").mkdir()
    (tmp_path / "first/go").touch()
    with dispatcher(client, bank, tmp_path / "first") as first:
        wait_for(bank.ledger, "the payment to happen")
        first.kill()
    bank.post("/release")
    assert effect_of(client, run_id, key).status == pb.EFFECT_STATUS_PENDING
    (tmp_path / "second").mkdir()
    (tmp_path / "second/go").touch()
    with dispatcher(client, bank, tmp_path / "second"):
        wait_for(lambda: effect_of(client, run_id, key).status == pb.EFFECT_STATUS_CONFIRMED, "the second to find it")
    assert len(bank.ledger()) == 1
    assert not (tmp_path / "second/claimed").exists()  # it did not even try to send


def test_three_dispatchers_send_everything_once(client: TapeClient, bank: Receiver, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/go").touch()
    run_id = begin(client)
    with (
        dispatcher(client, bank, tmp_path / "0"),
        dispatcher(client, bank, tmp_path / "1"),
        dispatcher(client, bank, tmp_path / "2") as last,
    ):
        keys = {send(client, run_id, amount=number) for number in range(60)}
        wait_for(lambda: len(bank.ledger()) >= 20, "some to be sent")
        last.kill()
        wait_for(lambda: not client.list_effects_to_dispatch(now_ms=1 << 62).effects, "all to be sent")
        wait_for(
            lambda: {effect_of(client, run_id, key).status for key in keys} == {pb.EFFECT_STATUS_CONFIRMED},
            "all to be on record",
        )
    assert not difference((each["key"] for each in bank.ledger()), keys)


def test_a_timer_whose_process_is_killed_while_it_acts_comes_again(client: TapeClient, tmp_path: Path) -> None:
    client.set_timer(run_id=begin(client), fire_at_ms=1, kind="wake", timer_id="t")
    acting = tmp_path / "acting"
    program = (
        "import pathlib, sys, time, tape.reactors as r\n"
        "def act(timer): pathlib.Path(sys.argv[2]).touch(); time.sleep(600)\n"
        "r.fire_due_timers_once(sys.argv[1], on_timer=act, lease_ttl_ms=300)\n"
    )
    process = Forked([client.url, str(acting)], program=partial(exec, program, {}))
    wait_for(acting.exists, "the timer to be acted on")
    process.kill()
    fired: list[str] = []
    wait_for(
        lambda: fire_due_timers_once(client=client, on_timer=lambda timer: fired.append(timer.timer_id)),
        "its lease to run out",
    )
    assert fired == ["t"]
