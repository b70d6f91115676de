"""`kind: Playbook`: reads a document into steps, and reports all of its problems before it runs."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tape.base.retry import RetryPolicy
from tape.cel.expression import Expression, compile_expression
from tape.documents.document import Document, Fields, Node
from tape.documents.fields import fields_of
from tape.documents.reader import key_at, read_fields
from tape.errors import InvalidPredicate
from tape.playbooks.inputs import Input, inputs_of_spec
from tape.playbooks.spec import NAME_RULE, NextSpec, PlaybookSpec, RetrySpec, StepSpec
from tape.playbooks.templates import Render, compile_value, expression_of
from tape.playbooks.tools import TOOLS

END = "end"
START = "start"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Names that every expression can use: the payload, the fields that a subscription adds, and the run.
GIVEN = frozenset(
    {"input", "workload", "run", "message", "subscription", "source", "body", "idempotency_key", "content_type"}
)
_WORDS = frozenset({"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"})
_RESERVED = _WORDS | {"import", "let", "loop", "package", "namespace", "return", "var", "void", "while", END}


class NextStep(msgspec.Struct, frozen=True):
    """A next step, taken if its condition holds."""

    step: str
    when: Expression | None = None


class PlaybookStep(msgspec.Struct, frozen=True):
    """One step: a tool with its configuration, and how it is run."""

    name: str
    kind: str
    config: dict[str, Any]
    render: Render
    when: Expression | None = None
    each: Expression | None = None
    item_name: str = "item"
    concurrency: int = 1
    retry: RetryPolicy = RetryPolicy(max_attempts=1)
    timeout_s: float = 0.0
    is_optional: bool = False
    downstream: str = ""
    # None: its tool says it.
    idempotent: bool | None = None
    next: tuple[NextStep, ...] = ()


class Playbook(msgspec.Struct, frozen=True):
    """A playbook: steps of a YAML document, or a Python function (`python`, as `module:function`)."""

    path: str
    inputs: tuple[Input, ...] = ()
    workload: dict[str, Any] = {}
    pool: str = ""
    python: str = ""
    description: str = ""
    steps: dict[str, PlaybookStep] = {}
    first: str = ""
    output: Render | None = None
    # Of a Python function; the steps of a workflow say it themselves.
    idempotent: bool = False


def read_playbook(document: Document) -> Playbook:
    """The playbook of a document. Problems are recorded there; `document.check()` raises them."""
    fields = document.fields(*fields_of(PlaybookSpec))
    spec = read_fields(document.root, PlaybookSpec)
    inputs = inputs_of_spec(fields.at("inputs"), spec.inputs)
    description = _description(document)
    if "python" in fields:
        for other in ("workflow", "output"):
            if other in fields:
                fields.at(other).wrong("cannot stand beside python; the function is the whole playbook")
        return Playbook(
            document.path, inputs, spec.workload, spec.pool, spec.python, description, idempotent=spec.idempotent
        )
    if "idempotent" in fields:
        fields.at("idempotent").wrong("is for python; say it of each step of a workflow")
    if "workflow" not in fields:
        fields.at("workflow").wrong("is missing; a playbook has steps under workflow, or python: module:function")
        return Playbook(document.path, inputs, spec.workload, spec.pool)
    return _WorkflowReader(document, spec, inputs).read(description)


def _description(document: Document) -> str:
    metadata = document.value.get("metadata")
    return str(metadata.get("description") or "") if isinstance(metadata, dict) else ""


class _WorkflowReader:
    """Checks and compiles the steps of one document. The reader has recorded values of a wrong type already."""

    def __init__(self, document: Document, spec: PlaybookSpec, inputs: tuple[Input, ...]) -> None:
        self._path = document.path
        self._root = document.root
        self._spec = spec
        self._inputs = inputs
        self._nodes = _mappings(key_at(self._root, "workflow"))
        self._step_names = [name for node in self._nodes if isinstance(name := node.value.get("step"), str)]
        # Without any `next`, steps follow each other from top to bottom.
        self._has_next = any("next" in node.value for node in self._nodes)
        self._names = frozenset({*GIVEN, *(each.name for each in inputs), *spec.workload, *self._step_names})

    def read(self, description: str) -> Playbook:
        steps: dict[str, PlaybookStep] = {}
        workflow = key_at(self._root, "workflow")
        if workflow.value == []:
            workflow.wrong("has no steps; give it at least one")
        for index, (node, spec) in enumerate(zip(self._nodes, self._spec.workflow, strict=False)):
            step = self._step(node, spec, self._following(index))
            if step.name in steps:
                key_at(node, "step").wrong("names two steps; every step needs a name of its own")
            steps[step.name] = step
        first = START if START in steps else next(iter(steps), "")
        self._check_reach(steps, first)
        output = None
        if "output" in self._root.value:
            output = self._template(key_at(self._root, "output"), self._names)
        whole = self._spec
        return Playbook(self._path, self._inputs, whole.workload, whole.pool, "", description, steps, first, output)

    def _following(self, index: int) -> tuple[NextStep, ...]:
        if self._has_next or index + 1 >= len(self._step_names):
            return ()
        return (NextStep(self._step_names[index + 1]),)

    def _step(self, node: Node, spec: StepSpec, following: tuple[NextStep, ...]) -> PlaybookStep:
        self._check_name(key_at(node, "step"), spec.step)
        has_each = "each" in node.value
        for key in ("as", "concurrency"):
            if key in node.value and not has_each:
                key_at(node, key).wrong("needs each, the list to go through")
        names = self._names | {spec.as_, "index"} if has_each else self._names
        if has_each and (not _NAME.fullmatch(spec.as_) or spec.as_ in _RESERVED or spec.as_ in self._names):
            key_at(node, "as").wrong("must be a name that nothing else in the playbook has")
        kind, config, render = self._tool(key_at(node, "tool"), names)
        return PlaybookStep(
            spec.step,
            kind,
            config,
            render,
            when=self._expression(node, "when"),
            each=self._expression(node, "each"),
            item_name=spec.as_,
            concurrency=spec.concurrency,
            retry=_retry_policy(spec.retry),
            timeout_s=spec.timeout_s,
            is_optional=spec.on_error == "continue",
            downstream=spec.downstream,
            idempotent=spec.idempotent,
            next=self._next_steps(key_at(node, "next"), spec) if "next" in node.value else following,
        )

    def _check_name(self, node: Node, name: str) -> None:
        if name in _RESERVED:
            node.wrong(NAME_RULE)
        elif name in GIVEN or name in self._spec.workload or any(name == each.name for each in self._inputs):
            node.wrong("is the name of an input; expressions need different names for the two")

    def _tool(self, node: Node, names: frozenset[str]) -> tuple[str, dict[str, Any], Render]:
        if not isinstance(node.value, dict):
            return "", {}, lambda _: {}
        fields = Fields(node, is_given=True)
        kind = fields.choice("kind", sorted(TOOLS))
        if kind and fields.value("kind") == kind:
            TOOLS[kind].check(fields)
        config = {key: value for key, value in node.value.items() if key != "kind"}
        return kind, config, self._template(Node(node.document, config, node.path), names)

    def _next_steps(self, node: Node, spec: StepSpec) -> tuple[NextStep, ...]:
        if isinstance(spec.next, str):
            return (self._next_step(node, spec.next, None),)
        found: list[NextStep] = []
        for item, declared in zip(_items(node), spec.next, strict=False):
            if found and found[-1].when is None:
                item.wrong("is never reached: the one before it has no when and is always taken")
            if isinstance(declared, NextSpec):
                when = self._expression(item, "when") if isinstance(item.value, dict) else None
                target = Node(item.document, declared.step, (*item.path, "step"))
                found.append(self._next_step(target, declared.step, when))
            else:
                found.append(self._next_step(item, declared, None))
        return tuple(found)

    def _next_step(self, node: Node, name: str, when: Expression | None) -> NextStep:
        if name and name != END:
            node.choice([*self._step_names, END])
        return NextStep(name, when)

    def _check_reach(self, steps: dict[str, PlaybookStep], first: str) -> None:
        reached = {first, END}
        pending = [first] if first in steps else []
        while pending:
            for following in steps[pending.pop()].next:
                if following.step not in reached and following.step in steps:
                    reached.add(following.step)
                    pending.append(following.step)
        for node in self._nodes:
            name = node.value.get("step")
            if isinstance(name, str) and name in steps and name not in reached:
                key_at(node, "step").wrong(
                    "is never reached: once a playbook has a next, every step is named by one, except the first"
                )

    def _expression(self, node: Node, key: str) -> Expression | None:
        value = node.value.get(key)
        if isinstance(value, bool):
            return compile_expression(str(value).lower(), self._names)
        text = expression_of(value) if isinstance(value, str) else ""
        try:
            return compile_expression(text, self._names) if text else None
        except InvalidPredicate as error:
            key_at(node, key).wrong(f"is no expression: {error.reason}")
            return None

    def _template(self, node: Node, names: frozenset[str]) -> Render:
        """A function that renders a value. Each text that does not compile is a problem at its own path."""
        if isinstance(node.value, dict):
            parts = {key: self._template(key_at(node, key), names) for key in node.value}
            return lambda scope: {key: render(scope) for key, render in parts.items()}
        if isinstance(node.value, list):
            items = [self._template(item, names) for item in node.items()]
            return lambda scope: [render(scope) for render in items]
        try:
            return compile_value(node.value, names)
        except InvalidPredicate as error:
            node.wrong(f"has a template that is no expression: {error.reason}")
            return lambda _: None


def _items(node: Node) -> list[Node]:
    return node.items() if isinstance(node.value, list) else []


def _mappings(node: Node) -> list[Node]:
    """The items of a list; an item of another type as an empty mapping, so that its step can be checked."""
    return [item if isinstance(item.value, dict) else Node(item.document, {}, item.path) for item in _items(node)]


def _retry_policy(retry: int | RetrySpec) -> RetryPolicy:
    if isinstance(retry, int):
        return RetryPolicy(max_attempts=retry)
    return RetryPolicy(
        max_attempts=retry.attempts,
        initial_interval_s=retry.delay_s,
        backoff_coefficient=retry.factor,
        max_interval_s=retry.max_delay_s,
    )
