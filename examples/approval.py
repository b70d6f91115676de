"""A human in the loop: the run parks at a gate, no process waits, and the answer carries it on.

python examples/approval.py                         # parks
tape inbox                                          # shows the question
tape signal release --app payments --user ann --session november --resolution '{"approved": true, "by": "ann"}'
python examples/approval.py                         # goes on

Without an answer the server rejects after two hours; reactions can act on the entry that it writes after 30 minutes.
"""

import os
from typing import Any

import tape

URL = os.environ.get("TAPE_URL", tape.DEFAULT_URL)


@tape.effect
def pay(invoice: str, amount: int, tool_context: Any = None) -> str:
    print(f"paid {amount:,} for {invoice}")
    return "paid"


def main() -> None:
    try:
        with tape.durable_run("payments", user_id="ann", session_id="november", invocation_id="invoice-7", url=URL):
            answer = tape.gate(
                "release",
                risk="irreversible",
                payload={"invoice": "invoice-7", "amount": 12_000},
                timeout="2h",
                on_timeout="reject",
                remind_after="30m",
            )
            if answer.get("approved"):
                print(f"approved by {answer['by']}")
                pay("invoice-7", 12_000)
            else:
                print("not approved; nothing is paid")
    except tape.RunParked as parked:
        print(parked)


if __name__ == "__main__":
    main()
