"""`kind: playbook`: another playbook, as a part of this run or as an execution of its own."""

from __future__ import annotations

from typing import Any

from tape.documents.document import Fields
from tape.errors import StepRefused
from tape.playbooks.pools import POOL_RULE, is_pool
from tape.playbooks.templates import is_template
from tape.playbooks.tools.tool import ToolCall


class PlaybookTool:
    """Runs the playbook `path` with `payload`.

    With `wait` (the default) it runs here, in the same place of the same worker, and its output is the result. Without,
    it is started on its pool, and the result has its `execution_id`.
    """

    def check(self, fields: Fields) -> None:
        """A path, and a pool only where nobody waits."""
        fields.node.mapping("kind", "path", "payload", "wait", "pool")
        fields.text("path")
        if not is_template(fields.value("payload")):
            fields.section("payload")
        waits = fields.flag("wait", True)
        pool = fields.text("pool", "")
        if pool and waits:
            fields.at("pool").wrong("needs wait: false; a playbook that is waited for runs in the same worker")
        if pool and not is_template(pool) and not is_pool(pool):
            fields.at("pool").wrong(POOL_RULE)

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
