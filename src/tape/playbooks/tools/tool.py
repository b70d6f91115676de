"""What a tool has to be: it checks what a step configures, and carries it out."""

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
    """One step as a tool carries it out.

    `config` is what stands below `tool`, rendered. `key` is the same whenever the step is tried again, also by another
    worker: give it to the other side, so that it acts once. `host` is where the playbook runs.
    """

    config: dict[str, Any]
    run: RunInfo
    step: str
    key: str
    host: Host


class Tool(Protocol):
    """A kind of tool. Its result is anything that JSON can say, and is what later steps see as `<step>`."""

    def check(self, fields: Fields) -> None:
        """Note what is wrong with the configuration of a step, unknown keys included; texts may be templates."""

    async def call(self, call: ToolCall) -> Any:
        """Carry a step out. An exception is a failed attempt, and `retry` of the step says whether there is another;
        after a StepRefused there is none."""


@runtime_checkable
class DeclaredTool(Protocol):
    """A tool whose fields are declared: its JSON Schema is made from `declaration`."""

    declaration: ClassVar[type[msgspec.Struct]]


def read_config(fields: Fields, declaration: type[B]) -> B:
    """The fields below `tool` by their declaration; problems are recorded, unknown keys included."""
    fields.node.mapping("kind", *fields_of(declaration))
    return read_fields(fields.node, declaration)
