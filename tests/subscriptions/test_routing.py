"""Headers are instructions only where a rule says so, and only with the values it allows."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.model.entry import check_id
from tape.subscriptions.message import receive
from tape.subscriptions.routing import Plan, TraceContext, resolve
from tests.subscriptions.specs import subscription

ROUTE = {"header": "X-Route", "controls": "dispatch.playbook", "allowed": ["domain/fraud", "domain/billing"]}
POOL = {"header": "x-pool", "controls": "dispatch.execution_pool", "allowed": ["iot", "priority"]}
PRIORITY = {"header": "x-priority", "controls": "priority", "map": {"high": "priority", "normal": "shared"}}
KEY = {"header": "x-idempotency-key", "controls": "idempotency_key"}
TYPE = {"header": "content-type", "controls": "content_type"}
HINT = {"header": "x-schema", "controls": "schema_hint"}
ALL = [ROUTE, POOL, PRIORITY, KEY, TYPE, HINT]
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def plan(
    *headers: tuple[str, str], rules: list[Any] = ALL, body: bytes = b"{}", trace: Any = None, **spec: Any
) -> Plan:
    dispatch = {"playbook": "domain/default", "execution_pool": "slow"}
    block = {"directives": rules} | ({"trace": trace} if trace else {})
    return resolve(subscription(dispatch=dispatch, headers=block, **spec), receive("nats", "42", body, headers))


def test_without_headers_the_subscription_decides() -> None:
    made = plan()
    assert (made.playbook, made.pool, made.applied, made.trace) == ("domain/default", "slow", (), None)
    assert (made.key, made.dedup, made.changed_something) == ("42", None, False)


def test_an_allowed_value_redirects_and_the_plan_says_what_was_applied() -> None:
    made = plan(("x-ROUTE", "domain/fraud"), ("X-Pool", "iot"))
    assert (made.playbook, made.pool) == ("domain/fraud", "iot")
    assert (made.playbook_override, made.pool_override) == ("domain/fraud", "iot")
    assert [msgspec.structs.astuple(each) for each in made.applied] == [
        ("x-route", "dispatch.playbook", "domain/fraud"),
        ("x-pool", "dispatch.execution_pool", "iot"),
    ]


VALUES = st.text(max_size=20) | st.sampled_from(
    ["domain/fraud", "domain/billing", "iot", "priority", "high", "IOT", " iot", "iot ", "domain/fraud\0", ""]
)
NAMES = st.sampled_from(["x-route", "X-Pool", "x-priority", "x-other", "dispatch.playbook", "authorization"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_a_value_outside_allowed_never_changes_a_plan(headers: list[tuple[str, str]]) -> None:
    made = plan(*headers)
    last = {name.lower(): value for name, value in headers}
    route, pool, priority = last.get("x-route"), last.get("x-pool"), last.get("x-priority")
    assert made.playbook == (route if route in ROUTE["allowed"] else "domain/default")
    mapped = PRIORITY["map"].get(priority, "slow")  # type: ignore[attr-defined]
    assert made.pool == (pool if pool in POOL["allowed"] else mapped)
    assert {each.header for each in made.applied} <= {"x-route", "x-pool", "x-priority"}


@given(st.lists(st.tuples(st.text(min_size=1, max_size=12), st.text(max_size=12)), max_size=8))
def test_headers_without_rules_are_data_and_nothing_else(headers: list[tuple[str, str]]) -> None:
    made, plain = plan(*headers, rules=[]), plan(rules=[])
    payload = made.payload | {"message": made.payload["message"] | {"headers": {}}}
    assert msgspec.structs.replace(made, payload=payload) == plain


def test_an_allowed_list_binds_free_controls_too() -> None:
    rules = [KEY | {"allowed": ["a"]}]
    assert plan(("x-idempotency-key", "b"), rules=rules).idempotency_key == ""
    assert plan(("x-idempotency-key", "a"), rules=rules).idempotency_key == "a"


def test_of_several_values_the_last_counts() -> None:
    assert plan(("x-route", "domain/billing"), ("x-route", "domain/fraud")).playbook == "domain/fraud"
    assert plan(("x-route", "domain/billing"), ("x-route", "elsewhere")).playbook == "domain/default"


@pytest.mark.parametrize("rules", [[PRIORITY, POOL], [POOL, PRIORITY]])
def test_an_explicit_pool_beats_a_priority_in_any_order(rules: list[Any]) -> None:
    made = plan(("x-priority", "normal"), ("x-pool", "iot"), rules=rules)
    assert (made.pool, made.priority, len(made.applied)) == ("iot", "normal", 2)
    assert plan(("x-priority", "high"), ("x-pool", "forbidden"), rules=rules).pool == "priority"


def test_of_several_rules_for_one_thing_the_last_that_matches_wins() -> None:
    rules = [ROUTE, {"header": "x-alt", "controls": "dispatch.playbook", "allowed": ["domain/alt"]}]
    assert plan(("x-alt", "domain/alt"), ("x-route", "domain/fraud"), rules=rules).playbook == "domain/alt"
    assert plan(("x-alt", "nope"), ("x-route", "domain/fraud"), rules=rules).playbook == "domain/fraud"


def test_keys_and_hints_reach_the_run_and_overwrite_the_body() -> None:
    made = plan(
        ("x-idempotency-key", "k1"), ("content-type", "text/csv"), ("x-schema", "v2"), body=b'{"idempotency_key": "no"}'
    )
    assert (made.payload["idempotency_key"], made.payload["content_type"]) == ("k1", "text/csv")
    assert (made.schema_hint, "schema_hint" in made.payload) == ("v2", False)


def test_dedup_goes_by_the_header_and_else_by_the_id() -> None:
    on = {"dedup": {"enabled": True, "window_secs": 60}}
    for made, key in ((plan(("x-idempotency-key", "k1"), **on), "k1"), (plan(**on), "42")):
        assert made.dedup is not None
        assert (made.dedup.key, made.dedup.window_secs, made.key) == (key, 60, key)


@pytest.mark.parametrize("key", ["k" * 501, "é" * 251, "with\0nul"])
def test_a_key_that_cannot_be_kept_is_its_digest(key: str) -> None:
    made = plan(("x-idempotency-key", key), dedup={"enabled": True})
    assert made.dedup is not None
    check_id("key", made.dedup.key)
    assert made.dedup.key.startswith("sha256:")
    assert made.payload["idempotency_key"] == key


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        "ff" + PARENT[2:],
        PARENT.upper(),
        PARENT + "-more",
        PARENT + "\n",
        PARENT[:-1],
    ],
)
def test_a_malformed_traceparent_is_none(bad: str) -> None:
    assert plan(("traceparent", bad), trace={"propagate": "w3c"}).trace is None


def test_trace_context_is_taken_over_only_when_asked_for() -> None:
    headers = (("traceparent", PARENT), ("tracestate", "v=1"), ("baggage", "tenant=acme;p=1, secret=x , tenant = b"))
    assert plan(*headers).trace is None
    assert plan(*headers, trace={"propagate": "w3c"}).trace == TraceContext(PARENT, "v=1")
    made = plan(*headers, trace={"propagate": "w3c", "baggage_allowlist": ["tenant"]})
    assert made.trace == TraceContext(PARENT, "v=1", {"tenant": "b"})
    assert made.changed_something


@pytest.mark.parametrize(
    ("ordering", "key", "expected"),
    [
        ("per_key", "k1", "key:k1"),
        ("per_key", "", ""),
        ("global", "k1", "all"),
        ("global", "", "all"),
        ("none", "k1", ""),
        ("per_key", "k" * 600, "sha256:" + hashlib.sha256(b"key:" + b"k" * 600).hexdigest()),
    ],
)
def test_the_ordering_says_which_runs_take_turns(ordering: str, key: str, expected: str) -> None:
    plan = resolve(subscription(spool={"ordering": ordering}), receive("kafka", "1", b"{}", [], ordering_key=key))
    assert plan.run_order == expected


def test_a_lane_is_a_header_else_a_field_else_the_key_of_the_source() -> None:
    lanes = subscription(spool={"ordering_key": "device_id"})

    def lane(body: bytes, *headers: tuple[str, str]) -> str:
        return resolve(lanes, receive("kafka", "1", body, headers, ordering_key="p0")).ordering_key

    assert lane(b'{"device_id": "b"}', ("Device_Id", "a")) == "a"
    assert lane(b'{"device_id": "b"}') == "b"
    assert lane(b'{"device_id": 7}') == "7"
    assert lane(b'{"device_id": true}') == "p0"
    assert lane(b"[]") == "p0"


@given(st.lists(st.tuples(NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=9)), max_size=5))
def test_a_plan_comes_back_from_json_as_it_was(headers: list[tuple[str, str]]) -> None:
    made = plan(
        *headers, ("traceparent", PARENT), body=b'{"n": [1]}', trace={"propagate": "w3c"}, dedup={"enabled": True}
    )
    assert Plan.from_json(made.to_json()) == made
