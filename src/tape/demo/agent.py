"""The agent of the demonstrations: `python -m tape.demo.agent URL FOLDER [--hang-after X | --lose-answer-of X]`.

It decides once how to distribute idle cash over three accounts, moves it, and prints each step.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import tape
from tape.demo.bank import Bank

APP = "treasury-demo"
PLAN = {"savings": 25_000, "bonds": 10_000, "reserve": 5_000}


def say(text: str) -> None:
    """Print a line and flush it."""
    print(text, flush=True)  # noqa: T201 - its output is what the demonstration shows


def plan() -> dict[str, int]:
    """Stands for a call to a model, which is slow, costly and not repeatable."""
    say("model: spread 40,000 over savings, bonds and reserve")
    return PLAN


def make_tools(bank: Bank, hang_after: str = "", lose_answer_of: str = "") -> Any:
    """Return the tool of the agent, which moves money; on request it hangs or loses the bank's response."""

    def look(idempotency_key: str) -> dict[str, Any] | bool:
        reference = bank.find(idempotency_key)
        return {"reference": reference} if reference else False

    @tape.effect(status_check=look)
    def transfer(account: str, amount: int, tool_context: Any = None) -> dict[str, Any]:
        reference = bank.transfer(tape.idempotency_key(tool_context), account, amount)
        say(f"bank:  {amount:,} to {account}, reference {reference}")
        if account == hang_after:
            say("agent: (has not confirmed the effect yet)")
            signal.pause()  # until it is killed
        if account == lose_answer_of:
            raise tape.AckLost("the connection to the bank broke after the request was sent")
        return {"reference": reference}

    return transfer


def run_agent(url: str, bank: Bank, *, hang_after: str = "", lose_answer_of: str = "") -> None:
    """Start or resume the run and finish it."""
    transfer = make_tools(bank, hang_after, lose_answer_of)
    with tape.durable_run(APP, invocation_id="monday", url=url, lease_ttl_ms=1_000, lease_wait_s=10) as run:
        say(f"agent: {'resumes' if run.resumed else 'starts'} run {run.run_id[:8]}")
        for account, amount in run.decide(plan, model="planner-1", rationale="idle cash").items():
            answer = transfer(account, amount)
            say(f"agent: {account} is done, {answer['reference']}")
    say("agent: finished")


def main() -> None:
    """Run the agent from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hang-after", default="")
    parser.add_argument("--lose-answer-of", default="")
    options = parser.parse_args()
    try:
        run_agent(
            options.url,
            Bank(options.folder),
            hang_after=options.hang_after,
            lose_answer_of=options.lose_answer_of,
        )
    except tape.EffectUnknown as error:
        say(f"agent: stops. {error}")


if __name__ == "__main__":
    main()
