"""A spooled message is what was written, or is known not to be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.errors import DamagedSpoolItem
from tape.subscriptions.spool.item import SpoolItem, decode, digest, key_of, sequence_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def an_item(**changes: Any) -> SpoolItem:
    message = changes.pop("message", {"id": "m1", "data": {"v": 1}, "headers": {}})
    fields: dict[str, Any] = {
        "subscription": "subscriptions/orders",
        "source": "nats",
        "message_id": "m1",
        "dedup_key": "m1",
        "recv_seq": 7,
        "downstream": "default",
        "sha256": digest(message.get("data")),
        "attempts": 0,
        "spooled_at_ms": 1_700_000_000_000,
        "reason": "circuit_open",
        "message": message,
        "plan": {"playbook": "domain/order"},
    }
    return SpoolItem(**{**fields, **changes})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"v": 1}, "afbf9d0f3560b0fd7795e81c42a0a79ee6b6fc67e064f77826aee642cad28d91"),
        (
            {"seq": 1, "device_id": "dev-1", "reading": 7},
            "785f093a129d9c3dd43f30a0b9cab27a3b5076505f7518497951d88059c90b66",
        ),
        ("raw-text", "4868e05e4af0872a03e11e8bccbc20991dfeafe2e0b341db3e8d51ff038429a2"),
        (None, "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
    ],
)
def test_the_digest_is_of_the_data_as_compact_json_with_sorted_keys(data: Any, expected: str) -> None:
    assert digest(data) == expected


@given(JSON)
def test_what_was_written_is_read(data: Any) -> None:
    item = an_item(message={"data": data})
    again = decode(item.key, item.encode())
    assert again == item


def test_absent_fields_are_left_out() -> None:
    written = json.loads(an_item().encode())
    assert "idempotency_key" not in written
    assert "ordering_key" not in written
    assert written["attempts"] == 0


@given(st.data())
def test_no_flipped_byte_goes_unnoticed(data: st.DataObject) -> None:
    item = an_item()
    whole = bytearray(item.encode())
    backend = data.draw(st.integers(0, len(whole) - 1))
    whole[backend] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedSpoolItem):
        decode(item.key, bytes(whole))


@given(st.integers(0, 400))
def test_a_torn_item_is_noticed(length: int) -> None:
    item = an_item()
    whole = item.encode()
    with pytest.raises(DamagedSpoolItem):
        decode(item.key, whole[: min(length, len(whole) - 1)])


def test_a_renamed_item_is_noticed() -> None:
    item = an_item()
    with pytest.raises(DamagedSpoolItem, match="renamed"):
        decode(key_of(8, "m1"), item.encode())


@given(st.lists(st.tuples(st.integers(0, 2**63), st.text()), max_size=20))
def test_keys_sort_in_the_order_of_receipt_whatever_the_ids_are(arrivals: list[tuple[int, str]]) -> None:
    keys = [key_of(*each) for each in sorted(arrivals, key=lambda each: each[0])]
    assert [sequence_of(key) for key in sorted(keys)] == [
        sequence for sequence, _ in sorted(arrivals, key=lambda a: a[0])
    ]


def test_a_name_that_is_not_ours_has_no_sequence() -> None:
    assert sequence_of("notes") is None
    assert sequence_of("00000000000000000001-../../etc") is None


def test_the_reference_keeps_the_id_as_it_is() -> None:
    item = an_item(message_id="orders:0:17", recv_seq=3)
    assert item.ref == "noetl://spool/subscriptions/orders/3/orders:0:17"
    assert item.key == "00000000000000000003-orders_0_17"
