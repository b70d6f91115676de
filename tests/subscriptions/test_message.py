"""Messages of all sources have one form and one payload."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.subscriptions.document.spec import DispatchSpec, HeaderRule, HeadersSpec
from tape.subscriptions.message import decode_body, normalize_headers, payload_of, receive

PLAIN = HeadersSpec()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def payload(body: bytes | None, payload_from: Any = "message.json", headers: HeadersSpec = PLAIN, **more: Any) -> Any:
    message = receive("nats", "7", body, **more)
    return payload_of(message, "subscriptions/orders", DispatchSpec(playbook="p", payload_from=payload_from), headers)


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b'{"n": 1}', {"n": 1}),
        (b"[1, 2]", [1, 2]),
        (b"plain text", "plain text"),
        (b'{"n": ', '{"n": '),
        (b"NaN", "NaN"),
        (b"", ""),
        (None, None),
        (b"\xff\xfe", "��"),
        (b'{"name": "\xff"}', {"name": "�"}),
        (b"[" * 100_000, "[" * 100_000),
    ],
    ids=repr,
)
def test_a_body_is_json_if_it_parses_and_text_otherwise(body: bytes | None, data: Any) -> None:
    assert decode_body(body) == data


@given(st.binary(max_size=200))
def test_no_body_breaks_the_decoding(body: bytes) -> None:
    decode_body(body)


def test_header_names_are_lower_case_and_values_of_one_name_stay_together_in_order() -> None:
    found = normalize_headers([("X-Route", "a"), ("Accept", "1"), ("x-route", "b")])
    assert found == {"x-route": ("a", "b"), "accept": ("1",)}


def test_only_ascii_is_lowered() -> None:
    assert list(normalize_headers([("X-İ", "a"), ("X-\u212a", "b")])) == ["x-İ", "x-\u212a"]


def test_the_payload_has_the_message_and_the_fields_of_its_body_at_the_top() -> None:
    shown = payload(b'{"n": 1}', metadata={"subject": "orders.new"})
    assert shown == {
        "message": {
            "id": "7",
            "data": {"n": 1},
            "headers": {},
            "attributes": {},
            "metadata": {"subject": "orders.new"},
        },
        "subscription": "subscriptions/orders",
        "source": "nats",
        "n": 1,
    }


@given(st.dictionaries(st.sampled_from(["message", "subscription", "source", "n"]), JSON))
def test_a_body_never_replaces_what_says_where_it_came_from(body: dict[str, Any]) -> None:
    shown = payload(msgspec.json.encode(body))
    assert shown["message"]["id"] == "7"
    assert (shown["subscription"], shown["source"]) == ("subscriptions/orders", "nats")


@pytest.mark.parametrize("body", [b"[1]", b'"text"', b"null", b"12"])
def test_what_is_no_object_goes_under_body(body: bytes) -> None:
    assert payload(body)["body"] == decode_body(body)


def test_the_body_as_text_and_the_attributes_can_be_selected_instead() -> None:
    assert payload(b'{"b": 1, "a": [2]}', "message.body")["body"] == '{"b":1,"a":[2]}'
    assert payload(b"as it is", "message.body")["body"] == "as it is"
    assert payload(b"{}", "message.attributes", attributes={"Tenant": "acme"})["Tenant"] == "acme"


def test_a_header_with_several_values_is_a_list_for_the_playbook() -> None:
    message = receive("kafka", "t:0:1", b"{}", [("A", "1"), ("a", "2"), ("B", "3")])
    message = payload_of(message, "s", DispatchSpec(playbook="p"), HeadersSpec())["message"]
    assert message["headers"] == {"a": ["1", "2"], "b": "3"}


def test_headers_without_a_rule_can_be_kept_from_the_playbook() -> None:
    message = receive(
        "nats", "1", b"{}", [("X-Route", "a"), ("Secret", "s")], attributes={"X-Route": "a", "Secret": "s"}
    )
    rules = (HeaderRule(header="x-route", controls="schema_hint"),)
    hidden = payload_of(message, "s", DispatchSpec(playbook="p"), HeadersSpec(directives=rules, passthrough="none"))
    assert hidden["message"]["headers"] == {"x-route": "a"}
    assert hidden["message"]["attributes"] == {"X-Route": "a"}
    none = payload_of(message, "s", DispatchSpec(playbook="p"), HeadersSpec(normalize=False))
    assert none["message"]["headers"] == {}
