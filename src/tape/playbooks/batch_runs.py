"""Runs one message of a batch on its own, after the batch has failed it, until its playbook has handled it."""

from __future__ import annotations

from typing import Any

from tape.errors import MessageRetry, NeverRetry
from tape.playbooks.batch_results import failed_messages
from tape.playbooks.document import Playbook
from tape.playbooks.host import Host, RunInfo
from tape.playbooks.runner import run_playbook


async def run_message(playbook: Playbook, payload: dict[str, Any], run: RunInfo, host: Host) -> Any:
    """Run a playbook for a batch of one message; its output. Raises MessageRetry or NeverRetry if that failed.

    The steps of each try are recorded apart: a recorded step is not repeated, and would give the same result for ever.
    That a try wants another one is recorded, too, so that the next attempt goes on with the next try.
    """
    number = 0
    while True:
        output = await run_playbook(playbook, payload, run, host, prefix=f"try{number}/" if number else "")
        failed = failed_messages(output, 1)
        if not failed:
            return output
        if failed[0].verdict == "dead_letter":
            raise NeverRetry(failed[0].reason or "the playbook gave no reason")
        is_new = False

        async def record() -> str:
            nonlocal is_new
            is_new = True
            return failed[0].reason  # noqa: B023  # awaited before the next round

        await host.perform(f"{run.id}/retry{number}", "retry", {}, record)
        if is_new:
            raise MessageRetry(failed[0].reason or "the playbook gave no reason")
        number += 1
