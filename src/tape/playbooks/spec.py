"""The fields of `kind: Playbook`: types, limits, descriptions and defaults.

The reader, the JSON Schema and the reference table in the docs are made from these declarations.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tape.playbooks.pools import POOL_PATTERN, POOL_RULE

MAX_CONCURRENCY = 256
MAX_RETRIES = 1_000

_NAME_SCHEMA = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
_TEXT_SCHEMA = {"type": "string"}

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
# A name that expressions can use. The reader reports reserved names with the same text.
NAME_RULE = "must be letters, digits and _, so that expressions can name it, and no word of CEL"
Name: TypeAlias = Annotated[
    str, Meta(pattern=_NAME_SCHEMA["pattern"], extra={"means": NAME_RULE, "schema": _NAME_SCHEMA})
]
StepName: TypeAlias = Annotated[str, Meta(extra={"schema": _NAME_SCHEMA})]
Expression: TypeAlias = Annotated[str | bool, Meta(extra={"form": "expression"})]
InputType: TypeAlias = Literal["string", "integer", "number", "boolean", "object", "array", "any"]


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input, written in full."""

    type: Annotated[InputType, Meta(description="Type, in the words of JSON Schema.")] = "any"
    default: Annotated[Any, Meta(description="Value if the payload has none.")] = None
    required: Annotated[bool, Meta(description="Whether it must be sent. Default: true without a `default`.")] = True
    description: Annotated[str, Meta(description="What it is for.", extra={"schema": _TEXT_SCHEMA})] = ""


class RetrySpec(msgspec.Struct, frozen=True, kw_only=True):
    """How often a step is tried, and the backoff between attempts."""

    attempts: Annotated[int, Meta(ge=1, le=MAX_RETRIES, description="Attempts in total.")] = 3
    delay_s: Annotated[float, Meta(ge=0.0, description="Seconds before the second attempt.")] = 1.0
    factor: Annotated[float, Meta(ge=1.0, description="Growth of the delay per attempt.")] = 2.0
    max_delay_s: Annotated[float, Meta(ge=0.0, description="Longest delay in seconds.")] = 60.0


class NextSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A next step with its condition."""

    step: Annotated[StepName, Meta(description="Name of the step, or `end`.")]
    when: Annotated[Expression, Meta(description="CEL condition. Default: always.")] = ""


class StepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a workflow."""

    step: Annotated[Name, Meta(description="Name; expressions see its result as `<step>`.")]
    description: Annotated[Any, Meta(description="For readers.", extra={"schema": _TEXT_SCHEMA})] = None
    tool: Annotated[dict[str, Any], Meta(description="`kind` and the keys of that kind.")]
    when: Annotated[Expression, Meta(description="CEL condition; if false the step is skipped.")] = ""
    each: Annotated[
        Expression,
        Meta(
            description="A CEL expression that gives a list: the step runs for each item.",
            extra={"form": "expression", "schema": {"type": "string"}},
        ),
    ] = ""
    as_: Annotated[StepName, Meta(description="Name of the item in expressions.")] = msgspec.field(
        default="item", name="as"
    )
    concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY, description="Items of `each` at the same time.")] = 1
    retry: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_RETRIES)] | RetrySpec,
        Meta(description="Number of attempts, or attempts and backoff. Default: 1 attempt."),
    ] = 1
    timeout_s: Annotated[float, Meta(ge=0.0, description="Limit of one attempt in seconds. Default: none.")] = 0.0
    on_error: Annotated[
        Literal["fail", "continue"], Meta(description="`continue`: the result is the error, and the run goes on.")
    ] = "fail"
    downstream: Annotated[
        Text, Meta(description="The subscription's downstream that it depends on. Default: that of the message.")
    ] = ""
    idempotent: Annotated[
        bool | None,
        Meta(
            description="Whether the step can run again without harm: a run kept as a summary does not record it."
            " Default: true for `value`, `http` with GET, HEAD, PUT or DELETE, and `playbook` with `wait: false`."
        ),
    ] = None
    next: Annotated[
        StepName | tuple[StepName | NextSpec, ...],
        Meta(description="The next step, or a list of which the first whose condition holds is taken."),
    ] = ()


class PlaybookSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a playbook beside `kind` and `metadata`."""

    inputs: Annotated[
        dict[str, InputType | InputSpec], Meta(description="Inputs by name: a type, or an input written in full.")
    ] = {}
    workload: Annotated[dict[str, Any], Meta(description="Defaults of inputs.")] = {}
    pool: Annotated[
        str, Meta(pattern=f"^{POOL_PATTERN}$", description="Pool of its runs.", extra={"means": POOL_RULE})
    ] = ""
    workflow: Annotated[tuple[StepSpec, ...], Meta(min_length=1, description="The steps.")] = ()
    output: Annotated[Any, Meta(description="The result. Default: the result of the last step.")] = None
    python: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
            description="A Python function as `module:function`, instead of a workflow.",
            extra={"means": "must look like my_module:my_function"},
        ),
    ] = ""
    idempotent: Annotated[
        bool,
        Meta(
            description="Whether a Python function can be called again without harm: a run of it that is kept as a"
            " summary has no lease and no row. With `python` only; a workflow says it of each step."
        ),
    ] = False
