"""`tape append`: put events on the journal, one or a file of them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.journal.entry import Draft, check_payload, checked

BATCH = 256
BATCH_BYTES = 1 << 20
IN_FLIGHT = 4


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of input: a draft whose payload is plain JSON."""

    subject: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    kind: str = ""
    run_id: str = ""
    schema_version: int = 1
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    tenant: str = ""
    user: str = ""
    session: str = ""


def append(
    subject: Annotated[str | None, typer.Argument(help="/tape/<kind>/<verb>/<dim>…")] = None,
    payload: Annotated[str | None, typer.Argument(help="JSON, or - for one payload per line of input.")] = None,
    run_id: Annotated[str, typer.Option(help="The run that the events belong to.")] = "",
    tenant: Annotated[str, typer.Option(help="The tenant they belong to.")] = "",
    user: Annotated[str, typer.Option(help="The user they belong to.")] = "",
    session: Annotated[str, typer.Option(help="The session they belong to.")] = "",
    schema_version: Annotated[int, typer.Option(help="Version of the payload's shape.")] = 1,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Append one event, or one for every line of standard input.

    Without a SUBJECT each line is an object: {"subject": "/tape/…", "payload": {…}, "run_id": "…", …}.
    The first bad line stops the work; what stood before it is appended.
    """
    fields: dict[str, Any] = {
        "run_id": run_id,
        "tenant": tenant,
        "user": user,
        "session": session,
        "schema_version": schema_version,
    }
    if subject is not None and payload != "-":
        draft = checked(Draft(subject=subject, payload_json=payload or "{}", **fields), max_payload_bytes=1 << 62)
        global_seq = run(_append_one(url, draft))
        typer.echo(f'{{"global_seq":{global_seq}}}' if output is Output.json else str(global_seq))
        return
    count, first, last = run(_append_lines(url, _drafts(subject, fields)))
    if output is Output.json:
        typer.echo(msgspec.json.encode({"appended": count, "first": first, "last": last}).decode())
    else:
        typer.echo(f"Appended {count} events" + (f": {first} to {last}" if count else ""))


async def _append_one(url: str, draft: Draft) -> int:
    async with AsyncTapeClient(url) as client:
        return (await client.append_many([draft]))[0]


def _drafts(subject: str | None, fields: dict[str, Any]) -> Iterator[Draft]:
    decode = msgspec.json.Decoder(Line).decode
    given = {name: value for name, value in fields.items() if value and (name, value) != ("schema_version", 1)}
    for number, text in enumerate(sys.stdin.buffer, start=1):
        if not text.strip():
            continue
        try:
            if subject is not None:
                line = text.decode().strip()
                check_payload(line, 1 << 62)
                yield checked(Draft(subject=subject, payload_json=line, **fields), 1 << 62)
            else:
                values = msgspec.structs.asdict(decode(text))
                values["payload_json"] = bytes(values.pop("payload")).decode()
                yield checked(Draft(**(values | given)), 1 << 62)
        except (InvalidInput, msgspec.MsgspecError, UnicodeDecodeError) as error:
            yield _bad_line(number, error)


def _bad_line(number: int, error: Exception) -> Any:
    return InvalidInput(f"line {number}: {error}")


async def _append_lines(url: str, drafts: Iterator[Draft]) -> tuple[int, int, int]:
    """Send batches, a few at a time and in order; the count and the first and last global_seq."""
    count = first = last = 0
    progress = _Progress()
    async with AsyncTapeClient(url) as client:
        waiting: list[asyncio.Task[list[int]]] = []

        async def settle(task: asyncio.Task[list[int]]) -> None:
            nonlocal count, first, last
            seqs = await task
            first = first or seqs[0]
            last = seqs[-1]
            count += len(seqs)
            progress.show(count)

        problem: Exception | None = None
        for batch, problem in _batches(drafts):  # noqa: B007  (the last one says why the input ended)
            if batch:
                waiting.append(asyncio.create_task(client.append_many(batch)))
            if len(waiting) >= IN_FLIGHT:
                await settle(waiting.pop(0))
        for task in waiting:
            await settle(task)
    progress.done()
    if problem is not None:
        typer.echo(f"Appended {count} events before the bad line.", err=True)
        raise problem
    return count, first, last


def _batches(drafts: Iterator[Any]) -> Iterator[tuple[list[Draft], Exception | None]]:
    batch: list[Draft] = []
    size = 0
    for draft in drafts:
        if isinstance(draft, Exception):
            yield batch, draft
            return
        if batch and (len(batch) >= BATCH or size + len(draft.payload_json) > BATCH_BYTES):
            yield batch, None
            batch, size = [], 0
        batch.append(draft)
        size += len(draft.payload_json)
    yield batch, None


class _Progress:
    """A counter on the terminal; the input's length is not known."""

    def __init__(self) -> None:
        self._visible = sys.stderr.isatty()
        self._started = time.monotonic()
        self._shown = 0.0

    def show(self, count: int) -> None:
        now = time.monotonic()
        if self._visible and now - self._shown > 0.1:
            self._shown = now
            rate = count / max(now - self._started, 1e-6)
            sys.stderr.write(f"\r{count:,} appended, {rate:,.0f}/s ")
            sys.stderr.flush()

    def done(self) -> None:
        if self._visible and self._shown:
            sys.stderr.write("\r\033[K")
