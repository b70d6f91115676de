"""What a tool has to be: it checks what a step configures, and carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tape.documents.document import Fields
from tape.playbooks.host import Host, RunInfo


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
