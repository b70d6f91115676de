"""`kind: Playbook`: steps, the arrows between them, and whatever is wrong with them, found before they run."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tape.base.retry import RetryPolicy
from tape.cel.expression import Expression, compile_expression
from tape.documents.document import Document, Fields, Node
from tape.errors import InvalidPredicate
from tape.playbooks.inputs import Input, read_inputs
from tape.playbooks.pools import POOL_RULE, is_pool
from tape.playbooks.templates import Render, compile_value, expression_of
from tape.playbooks.tools import TOOLS

END = "end"
START = "start"
MAX_CONCURRENCY = 256

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

# What every expression can name: the payload as a whole, what a subscription puts into it, and the run itself.
GIVEN = frozenset(
    {"input", "workload", "run", "message", "subscription", "source", "body", "idempotency_key", "content_type"}
)
_WORDS = frozenset({"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"})
_RESERVED = _WORDS | {"import", "let", "loop", "package", "namespace", "return", "var", "void", "while", END}


class NextStep(msgspec.Struct, frozen=True):
    """Where to go next, if its condition holds."""

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


def read_playbook(document: Document) -> Playbook:
    """The playbook of a document. What is wrong is noted there; `document.check()` raises it."""
    fields = document.fields("inputs", "workload", "pool", "workflow", "python", "output")
    inputs = read_inputs(fields.section("inputs"))
    workload = fields.section("workload").node.value
    pool = fields.text("pool", "")
    if pool and not is_pool(pool):
        fields.at("pool").wrong(POOL_RULE)
    if "python" in fields:
        return Playbook(document.path, inputs, workload, pool, _function(fields), _description(document))
    if "workflow" not in fields:
        fields.at("workflow").wrong("is missing; a playbook has steps under workflow, or python: module:function")
        return Playbook(document.path, inputs, workload, pool)
    return _Workflow(fields, inputs, workload).read(document.path, pool, _description(document))


def _function(fields: Fields) -> str:
    node = fields.text("python")
    if node and not _IMPORT_PATH.fullmatch(node):
        fields.at("python").wrong("must look like my_module:my_function")
    for other in ("workflow", "output"):
        if other in fields:
            fields.at(other).wrong("cannot stand beside python; the function is the whole playbook")
    return node


def _description(document: Document) -> str:
    metadata = document.value.get("metadata")
    return str(metadata.get("description") or "") if isinstance(metadata, dict) else ""


class _Workflow:
    """Reads the steps of one document."""

    def __init__(self, fields: Fields, inputs: tuple[Input, ...], workload: dict[str, Any]) -> None:
        self._fields = fields
        self._inputs = inputs
        self._workload = workload
        self._step_nodes = fields.items("workflow", required=True)
        self._step_names = [
            node.value["step"]
            for node in self._step_nodes
            if isinstance(node.value, dict) and isinstance(node.value.get("step"), str)
        ]
        # Without a single arrow, steps follow each other from top to bottom.
        self._has_arrows = any(isinstance(node.value, dict) and "next" in node.value for node in self._step_nodes)
        self._names = frozenset({*GIVEN, *(each.name for each in inputs), *workload, *self._step_names})

    def read(self, path: str, pool: str, description: str) -> Playbook:
        steps: dict[str, PlaybookStep] = {}
        if not self._step_nodes and isinstance(self._fields.node.value.get("workflow"), list):
            self._fields.at("workflow").wrong("has no steps; give it at least one")
        for index, node in enumerate(self._step_nodes):
            step = self._step(node, self._following(index))
            if step.name in steps:
                node.mapping().at("step").wrong("names two steps; every step needs a name of its own")
            steps[step.name] = step
        first = START if START in steps else next(iter(steps), "")
        self._check_reach(steps, first)
        output = self._template(self._fields.at("output"), self._names) if "output" in self._fields else None
        return Playbook(path, self._inputs, self._workload, pool, "", description, steps, first, output)

    def _following(self, index: int) -> tuple[NextStep, ...]:
        if self._has_arrows or index + 1 >= len(self._step_names):
            return ()
        return (NextStep(self._step_names[index + 1]),)

    def _step(self, node: Node, following: tuple[NextStep, ...]) -> PlaybookStep:
        fields = node.mapping(
            *("step", "description", "tool", "when", "each", "as", "concurrency"),
            *("retry", "timeout_s", "on_error", "next"),
        )
        name = fields.text("step")
        self._check_name(fields, name)
        item_name = fields.text("as", "item")
        has_each = "each" in fields
        for key in ("as", "concurrency"):
            if key in fields and not has_each:
                fields.at(key).wrong("needs each, the list to go through")
        names = self._names | {item_name, "index"} if has_each else self._names
        if has_each and (not _NAME.fullmatch(item_name) or item_name in _RESERVED or item_name in self._names):
            fields.at("as").wrong("must be a name that nothing else in the playbook has")
        kind, config, render = self._tool(fields, names)
        return PlaybookStep(
            name,
            kind,
            config,
            render,
            when=self._expression(fields, "when", self._names),
            each=self._expression(fields, "each", self._names),
            item_name=item_name,
            concurrency=fields.whole("concurrency", 1, least=1, most=MAX_CONCURRENCY),
            retry=_retry(fields),
            timeout_s=fields.number("timeout_s", 0.0),
            is_optional=fields.choice("on_error", ("fail", "continue"), "fail") == "continue",
            next=self._arrows(fields.at("next")) if "next" in fields else following,
        )

    def _check_name(self, fields: Fields, name: str) -> None:
        if not name:
            return
        if not _NAME.fullmatch(name) or name in _RESERVED:
            fields.at("step").wrong(
                "must be letters, digits and _, so that expressions can name it, and no word of CEL"
            )
        elif name in GIVEN or name in self._workload or any(name == each.name for each in self._inputs):
            fields.at("step").wrong("is the name of an input; expressions could not tell the two apart")

    def _tool(self, fields: Fields, names: frozenset[str]) -> tuple[str, dict[str, Any], Render]:
        tool = fields.section("tool", required=True)
        node = tool.node
        kind = tool.choice("kind", sorted(TOOLS)) if tool.is_given else ""
        if kind and tool.value("kind") == kind:
            TOOLS[kind].check(tool)
        config = {key: value for key, value in node.value.items() if key != "kind"}
        return kind, config, self._template(Node(node.document, config, node.path), names)

    def _arrows(self, node: Node) -> tuple[NextStep, ...]:
        if isinstance(node.value, str):
            return self._arrow_to(node, node.value, None)
        arrows: tuple[NextStep, ...] = ()
        for item in node.items():
            if arrows and arrows[-1].when is None:
                item.wrong("is never reached: the one before it has no when and is always taken")
            if isinstance(item.value, str):
                arrows += self._arrow_to(item, item.value, None)
                continue
            fields = item.mapping("step", "when")
            arrows += self._arrow_to(
                fields.at("step"), fields.text("step"), self._expression(fields, "when", self._names)
            )
        return arrows

    def _arrow_to(self, node: Node, name: str, when: Expression | None) -> tuple[NextStep, ...]:
        if name and name != END:
            node = Node(node.document, name, node.path)
            node.choice([*self._step_names, END])
        return (NextStep(name, when),)

    def _check_reach(self, steps: dict[str, PlaybookStep], first: str) -> None:
        reached = {first, END}
        waiting = [first] if first in steps else []
        while waiting:
            for arrow in steps[waiting.pop()].next:
                if arrow.step not in reached and arrow.step in steps:
                    reached.add(arrow.step)
                    waiting.append(arrow.step)
        for node in self._step_nodes:
            if isinstance(node.value, dict) and (name := node.value.get("step")) in steps and name not in reached:
                node.mapping().at("step").wrong(
                    "is never reached: once a playbook has a next, every step is named by one, except the first"
                )

    def _expression(self, fields: Fields, key: str, names: frozenset[str]) -> Expression | None:
        if key not in fields:
            return None
        node = fields.at(key)
        if isinstance(node.value, bool):
            return compile_expression(str(node.value).lower(), names)
        text = expression_of(node.text())
        try:
            return compile_expression(text, names) if text else None
        except InvalidPredicate as error:
            node.wrong(f"is no expression: {error.reason}")
            return None

    def _template(self, node: Node, names: frozenset[str]) -> Render:
        """What renders a value; each text that does not compile is a problem of its own place."""
        if isinstance(node.value, dict):
            fields = node.mapping()
            parts = {key: self._template(fields.at(key), names) for key in node.value}
            return lambda scope: {key: render(scope) for key, render in parts.items()}
        if isinstance(node.value, list):
            items = [self._template(item, names) for item in node.items()]
            return lambda scope: [render(scope) for render in items]
        try:
            return compile_value(node.value, names)
        except InvalidPredicate as error:
            node.wrong(f"has a template that is no expression: {error.reason}")
            return lambda _: None


def _retry(fields: Fields) -> RetryPolicy:
    if "retry" not in fields:
        return RetryPolicy(max_attempts=1)
    if isinstance(fields.at("retry").value, int):
        return RetryPolicy(max_attempts=fields.whole("retry", least=1, most=1_000))
    retry = fields.section("retry", "attempts", "delay_s", "factor", "max_delay_s")
    return RetryPolicy(
        max_attempts=retry.whole("attempts", 3, least=1, most=1_000),
        initial_interval_s=retry.number("delay_s", 1.0),
        backoff_coefficient=retry.number("factor", 2.0, least=1.0),
        max_interval_s=retry.number("max_delay_s", 60.0),
    )
