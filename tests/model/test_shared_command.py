"""What a command says of runs that are kept as a summary, and what it leaves out."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.model.execution_ids import BLOCK_SIZE, Identifiers, split_id
from tape.model.shared_command import MARK, SharedCommand, SharedPart, fold, unfold
from tape.subscriptions.document.spec import DispatchSpec, HeadersSpec
from tape.subscriptions.message import payload_of, receive

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=7), inner, max_size=3),
    max_leaves=6,
)


@given(data=JSON | st.dictionaries(st.sampled_from(["message", "source", "subscription", "body", "n"]), JSON))
def test_a_folded_message_unfolds_to_the_payload_that_its_run_was_sent(data: Any) -> None:
    message = receive("nats", "7", json.dumps(data).encode(), metadata={"stream_seq": 7})
    payload = payload_of(message, "orders", DispatchSpec(playbook="p"), HeadersSpec())
    folded = fold(payload, "7", "orders", "nats")
    assert folded is not None
    assert repr(unfold(folded, "7", "orders", "nats")) == repr(payload)
    assert "id" not in folded
    assert "headers" not in folded


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"message": "text"},
        {"message": {"data": {"n": 1}}, "n": True, "subscription": "orders", "source": "nats"},
        {"message": {"data": {"n": 1}}, "n": 1, "subscription": "orders", "source": "nats", "content_type": "x"},
        {"message": {"data": {"n": 1}, "id": "8"}, "subscription": "orders", "source": "nats"},
    ],
)
def test_a_payload_that_is_more_than_its_message_is_not_folded(payload: dict[str, Any]) -> None:
    assert fold(payload, "7", "orders", "nats") is None


def test_the_payload_of_an_entry_begins_with_its_mark_and_gives_each_run_its_own_command() -> None:
    command = SharedCommand(
        record="summary",
        path="~acme/p",
        version=2,
        catalog_id="5",
        pool="shared",
        subscription="orders",
        source="nats",
        order_scope="subscription:orders",
        runs=[SharedPart(message_id="1", message={"data": {"n": 1}}, ordering_key="k"), SharedPart(payload={"x": 1})],
    )
    text = msgspec.json.encode(command).decode()
    assert text.startswith(MARK)
    assert json.loads(text)["runs"] == [
        {"message_id": "1", "message": {"data": {"n": 1}}, "ordering_key": "k"},
        {"payload": {"x": 1}},
    ]
    first, second = (command.command_of(index, str(index)) for index in (0, 1))
    assert (first["ordering_key"], first["payload"]["n"], first["record"]) == ("subscription:orders:k", 1, "summary")
    assert (second["payload"], "ordering_key" in second) == ({"x": 1}, False)


def test_the_ids_of_a_block_give_their_block_and_no_other_id_is_in_one() -> None:
    ids = Identifiers(machine=1023)
    blocks = [ids.make_block() for _ in range(50)]
    singles = {ids.make() for _ in range(5_000)}
    assert len(set(blocks)) == 50
    for block in blocks:
        assert [split_id(block + n) for n in (0, 1, BLOCK_SIZE - 1)] == [(block, 0), (block, 1), (block, 1_023)]
        assert not singles & set(range(block, block + BLOCK_SIZE))
    assert {split_id(each) for each in singles} == {None}
