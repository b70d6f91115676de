"""An outbox dispatcher as a process, which can be held just before it sends: `python dispatcher.py TAPE BANK FOLDER`.

It says `claimed` in the folder when it has claimed an effect, and sends once there is a file `go`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from tape.connectors import DispatchResult, HttpConnector, register
from tape.reactors.outbox import run_outbox_dispatcher

tape_url, bank_url, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])


class Held(HttpConnector):
    """The bank, which waits until a test lets it continue."""

    def dispatch(self, effect: Any) -> DispatchResult:
        (folder / "claimed").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        return super().dispatch(effect)


if __name__ == "__main__":
    payments = f"{bank_url}/payments"
    register(Held("bank", payments, status_url=f"{payments}/{{idempotency_key}}"))
    run_outbox_dispatcher(tape_url, interval_s=0.05, lease_ttl_ms=6000)
