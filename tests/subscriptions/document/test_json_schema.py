"""The JSON Schema and the validator agree on every document, except where a schema cannot know."""

from __future__ import annotations

import copy
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.documents.document import Document
from tape.documents.fields import fields_of
from tape.documents.yaml import load
from tape.errors import InvalidDocument, Problem
from tape.subscriptions.document.json_schema import subscription_schema
from tape.subscriptions.document.spec import SubscriptionSpec
from tape.subscriptions.document.validator import parse_subscription
from tests.subscriptions.documents import AMQP, DIRECTIVES, EXAMPLES, MQTT, NATS, SQS, WEBHOOK

SCHEMA = jsonschema.Draft202012Validator(subscription_schema())
# What no schema can say.
BEYOND = re.compile(
    "is not a cron expression|differs from limits.max_in_flight|is duplicated|is more than scaling.keda.max"
    "|may have # only"
)
BASES = [load(text)[0] for text in (*EXAMPLES.values(), NATS, WEBHOOK, MQTT, SQS, AMQP)]
for base in BASES:
    base["spec"].setdefault("headers", load(DIRECTIVES)[0]["headers"])


def problems(document: Any) -> list[Problem]:
    try:
        parse_subscription(msgspec.json.encode(document).decode())
    except InvalidDocument as error:
        return error.problems
    return []


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(subscription_schema())


@pytest.mark.parametrize("text", [*EXAMPLES.values(), NATS, WEBHOOK, MQTT, SQS, AMQP])
def test_every_example_fits_the_schema(text: str) -> None:
    assert list(SCHEMA.iter_errors(Document(text).value)) == []


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(path for key, each in inner for path in paths(each, (*before, key)))]


def names(block: type[msgspec.Struct] = SubscriptionSpec) -> set[str]:
    found: set[str] = set()
    for field in fields_of(block).values():
        found.update(field.names)
        shape = field.shape.item or field.shape
        if shape.block is not None:
            found |= names(shape.block)
    return found


def choices(block: type[msgspec.Struct] = SubscriptionSpec) -> set[str]:
    found: set[str] = set()
    for field in fields_of(block).values():
        shape = field.shape.item or field.shape
        found.update(shape.choices)
        if shape.block is not None:
            found |= choices(shape.block)
    return found


KEYS = st.sampled_from(sorted(names() | {"unknown", "path", "metadata"}))
VALUES = st.one_of(
    st.sampled_from(sorted(choices())),
    st.sampled_from(["", "x", "a,b", ",", "50Gi", "0", "12", "gs://b/p", "s3://b", "/ingress/x", "x/y z", "* * * * *"]),
    st.sampled_from(["mqtt://h", "amqps://h:1", "sensors/#/a"]),
    st.sampled_from(["https://h/p", "projects/p/subscriptions/s", "@hourly", "stripe-signature"]),
    st.integers(-2, 2_000),
    st.booleans(),
    st.none(),
    st.sampled_from([[], ["a"], [""], {}, {"a": "b"}, {"a": 1}, [{}]]),
    st.just([{"name": "db", "type": "tcp", "target": "h:1"}]),
    st.just([{"name": "db", "probe": "tcp"}]),
    st.just([{"header": "a", "controls": "priority", "map": {"x": "y"}}]),
    st.just([{"header": "a", "controls": "dispatch.execution_pool", "allowed": ["iot", "X"]}]),
)


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """A good document with a few changes: something removed, added, or replaced anywhere."""
    document = copy.deepcopy(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(0, 4))):
        inside = [path for path in paths(document) if len(path) > 1]
        if not inside:
            break
        path = draw(st.sampled_from(inside))
        holder: Any = document
        for step in path[:-1]:
            holder = holder[step]
        match draw(st.sampled_from(["remove", "replace", "add", "add"])):
            case "remove":
                del holder[path[-1]]
            case "replace":
                holder[path[-1]] = copy.deepcopy(draw(VALUES))
            case "add":
                target = holder[path[-1]] if isinstance(holder[path[-1]], dict) else document.get("spec")
                if isinstance(target, dict):
                    target[draw(KEYS)] = copy.deepcopy(draw(VALUES))
    return document


@settings(max_examples=150, deadline=None)
@given(documents())
def test_the_schema_accepts_exactly_what_the_validator_does(document: Any) -> None:
    found = problems(document)
    complaints = [f"{error.json_path}: {error.message}" for error in SCHEMA.iter_errors(document)]
    if not found:
        assert complaints == []
    elif any(not BEYOND.search(problem.message) for problem in found):
        assert complaints, found
