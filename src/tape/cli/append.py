"""`tape append`: append one event, or the events of a file."""

from __future__ import annotations

import asyncio
import os
import queue
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tape.base.clock import now_ms
from tape.cel import compile_predicate
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
    filtered = _Filter(where)
    if subject is not None and payload != "-":
        draft = checked(Draft(subject=subject, payload_json=payload or "{}", **fields), UNLIMITED)
        if wanted := list(filtered.pass_on(iter([draft]))):
            global_seq = run(_append_one(url, wanted[0]))
            typer.echo(f'{{"global_seq":{global_seq}}}' if output is Output.json else str(global_seq))
        else:
            typer.echo('{"global_seq":null}' if output is Output.json else filtered.summary())
        return
    count, first, last = run(_append_lines(url, filtered.pass_on(_drafts(subject, fields))))
    if output is Output.json:
        done = {"appended": count, "skipped": filtered.skipped, "first": first, "last": last}
        typer.echo(msgspec.json.encode(done).decode())
        return
    typer.echo(f"Appended {count} events" + (f": {first} to {last}" if count else ""))
    if filtered.skipped:
        typer.echo(filtered.summary())


class _Filter:
    """Passes drafts that match a predicate, and counts the rest."""

    def __init__(self, text: str) -> None:
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
    count = first = last = 0
    lines = _Lines(drafts)
    with _counter() as show:
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


@contextmanager
def _counter() -> Iterator[Callable[[int], None]]:
    """A function to call with the number of appended events; shows a progress bar if the size of the input is known."""
    status = os.fstat(sys.stdin.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    console = Console(stderr=True)
    with Progress(
        TextColumn("Appending"),
        BarColumn(),
        TextColumn("{task.fields[events]:,} events"),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("Appending", total=size, events=0)

        def show(events: int) -> None:
            read = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) if size is not None else 0
            progress.update(task, completed=read, events=events)

        yield show
