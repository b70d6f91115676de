"""`kind: Playbook`: what is right, and everything that can be wrong, with its line."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from tape.documents.document import Document
from tape.documents.fields import fields_of
from tape.errors import InvalidDocument
from tape.playbooks.document import Playbook, read_playbook
from tape.playbooks.inputs import Input, schema_of
from tape.playbooks.pools import default_pool
from tape.playbooks.schema import playbook_schema
from tape.playbooks.spec import PlaybookSpec, StepSpec
from tape.playbooks.tools import TOOLS, DeclaredTool

HEAD = "kind: Playbook\nmetadata: {path: domain/one}\n"


def read(text: str) -> Playbook:
    document = Document(text)
    playbook = read_playbook(document)
    document.check()
    return playbook


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidDocument) as raised:
        read(text)
    return str(raised.value).splitlines()


GOOD = (
    HEAD
    + """\
inputs: {amount: {type: number, default: 5, description: how much}, id: string, extra: {required: false}}
workload: {factor: 2}
pool: iot
workflow:
  - step: start
    description: the first
    tool: {kind: value, value: "{{ amount * double(factor) }}"}
    retry: 3
    next:
      - {step: fan, when: start > 3.0}
      - end
  - step: fan
    each: "{{ input.items }}"
    as: thing
    concurrency: 4
    retry: {attempts: 5, delay_s: 0.5, factor: 3, max_delay_s: 10}
    timeout_s: 2
    on_error: continue
    tool: {kind: http, method: post, url: "http://x/{{ thing.id }}", json: {n: "{{ index }}"}, expect: [404]}
    next: last
  - step: last
    tool: {kind: publish, subject: /tape/x/y, payload: "{{ fan }}"}
output: {fan: "{{ fan }}"}
"""
)


def test_a_playbook_is_read_with_everything_it_says() -> None:
    playbook = read(GOOD)
    assert (playbook.pool, playbook.first, list(playbook.steps)) == ("iot", "start", ["start", "fan", "last"])
    start, fan = playbook.steps["start"], playbook.steps["fan"]
    assert ([arrow.step for arrow in start.next], start.retry.max_attempts) == (["fan", "end"], 3)
    assert (fan.item_name, fan.concurrency, fan.timeout_s, fan.is_optional) == ("thing", 4, 2.0, True)
    assert (fan.retry.max_attempts, fan.retry.delay(1) <= 0.55) == (5, True)


def test_without_arrows_steps_follow_each_other_and_with_one_they_do_not() -> None:
    step = "  - {step: %s, tool: {kind: value, value: 1}%s}\n"
    plain = read(HEAD + "workflow:\n" + "".join(step % (name, "") for name in "abc"))
    assert {name: [arrow.step for arrow in each.next] for name, each in plain.steps.items()} == {
        "a": ["b"],
        "b": ["c"],
        "c": [],
    }
    drawn = HEAD + "workflow:\n" + step % ("a", ", next: c") + step % ("b", "") + step % ("c", "")
    assert problems(drawn) == [
        "line 5, workflow[1].step: 'b' is never reached: once a playbook has a next, every step is named by one,"
        " except the first."
    ]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("{tool: {kind: value, value: 1}}", "workflow[0].step: is missing; it is required"),
        ("{step: a}", "workflow[0].tool: is missing"),
        ("{step: [1], tool: {kind: value, value: 1}}", "workflow[0].step: [1] must be a text"),
        ("{step: a-b, tool: {kind: value, value: 1}}", "'a-b' must be letters, digits and _"),
        ("{step: in, tool: {kind: value, value: 1}}", "'in' must be letters, digits and _"),
        ("{step: message, tool: {kind: value, value: 1}}", "'message' is the name of an input"),
        ("{step: a, tool: {kind: valu, value: 1}}", "did you mean 'value'?"),
        ("{step: a, tool: {kind: value}}", "workflow[0].tool.value: is missing"),
        ("{step: a, tool: {kind: value, value: 1, valeu: 2}}", "workflow[0].tool.valeu: is not a known key"),
        ("{step: a, tool: [1]}", "workflow[0].tool: [1] must be a mapping"),
        ("{step: a, too: {kind: value}}", "workflow[0].too: is not a known key; did you mean 'tool'?"),
        ("{step: a, tool: {kind: value, value: '{{ amont }}'}}", "unknown variable 'amont'; did you mean 'amount'?"),
        ("{step: a, tool: {kind: value, value: '{{ amount'}}", "the template is not closed"),
        ("{step: a, when: 'amount >', tool: {kind: value, value: 1}}", "workflow[0].when: 'amount >' is no expression"),
        ("{step: a, when: 5, tool: {kind: value, value: 1}}", "workflow[0].when: 5 must be a text"),
        ("{step: a, as: x, tool: {kind: value, value: 1}}", "workflow[0].as: 'x' needs each"),
        ("{step: a, concurrency: 3, tool: {kind: value, value: 1}}", "concurrency: 3 needs each"),
        (
            "{step: a, each: '[1]', as: amount, tool: {kind: value, value: 1}}",
            "'amount' must be a name that nothing else",
        ),
        ("{step: a, each: '[1]', concurrency: 0, tool: {kind: value, value: 1}}", "from 1 to 256"),
        ("{step: a, retry: 0, tool: {kind: value, value: 1}}", "workflow[0].retry: 0 must be a whole number"),
        ("{step: a, retry: {attemps: 2}, tool: {kind: value, value: 1}}", "did you mean 'attempts'?"),
        ("{step: a, on_error: ignore, tool: {kind: value, value: 1}}", "must be one of fail, continue"),
        ("{step: a, next: b, tool: {kind: value, value: 1}}", "workflow[0].next: 'b' must be one of a, end"),
        ("{step: a, next: [a, {step: end}], tool: {kind: value, value: 1}}", "is never reached: the one before it"),
        ("{step: a, next: [{step: a, if: x}], tool: {kind: value, value: 1}}", "next[0].if: is not a known key"),
        ("{step: a, tool: {kind: http, url: ftp://x}}", "must begin with http:// or https://"),
        ("{step: a, tool: {kind: http, url: 'http://x', method: PSOT}}", "did you mean 'POST'?"),
        ("{step: a, tool: {kind: http, url: 'http://x', json: 1, body: 2}}", "cannot stand beside json"),
        ("{step: a, tool: {kind: publish, subject: nowhere}}", "subject 'nowhere' must begin with"),
        ("{step: a, tool: {kind: playbook, path: x, pool: iot}}", "needs wait: false"),
        ("{step: a, tool: {kind: python, args: {}}}", "tool.function: is missing"),
    ],
)
def test_what_is_wrong_with_a_step_is_named(step: str, reason: str) -> None:
    found = problems(f"{HEAD}inputs: {{amount: number}}\nworkflow:\n  - {step}\n")
    assert any(reason in line for line in found), found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD, "workflow: is missing; a playbook has steps"),
        (HEAD + "workflow: []", "workflow: [] has no steps"),
        (HEAD + "workflow: {a: 1}", "must be a list"),
        (HEAD + "python: nowhere", "'nowhere' must look like my_module:my_function"),
        (HEAD + "python: a:b\nworkflow: []", "cannot stand beside python"),
        (HEAD + "python: a:b\npool: Not This", "must be lower-case letters"),
        (HEAD + "python: a:b\ninputs: {n: {type: integer, default: x}}", "inputs.n.default: 'x' is no integer"),
        (HEAD + "python: a:b\ninputs: {n: int}", "did you mean 'integer'?"),
        (HEAD + "workflow:\n" + "  - {step: a, tool: {kind: value, value: 1}}\n" * 2, "names two steps"),
    ],
)
def test_what_is_wrong_with_a_document_is_named(text: str, reason: str) -> None:
    assert any(reason in line for line in problems(text)), problems(text)


def test_paths_say_which_pool_is_meant() -> None:
    pools = [default_pool(path) for path in ("system/clean", "subscription/x", "systems/x", "system", "domain/x")]
    assert pools == ["system", "subscription", "shared", "shared", "shared"]


def test_inputs_are_a_json_schema_too() -> None:
    assert schema_of([Input("n", "integer", False, 5, "how many"), Input("x")]) == {
        "type": "object",
        "properties": {"n": {"type": "integer", "description": "how many", "default": 5}, "x": {}},
        "required": ["x"],
    }


def test_the_schema_for_editors_takes_what_the_validator_takes() -> None:
    validator: Any = jsonschema_rs.validator_for(playbook_schema())
    for text in (GOOD, HEAD + "python: a:b", HEAD + "workflow:\n  - {step: a, tool: {kind: value, value: 1}}"):
        assert not list(validator.iter_errors(Document(text).value))
    for text in (HEAD, HEAD + "python: a:b\nworkflow: []", HEAD + "workflow:\n  - {step: a, tool: {kind: value}}"):
        assert list(validator.iter_errors(Document(text).value))


def test_the_schema_has_exactly_the_declared_fields() -> None:
    schema = playbook_schema()
    assert set(schema["properties"]) == {"apiVersion", "kind", "metadata", *fields_of(PlaybookSpec)}
    step = schema["properties"]["workflow"]["items"]
    assert set(step["properties"]) == set(fields_of(StepSpec))
    tools = {each["properties"]["kind"]["const"]: each for each in step["properties"]["tool"]["oneOf"]}
    declared = {kind: tool.declaration for kind, tool in TOOLS.items() if isinstance(tool, DeclaredTool)}
    assert {*declared, "subscription"} == set(tools)
    for kind, declaration in declared.items():
        assert set(tools[kind]["properties"]) == {"kind", *fields_of(declaration)}
