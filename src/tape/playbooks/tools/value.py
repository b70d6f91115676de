"""`kind: value`: the result is `value`, with its templates rendered."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tape.documents.document import Fields
from tape.playbooks.tools.tool import ToolCall, read_config


class ValueFields(msgspec.Struct, kw_only=True):
    """Computes a value."""

    value: Annotated[Any, Meta(description="The result; texts can be templates.")]


class ValueTool:
    """Returns `value`."""

    declaration: ClassVar[type[msgspec.Struct]] = ValueFields

    def check(self, fields: Fields) -> None:
        """Check the declared fields."""
        read_config(fields, ValueFields)

    def is_idempotent(self, config: dict[str, Any]) -> bool:
        """It has no side effect."""
        return True

    async def call(self, call: ToolCall) -> Any:
        """The value, rendered."""
        return call.config["value"]
