"""`kind: value`: a step that computes. `value` is its result, with every template in it filled in."""

from __future__ import annotations

from typing import Any

from tape.documents.document import Fields
from tape.playbooks.tools.tool import ToolCall


class ValueTool:
    """Gives what stands under `value`."""

    def check(self, fields: Fields) -> None:
        """`value` can be anything, and must be there."""
        if "value" not in fields:
            fields.text("value")
        fields.node.mapping("kind", "value")

    async def call(self, call: ToolCall) -> Any:
        """The value, rendered."""
        return call.config["value"]
