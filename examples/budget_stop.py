"""A budget: an agent that would go on for ever stops before it spends more than it may.

python examples/budget_stop.py
"""

import os
from typing import Any

import tape

URL = os.environ.get("TAPE_URL", tape.DEFAULT_URL)
USD_PER_QUESTION = 0.40


@tape.effect
def search(question: str) -> dict[str, Any]:
    """Stands for something that costs money each time."""
    print(f"searching: {question}")
    return {"found": 0}


def main() -> None:
    budget = tape.Budget(usd_cap=1.00)
    try:
        with tape.durable_run("research", url=URL, budget=budget) as run:
            attempt = 0
            while True:  # it never finds what it looks for
                attempt += 1
                run.admit(usd=USD_PER_QUESTION)
                search(f"attempt {attempt}")
                run.charge(usd=USD_PER_QUESTION, tokens=1_000)
    except tape.BudgetExceeded as stop:
        print(stop)


if __name__ == "__main__":
    main()
