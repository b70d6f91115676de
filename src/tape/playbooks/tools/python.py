"""`kind: python`: calls a function that was declared with `@tape.function`."""

from __future__ import annotations

from typing import Any

from tape.documents.document import Fields
from tape.errors import RunInterrupted
from tape.playbooks import functions
from tape.playbooks.tools.tool import ToolCall


class PythonTool:
    """Calls `function` with `args`; what it returns is the result."""

    def check(self, fields: Fields) -> None:
        """A name and a mapping."""
        fields.node.mapping("kind", "function", "args")
        fields.text("function")
        fields.section("args")

    async def call(self, call: ToolCall) -> Any:
        """Call the function, within the step: effects that it declares are recorded below it."""
        name = call.config["function"]
        function = functions.declared_functions().get(name)
        if function is None:
            raise RunInterrupted(
                f"step {call.step!r} calls the function {name!r}, which this worker does not have: declare it with"
                " @tape.function and start the worker with --import and its module."
            )
        with call.host.within(call.key, call.step) as context:
            arguments = functions.bind(function, call.config.get("args") or {}, call.run, context)
            return await functions.call(function, arguments)
