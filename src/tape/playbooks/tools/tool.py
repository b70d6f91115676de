"""The port of tools: check the configuration of a step, and execute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import msgspec

from tape.documents.document import Fields
from tape.documents.fields import fields_of
from tape.documents.reader import read_fields
from tape.playbooks.host import Host, RunInfo

B = TypeVar("B", bound=msgspec.Struct)


@dataclass(frozen=True)
class ToolCall:
    """The call of a tool for one step.

    `config` is the rendered mapping below `tool`. `key` is the same for every attempt, also by another worker: send it
    as the idempotency key. `host` runs the playbook.
    """

    config: dict[str, Any]
    run: RunInfo
    step: str
    key: str
    host: Host


class Tool(Protocol):
    """A kind of tool. Its result is a JSON value, which later steps see as `<step>`."""

    def check(self, fields: Fields) -> None:
        """Record problems of a step's configuration, unknown keys included; texts may be templates."""

    async def call(self, call: ToolCall) -> Any:
        """Execute a step. An exception is a failed attempt; `retry` of the step decides about another. StepRefused is
        permanent."""


@runtime_checkable
class DeclaredTool(Protocol):
    """A tool whose fields are declared: its JSON Schema is made from `declaration`."""

    declaration: ClassVar[type[msgspec.Struct]]


@runtime_checkable
class IdempotentTool(Protocol):
    """A tool that can say of a call that it may run again without harm. A run that is kept as a summary does not record
    such a step."""

    def is_idempotent(self, config: dict[str, Any]) -> bool:
        """Whether a step with this rendered configuration is idempotent."""


def read_config(fields: Fields, declaration: type[B]) -> B:
    """The fields below `tool` by their declaration; problems are recorded, unknown keys included."""
    fields.node.mapping("kind", *fields_of(declaration))
    return read_fields(fields.node, declaration)
