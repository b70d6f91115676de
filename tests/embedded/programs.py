"""Programs of processes that use a store without a server; the store and what they do is in the environment."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import tape
from tape import TapeClient


def say(*values: object) -> None:
    """Print a line at once."""
    sys.stdout.write(" ".join(map(str, values)) + "\n")
    sys.stdout.flush()


def store() -> str:
    """The URL of the store."""
    return os.environ["STORE"]


@tape.effect
def charge(amount: int) -> dict[str, Any]:
    """An effect that leaves a line in a file each time it is performed."""
    with Path(os.environ["CHARGES"]).open("a") as file:
        file.write(f"{amount}\n")
    return {"charged": amount}


@tape.effect
def ship(order: str) -> dict[str, Any]:
    """An effect that dies in the middle where it is asked to."""
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"shipped": order}


def agent() -> None:
    """A durable run: two effects, a gate between them if GATE is set."""
    with tape.durable_run("shop", invocation_id="order-1", url=os.environ.get("URL") or store()) as run:
        amount = run.decide(lambda: 7)
        charge(amount)
        if os.environ.get("GATE"):
            say("answer", tape.gate("approve"))
        say(ship("order-1"), "resumed" if run.resumed else "new")


def holder() -> None:
    """Has the store open until it is killed."""
    with TapeClient(store()) as client:
        say("open at", client.head().global_seq)
        signal.pause()


def leaver() -> None:
    """Ends without closing its client."""
    client = TapeClient(store())
    for number in range(20):
        client.append("/tape/note/made/1", {"number": number})
    say(client.head().global_seq)


def forker() -> None:
    """Forks a child that outlives it, and is killed."""
    client = TapeClient(store())
    client.head()
    if (child := os.fork()) == 0:
        os.close(1)
        signal.pause()
    say(child)
    os.kill(os.getpid(), signal.SIGKILL)


def forked_client() -> None:
    """Uses a client in a forked process, then makes one of its own there."""
    client = TapeClient(store())
    client.head()
    if os.fork() == 0:
        for use in (client.head, lambda: TapeClient(store()).head()):
            try:
                use()
            except tape.TapeError as error:
                say(type(error).__name__, error)
        client.close()
        os._exit(0)
    os.wait()
    say("parent", client.head().global_seq)
    client.close()
