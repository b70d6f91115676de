"""A treasury agent: it decides once how much idle cash to sweep, and the sweep happens once.

Run it twice: the second time there is nothing left to do.

    python examples/treasury.py
"""

import os
from typing import Any

import tape

URL = os.environ.get("TAPE_URL", tape.DEFAULT_URL)
DAY = os.environ.get("DAY", "2026-11-16")


def think() -> dict[str, Any]:
    """Stands for a model."""
    print("asking the model")
    return {"amount": 40_000, "why": "the balance is 50,000 and 10,000 are enough for today"}


@tape.effect(retry=tape.RetryPolicy(max_attempts=3, initial_interval_s=0.1))
def sweep(amount: int, tool_context: Any = None) -> dict[str, Any]:
    """Stands for the bank: give it the key, and it does the same thing once."""
    print(f"bank: move {amount:,} with key …{tape.idempotency_key(tool_context)[-26:]}")
    return {"reference": "T-1", "amount": amount}


def main() -> None:
    with tape.durable_run("treasury", user_id="ann", invocation_id=f"sweep-{DAY}", url=URL) as run:
        choice = run.decide(think, model="demo-1", rationale="idle cash")
        run.result = sweep(choice["amount"])
    if run.is_finished:
        print(f"nothing is left to do: swept {run.result['amount']:,} before")
    else:
        print(f"swept {run.result['amount']:,} as {run.result['reference']}")


if __name__ == "__main__":
    main()
