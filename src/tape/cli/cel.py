"""`tape cel`: check a predicate, evaluate it on an entry, and explain the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from tape.cel import EvaluationError, Explanation, Predicate, TraceStep, compile_predicate
from tape.cel.display import literal, plain
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption, run
from tape.errors import CursorBeyondHead, InvalidInput, InvalidPredicate, NotFound
from tape.journal.appender import read_head
from tape.journal.entries import read_entry
from tape.model.entry import Entry
from tape.model.subject import kind_of, normalize
from tape.store import Reader, open_database

app = typer.Typer(help="Check, evaluate and explain CEL predicates.", no_args_is_help=True)

TextArgument = Annotated[
    str, typer.Argument(help="CEL expression, for example: payload.amount > 100.0", metavar="TEXT")
]
EntryOption = Annotated[str, typer.Option("--entry", help="File with one entry as JSON; - reads standard input.")]
SeqOption = Annotated[int, typer.Option("--seq", help="global_seq of an entry in the store.")]


class EntryFile(msgspec.Struct, forbid_unknown_fields=True):
    """An entry written by hand: every field is optional, the payload is JSON or text."""

    payload: msgspec.Raw = msgspec.Raw(b"")
    payload_json: str = "{}"
    global_seq: int = 1
    run_id: str = "log"
    seq: int = 1
    kind: str = ""
    type: str = ""
    subject: str = ""
    schema_version: int = 1
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    ts_ms: int = 0
    tenant: str = ""
    user: str = ""
    session: str = ""
    chain: str = ""

    def to_entry(self) -> Entry:
        """The entry that the journal would hold. The kind defaults to that of the subject."""
        subject = normalize(self.subject) if self.subject else ""
        return Entry(
            global_seq=self.global_seq,
            run_id=self.run_id,
            seq=self.seq,
            kind=self.kind or (kind_of(subject) if subject else ""),
            subject=subject,
            payload_json=bytes(self.payload).decode() or self.payload_json,
            schema_version=self.schema_version,
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_span_id=self.parent_span_id,
            ts_ms=self.ts_ms,
            tenant=self.tenant,
            user=self.user,
            session=self.session,
            chain=b"",
        )


@app.command()
def check(text: TextArgument, output: OutputOption = Output.text) -> None:
    """Compile TEXT and show its result type, variables and index keys."""
    try:
        predicate = compile_predicate(text)
    except InvalidPredicate as error:
        if output is Output.text:
            raise
        position = {"line": error.line, "column": error.column, "offset": error.offset}
        _print_json({"ok": False, "error": {"code": error.code, "reason": error.reason, **position}})
        raise typer.Exit(1) from None
    keys = [
        {"path": list(key.path), "values": sorted(map(plain, key.values), key=repr)} for key in predicate.index_keys
    ]
    variables = sorted(predicate.variables)
    if output is Output.json:
        _print_json({"ok": True, "type": str(predicate.result_type), "variables": variables, "index_keys": keys})
        return
    console = Console()
    console.print(Text("✓", "green"), "compiles")
    table = Table.grid(padding=(0, 2))
    table.add_row("result", _described_type(predicate))
    table.add_row("variables", ", ".join(variables) or "nothing")
    for key in keys:
        table.add_row("index key", f"{'.'.join(key['path'])} in {json.dumps(key['values'], ensure_ascii=False)}")
    console.print(table)


@app.command("eval")
def evaluate(
    text: TextArgument,
    entry: EntryOption = "",
    seq: SeqOption = 0,
    store: StoreOption = DEFAULT_STORE,
    output: OutputOption = Output.text,
) -> None:
    """Evaluate TEXT on an entry and print the value. Exits with 1 on an evaluation error."""
    predicate = compile_predicate(text)
    value = predicate.evaluate(_read_entry(predicate, entry, seq, store))
    if isinstance(value, EvaluationError):
        if output is Output.json:
            _print_json({"error": {"reason": value.reason, "line": value.line, "column": value.column}})
        else:
            Console(stderr=True).print(Text("error: ", "bold red"), Text(str(value)), sep="")
        raise typer.Exit(1)
    if output is Output.json:
        _print_json({"value": plain(value)})
    else:
        Console(soft_wrap=True).print(Syntax(literal(value), "javascript", background_color="default"))


@app.command()
def explain(
    text: TextArgument,
    entry: EntryOption = "",
    seq: SeqOption = 0,
    store: StoreOption = DEFAULT_STORE,
    output: OutputOption = Output.text,
) -> None:
    """Show every subexpression of TEXT with its value for an entry, and the one that decided the result."""
    predicate = compile_predicate(text)
    explanation = predicate.explain(_read_entry(predicate, entry, seq, store))
    if output is Output.json:
        _print_json(explanation.to_json())
    else:
        Console(soft_wrap=True, highlight=False).print(_tree(explanation))


# ── entries ──────────────────────────────────────────────────────────────────────────────────────


def _read_entry(predicate: Predicate, file: str, seq: int, store: str) -> Entry:
    if file and seq:
        raise InvalidInput("Use either --entry or --seq, not both.")
    if seq:
        return run(_read_from_store(store, seq))
    if file:
        return _read_file(file)
    if predicate.variables:
        looked_at = ", ".join(sorted(predicate.variables))
        raise InvalidInput(f"The expression uses {looked_at}: name an entry with --entry FILE or --seq N.")
    return EntryFile().to_entry()


def _read_file(file: str) -> Entry:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return msgspec.json.decode(content, type=EntryFile).to_entry()
    except OSError as error:
        raise InvalidInput(f"--entry {file}: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--entry {file} is not an entry: {error}.") from error


async def _read_from_store(store: str, seq: int) -> Entry:
    def question(reader: Reader) -> Entry:
        entry = read_entry(reader, seq)
        if entry is None:
            if seq - 1 > (head := read_head(reader).global_seq):
                raise CursorBeyondHead(seq - 1, head)
            raise NotFound(f"There is no entry {seq} in {store}.")
        return entry

    if seq < 0:
        raise InvalidInput(f"--seq {seq} must be a global_seq, which is at least 1.")
    async with open_database(store, migrate=False, create=False) as database:
        return await database.read(question)


# ── output ───────────────────────────────────────────────────────────────────────────────────────


def _described_type(predicate: Predicate) -> str:
    found = predicate.result_type.name
    if found == "bool":
        return "bool"
    if found == "dyn":
        return "known only at evaluation; a value that is not a bool does not match"
    return f"{predicate.result_type}: never matches; a predicate must be a bool"


def _tree(explanation: Explanation) -> Tree:
    root = Tree(_label(explanation.root), guide_style="dim")
    _grow(root, explanation.root)
    return root


def _grow(tree: Tree, step: TraceStep) -> None:
    for below in step.steps:
        _grow(tree.add(_label(below)), below)


def _label(step: TraceStep) -> Text:
    label = Text()
    if step.binding:
        label.append(f"[{step.binding}] ", "dim")
    label.append(" ".join(step.expression.split()) or "(empty: everything matches)")
    style = "dim" if not step.is_evaluated else "red" if step.error is not None else _style_of(step.value)
    label.append("  →  ", "dim").append(step.outcome(), style)
    if step.is_decisive:
        label.append("   ◄ decided", "bold yellow")
    return label


def _style_of(value: Any) -> str:
    return {True: "green", False: "magenta"}[value] if isinstance(value, bool) else "cyan"


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))
