"""Appends to UmaDB and reads it back; runs in the peers' environment: `fill|read URL ENTRIES`, the outcome as JSON."""

from __future__ import annotations

import json
import sys

from umadb import Client, Event

from bench.load import payload_text


def fill(client: Client, entries: int) -> None:
    """Append entries one by one, each acknowledged."""
    for number in range(1, entries + 1):
        event = Event(event_type="order", tags=["orders"], data=payload_text(number).encode())
        assert client.append([event]) == number


def read(client: Client) -> dict[str, object]:
    """Everything that it gives, the error that ends it, and the number of one more append."""
    found: list[tuple[int, str]] = []
    error, appended = "", 0
    try:
        for one in client.read():
            found.append((one.position, one.event.data.decode(errors="replace")))
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    try:
        appended = client.append([Event(event_type="order", tags=["orders"], data=b"{}")])
    except Exception as problem:
        error = error or f"{type(problem).__name__}: {problem}"
    return {"found": found, "error": error, "appended": appended}


if __name__ == "__main__":
    command, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if command == "fill":
        fill(Client(url), count)
    print(json.dumps(read(Client(url)) if command == "read" else {}))
