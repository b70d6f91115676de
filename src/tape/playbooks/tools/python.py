"""`kind: python`: calls a function that was declared with `@tape.function`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tape.documents.document import Fields
from tape.errors import RunInterrupted
from tape.playbooks import functions
from tape.playbooks.spec import Text
from tape.playbooks.tools.tool import ToolCall, read_config


class PythonFields(msgspec.Struct, kw_only=True):
    """Calls a function declared with @tape.function."""

    function: Annotated[Text, Meta(description="Name of the function.")]
    args: Annotated[dict[str, Any], Meta(description="Its arguments by name.")] = {}


class PythonTool:
    """Calls `function` with `args`; what it returns is the result."""

    declaration: ClassVar[type[msgspec.Struct]] = PythonFields

    def check(self, fields: Fields) -> None:
        """Check the declared fields."""
        read_config(fields, PythonFields)

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
