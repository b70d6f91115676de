"""`tape append`: append one event, or the events of a file."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.model.entry import Draft, Entry, checked

# A person waits for the answer.
APPEND_TIMEOUT_S = 2.0
BATCH = 512
BATCH_BYTES = 1 << 20
# The server checks the size of payloads.
UNLIMITED = 1 << 62


class InputLine(Draft, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of input: a draft whose payload is plain JSON rather than text."""

    payload: msgspec.Raw = msgspec.Raw(b"{}")


def append(
    subject: Annotated[str | None, typer.Argument(help="Subject: /tape/<kind>/<verb>/<dim>…")] = None,
    payload: Annotated[
        str | None,
        typer.Argument(help="Payload as JSON; - reads one payload per line from standard input. [default: {}]"),
    ] = None,
    run_id: Annotated[str, typer.Option(help="Run id of the events.")] = "",
    tenant: Annotated[str, typer.Option(help="Tenant of the events.")] = "",
    user: Annotated[str, typer.Option(help="User of the events.")] = "",
    session: Annotated[str, typer.Option(help="Session of the events.")] = "",
    schema_version: Annotated[int, typer.Option(help="Schema version of the payload.")] = 1,
    where: Annotated[str, typer.Option("--where", "-w", help="Append only events that match this CEL predicate.")] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Append one event, or one event per line of standard input.

    Without SUBJECT each line is an object: {"subject": "/tape/…", "payload": {…}, "run_id": "…", …}.
    The first invalid line stops the command; events before it are appended.
    """
    fields: dict[str, Any] = {
        "run_id": run_id,
        "tenant": tenant,
        "user": user,
        "session": session,
        "schema_version": schema_version,
    }
    filtered = _Filter(where) if where else None
    if subject is not None and payload != "-":
        draft = checked(Draft(subject=subject, payload_json=payload or "{}", **fields), UNLIMITED)
        if filtered is None or list(filtered.pass_on(iter([draft]))):
            global_seq = run(_append_one(url, draft))
            typer.echo(f'{{"global_seq":{global_seq}}}' if output is Output.json else str(global_seq))
        else:
            typer.echo('{"global_seq":null}' if output is Output.json else filtered.summary())
        return
    drafts = _drafts(subject, fields)
    count, first, last = run(_append_lines(url, drafts if filtered is None else filtered.pass_on(drafts)))
    skipped = 0 if filtered is None else filtered.skipped
    if output is Output.json:
        done = {"appended": count, "skipped": skipped, "first": first, "last": last}
        typer.echo(msgspec.json.encode(done).decode())
        return
    typer.echo(f"Appended {count} events" + (f": {first} to {last}" if count else ""))
    if filtered is not None and skipped:
        typer.echo(filtered.summary())


class _Filter:
    """Passes drafts that match a predicate, and counts the rest."""

    def __init__(self, text: str) -> None:
        from tape.cel import compile_predicate  # most events are appended without a predicate

        self._predicate = compile_predicate(text)
        self.skipped = 0

    def pass_on(self, drafts: Iterator[Draft]) -> Iterator[Draft]:
        """The drafts that match."""
        for draft in drafts:
            if self._predicate.matches(_as_entry(draft)):
                yield draft
            else:
                self.skipped += 1

    def summary(self) -> str:
        """How many drafts were skipped, and why."""
        failed = f", {self._predicate.errors} of them because of errors" if self._predicate.errors else ""
        why = f" (last error: {self._predicate.last_error})" if self._predicate.errors else ""
        return f"Skipped {self.skipped} that do not match --where{failed}{why}"


def _as_entry(draft: Draft) -> Entry:
    """The draft as an entry without a global_seq."""
    fields = msgspec.structs.asdict(draft)
    del fields["cause"]  # stored beside the journal, not in an entry
    return Entry(global_seq=0, seq=0, ts_ms=now_ms(), chain=b"", **fields)


async def _append_one(url: str, draft: Draft) -> int:
    async with AsyncTapeClient(url, append_timeout_s=APPEND_TIMEOUT_S) as client:
        return (await client.append_many([draft]))[0]


def _drafts(subject: str | None, fields: dict[str, Any]) -> Iterator[Draft]:
    """Validated drafts from the lines of standard input."""
    decode = msgspec.json.Decoder(InputLine).decode
    given = {name: value for name, value in fields.items() if value and (name, value) != ("schema_version", 1)}
    for number, text in enumerate(sys.stdin.buffer, start=1):
        if not text.strip():
            continue
        try:
            if subject is not None:
                draft = Draft(subject=subject, payload_json=text.decode().strip(), **fields)
            else:
                values = msgspec.structs.asdict(decode(text)) | given
                values["payload_json"] = bytes(values.pop("payload")).decode()
                draft = Draft(**values)
            yield checked(draft, UNLIMITED)
        except (InvalidInput, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidInput(f"line {number}: {error}") from error


async def _append_lines(url: str, drafts: Iterator[Draft]) -> tuple[int, int, int]:
    """Append lines in batches as they are read. Returns the count, the first and the last global_seq.

    A line is appended as soon as it is read, even if the next one is late.
    """
    from tape.cli.progress import input_bar  # needs rich, which one event does not

    count = first = last = 0
    lines = _Lines(drafts)
    with input_bar("Appending", "events") as show:
        async with AsyncTapeClient(url, append_timeout_s=APPEND_TIMEOUT_S) as client:
            while batch := await asyncio.to_thread(lines.take):
                seqs = await client.append_many(batch)
                first = first or seqs[0]
                last = seqs[-1]
                count += len(seqs)
                show(count)
    if lines.problem is not None:
        typer.echo(f"Appended {count} events before the invalid line.", err=True)
        raise lines.problem
    return count, first, last


class _Lines:
    """Drafts, read ahead on a thread: reading standard input may block."""

    def __init__(self, drafts: Iterator[Draft]) -> None:
        self.problem: Exception | None = None
        self._drafts = drafts
        self._queue: queue.Queue[Draft | None] = queue.Queue(4 * BATCH)
        threading.Thread(target=self._read, daemon=True).start()

    def take(self) -> list[Draft]:
        """Wait for one draft and return it with those already read; empty at the end of the input."""
        batch: list[Draft] = []
        size = 0
        while len(batch) < BATCH and size < BATCH_BYTES and (not batch or not self._queue.empty()):
            draft = self._queue.get()
            if draft is None:
                self._queue.put(None)
                break
            batch.append(draft)
            size += len(draft.payload_json.encode())
        return batch

    def _read(self) -> None:
        try:
            for draft in self._drafts:
                self._queue.put(draft)
        except Exception as error:
            self.problem = error
        self._queue.put(None)
