"""`kind: playbook`: another playbook, as a part of this run or as an execution of its own."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tape.documents.document import Fields
from tape.errors import StepRefused
from tape.playbooks.pools import POOL_PATTERN, POOL_RULE, is_pool
from tape.playbooks.spec import Text
from tape.playbooks.templates import is_template
from tape.playbooks.tools.tool import ToolCall, read_config


class PlaybookFields(msgspec.Struct, kw_only=True):
    """Runs another playbook."""

    path: Annotated[Text, Meta(description="Path of the playbook.")]
    payload: Annotated[
        Any, Meta(description="Its payload: a mapping or a template.", extra={"schema": {"type": ["object", "string"]}})
    ] = None
    wait: Annotated[bool, Meta(description="Run it as part of this run, and wait for its output.")] = True
    pool: Annotated[
        str,
        Meta(
            description="Pool of the new run, with `wait: false`.",
            extra={"schema": {"type": "string", "pattern": f"^({POOL_PATTERN}|.*\\{{\\{{.*)$"}},
        ),
    ] = ""


class PlaybookTool:
    """Runs the playbook `path` with `payload`.

    With `wait` (the default) it runs in this step, on the same worker, and its output is the result. Without it, a new
    execution starts on its pool, and the result has its `execution_id`.
    """

    declaration: ClassVar[type[msgspec.Struct]] = PlaybookFields

    def check(self, fields: Fields) -> None:
        """Check the declared fields; a pool needs `wait: false`."""
        config = read_config(fields, PlaybookFields)
        if "payload" in fields and not is_template(config.payload):
            fields.section("payload")
        pool = config.pool
        if pool and config.wait:
            fields.at("pool").wrong("needs wait: false; a playbook that is waited for runs in the same worker")
        if pool and not is_template(pool) and not is_pool(pool):
            fields.at("pool").wrong(POOL_RULE)

    def is_idempotent(self, config: dict[str, Any]) -> bool:
        """Whether it only starts an execution, which it does once for its key."""
        return not config.get("wait", True)

    async def call(self, call: ToolCall) -> Any:
        """Run the other playbook, or start it."""
        # Which runs which: a runner has tools, and this tool has a runner.
        from tape.playbooks.runner import MAX_DEPTH, run_playbook

        path, payload = call.config["path"], call.config.get("payload") or {}
        if not call.config.get("wait", True):
            return {"execution_id": await call.host.start(path, payload, call.config.get("pool", ""), call.key)}
        prefix = call.key.removeprefix(f"{call.run.id}/") + "/"
        if prefix.count("/") > MAX_DEPTH:
            raise StepRefused(f"{path} would be the {MAX_DEPTH + 1}th playbook within another; does it call itself?")
        return await run_playbook(await call.host.load(path), payload, call.run, call.host, prefix=prefix)
