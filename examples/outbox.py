"""A bank that knows no idempotency keys: sent by the outbox, whose dispatcher never sends anything blindly twice.

python examples/outbox.py
"""

import os
from typing import Any

import tape
from tape.connectors import register
from tape.connectors.local import LocalConnector
from tape.reactors.outbox import outbox_dispatch_once

URL = os.environ.get("TAPE_URL", tape.DEFAULT_URL)
BOOK: dict[str, int] = {}


def send(invoice: str, cents: int) -> dict[str, Any]:
    print(f"bank: {cents / 100:,.2f} for {invoice}")
    BOOK[invoice] = cents
    return {"booked": cents}


def look(business_key: str) -> dict[str, Any] | bool:
    """What the dispatcher asks if an earlier one died: was it booked?"""
    return {"booked": BOOK[business_key]} if business_key in BOOK else False


register(LocalConnector("bank", send=send, look=look))


@tape.outbox_tool(connector="bank", business_key="{invoice}")
def wire(invoice: str, amount: float) -> dict[str, Any]:
    """Prepares the request; it is the dispatcher that acts."""
    return {"invoice": invoice, "cents": round(amount * 100)}


def main() -> None:
    invoice = os.environ.get("INVOICE", "inv-9")
    with tape.durable_run("payables", url=URL, scopes=["bank"]):
        print("queued:", wire(invoice, 99.50)["status"])

    # The dispatcher process (`tape-outbox`) does this.
    for report in outbox_dispatch_once(URL, connector="bank"):
        print("dispatched:", report["outcome"])

    # Another run that wants the same business gets the same outcome.
    with tape.durable_run("payables", url=URL, scopes=["bank"]):
        print("answer:", wire(invoice, 99.50))


if __name__ == "__main__":
    main()
