"""An MCP server over the journal: tools, resources and prompts for agents that read and append entries.

Every call is made with a client of the caller: it sees and may do what its token sees and may do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import Completion, ToolAnnotations
from pydantic import BaseModel, Field

from tape import __version__
from tape.base.clock import now_ms
from tape.base.durations import parse_duration_ms
from tape.client.aio import AsyncTapeClient
from tape.errors import TapeError
from tape.mcp import run_account
from tape.mcp.bounds import UNTRUSTED, ShownEntry, cut_json
from tape.mcp.pages import PageQuestion, read_after, read_newest
from tape.model import subject as subjects
from tape.model.entry import Entry, type_of
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

MAX_LIMIT = 200
MAX_WAIT_S = 25.0
MAX_NAME = 500

Ctx = Context[Any, Any]
RequestContext = ServerRequestContext[Any, Any]
Connect = Callable[[RequestContext], AsyncTapeClient]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Entries at most; an answer has at most about 8k tokens.")]
Name = Annotated[str, Field(max_length=MAX_NAME)]
Text = Annotated[str, Field(max_length=4_000)]
Answer = TypeVar("Answer")
Reader = TypeVar("Reader", bound=Callable[..., Any])
Seq = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]

_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_APPENDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


class AppendAnswer(BaseModel):
    """Where an entry is."""

    global_seq: int


class TailAnswer(BaseModel):
    """Entries, oldest first."""

    entries: list[ShownEntry]
    next: int = Field(description="Give it as `after` to read on.")
    older: int = Field(default=0, description="Give it as `before` for older entries; 0: there are none.")
    gaps: list[str] = []
    notice: str = UNTRUSTED


class SearchAnswer(BaseModel):
    """Entries that were found, oldest first."""

    entries: list[ShownEntry]
    older: int = Field(description="Give it as `before` to search on in older entries; 0: all were searched.")
    gaps: list[str] = []
    notice: str = UNTRUSTED


class RunsAnswer(BaseModel):
    """Runs, the newest first; with `history` if one was asked for."""

    runs: list[dict[str, Any]]
    gates: list[dict[str, Any]] = []
    obligations: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    next: str = Field(default="", description="Give it as `before` for older runs; empty: there are none.")
    notice: str = UNTRUSTED


class ExplainAnswer(BaseModel):
    """Sentences; numbers in brackets are the global_seq of entries that prove them."""

    sentences: list[str]
    notice: str = UNTRUSTED


def journal_server(connect: Connect, *, middleware: Sequence[Any] = (), lifespan: Any = None) -> MCPServer[Any]:
    """The server. `connect` returns the client of a call: of the process, or of the caller of an HTTP request."""
    server: MCPServer[Any] = MCPServer(
        "tape",
        title="Tape journal",
        version=__version__,
        instructions=f"Reads and appends entries of one durable log, and explains its runs. {UNTRUSTED}",
        middleware=[_remember, *middleware],
        lifespan=lifespan,
        log_level="WARNING",
    )
    _add_tools(server, connect)
    _add_resources(server, connect)
    _add_prompts(server)
    return server


# The request that is being served: a completion is not given its context.
_request: ContextVar[RequestContext | None] = ContextVar("tape_mcp_request", default=None)


async def _remember(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    _request.set(ctx)
    return await call_next(ctx)


def _add_tools(server: MCPServer[Any], connect: Connect) -> None:
    @server.tool(annotations=_APPENDS, description=f"Append one entry to the journal. {UNTRUSTED}")
    async def append(
        ctx: Ctx,
        type: Annotated[Name, Field(description="Such as order.paid; or give a subject.")] = "",  # noqa: A002
        subject: Annotated[Name, Field(description="Such as /tape/order/paid/42.")] = "",
        payload: Annotated[Any, Field(description="Any JSON value.")] = None,
        run_id: Name = "",
        idempotency_key: Annotated[Name, Field(description="The same key appends once, for a day.")] = "",
    ) -> AppendAnswer:
        if bool(type) == bool(subject):
            raise ToolError("Give either `type` or `subject`.")

        async def work(client: AsyncTapeClient) -> AppendAnswer:
            at = subject or _subject_of(type)
            key = idempotency_key or _derived_key(ctx, at, payload)
            return AppendAnswer(global_seq=await client.append(at, payload, run_id=run_id, request_id=key))

        return await _calling(connect(ctx.request_context), work)

    @server.tool(annotations=_READS, description=f"Read entries: those after a cursor, or the newest. {UNTRUSTED}")
    async def tail(
        ctx: Ctx,
        pattern: Annotated[Name, Field(description="Subject pattern, such as /tape/order/**.")] = "",
        where: Annotated[Text, Field(description="CEL predicate, such as payload.total > 100.")] = "",
        run_id: Name = "",
        after: Annotated[Seq | None, Field(description="Only entries after this number; 0: all.")] = None,
        before: Annotated[Seq, Field(description="Without `after`: only entries before this one.")] = 0,
        last: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Without `after`: so many of the newest.")] = 20,
        limit: Limit = 50,
        wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="With `after`: wait so long for news.")] = 0,
    ) -> TailAnswer:
        question = PageQuestion(pattern, where, run_id)

        async def report(elapsed: float) -> None:
            await ctx.report_progress(elapsed, wait_s)

        async def work(client: AsyncTapeClient) -> TailAnswer:
            if after is not None:
                page = await read_after(client, question, after, limit, wait_s, report)
                return TailAnswer(entries=page.entries, next=page.cursor, gaps=page.gaps[:20])
            head = (await client.head()).global_seq
            page = await read_newest(client, question, min(last, limit), before)
            return TailAnswer(entries=page.entries, next=head, older=page.cursor, gaps=page.gaps[:20])

        return await _calling(connect(ctx.request_context), work)

    @server.tool(annotations=_READS, description=f"Search entries for a text, the newest first. {UNTRUSTED}")
    async def search(
        ctx: Ctx,
        text: Annotated[str, Field(min_length=1, max_length=MAX_NAME, description="In subject, run or payload.")],
        since: Annotated[Name, Field(description="How far back, such as 2h or 7d.")] = "",
        types: Annotated[list[Name], Field(max_length=20, description="Such as order.paid.")] = [],  # noqa: B006
        limit: Limit = 20,
        before: Annotated[Seq, Field(description="Only entries before this global_seq.")] = 0,
    ) -> SearchAnswer:
        wanted = text.casefold()

        def has_text(entry: Entry) -> bool:
            if types and type_of(entry.kind, entry.subject) not in types:
                return False
            return any(wanted in each.casefold() for each in (entry.subject, entry.run_id, entry.payload_json))

        async def work(client: AsyncTapeClient) -> SearchAnswer:
            since_ms = now_ms() - parse_duration_ms("since", since) if since else 0
            question = PageQuestion(f"{_subject_of(types[0])}/**" if len(types) == 1 else "")
            page = await read_newest(client, question, limit, before, has_text, since_ms)
            return SearchAnswer(entries=page.entries, older=page.cursor, gaps=page.gaps[:20])

        return await _calling(connect(ctx.request_context), work)

    @server.tool(annotations=_READS, description=f"List runs, or show one with what happened in it. {UNTRUSTED}")
    async def runs(
        ctx: Ctx,
        run_id: Name = "",
        app: Name = "",
        status: Literal["", "RUNNING", "WAITING", "RUNNABLE", "TERMINAL", "FAILED", "CANCELLED", "STUCK"] = "",
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
        before: Annotated[Name, Field(description="`next` of the page before.")] = "",
    ) -> RunsAnswer:
        async def work(client: AsyncTapeClient) -> RunsAnswer:
            return await (_show_run(client, run_id) if run_id else _list_runs(client, app, status, limit, before))

        return await _calling(connect(ctx.request_context), work)

    @server.tool(
        annotations=_READS,
        description="Explain a run (why it is where it is), or why a reaction did or did not fire on an entry."
        f" {UNTRUSTED}",
    )
    async def explain(ctx: Ctx, run_id: Name = "", reaction_id: Name = "", global_seq: Seq = 0) -> ExplainAnswer:
        if bool(run_id) == bool(reaction_id and global_seq):
            raise ToolError("Give either `run_id`, or `reaction_id` and `global_seq`.")

        async def work(client: AsyncTapeClient) -> ExplainAnswer:
            if run_id:
                account = await run_account.read_account(client, run_id)
                return ExplainAnswer(sentences=[each[:2_000] for each in run_account.explain(account, now_ms())[:100]])
            found = await client.explain_reaction(reaction_id, global_seq)
            said = [f"{found.verdict} [{global_seq}]", found.outcome and f"Outcome: {found.outcome}"]
            said += [found.decided_by and f"Decided by: {found.decided_by}", found.predicate_trace]
            said += [found.run_id and f"It began the run {found.run_id}."]
            return ExplainAnswer(sentences=[each[:2_000] for each in said if each])

        return await _calling(connect(ctx.request_context), work)


async def _list_runs(client: AsyncTapeClient, app: str, status: str, limit: int, before: str) -> RunsAnswer:
    started, _, last_id = before.partition("/")
    if before and not (started.isdecimal() and last_id):
        raise ToolError("`before` is not the `next` of a page.")
    found = await client.list_runs(
        app_name=app,
        status=f"RUN_STATUS_{status}" if status else 0,
        before_started_at_ms=int(started or 0),
        before_run_id=last_id,
        limit=limit,
    )
    states = [run_account.state_of(run) for run in found.runs]
    is_full = len(states) == limit
    last = found.runs[-1] if states else None
    return RunsAnswer(runs=states, next=f"{last.started_at_ms}/{last.run_id}" if is_full and last is not None else "")


async def _show_run(client: AsyncTapeClient, run_id: str) -> RunsAnswer:
    account = await run_account.read_account(client, run_id)
    owed = await client.list_obligations(run_id=run_id, only_unresolved=False)
    history = run_account.history_of(account)
    while len(history) > 1 and len(msgspec.json.encode(history)) > 20_000:
        history = history[len(history) // 4 + 1 :]
    return RunsAnswer(
        runs=[run_account.state_of(account.run)],
        gates=[_plain(gate) for gate in list(account.run.gates)[-10:]],
        obligations=[_plain(each) for each in list(owed.obligations)[:10]],
        history=history,
    )


def _plain(message: Any) -> dict[str, Any]:
    """A message as plain fields, cut."""
    fields = {field.name: value for field, value in message.ListFields()}
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name.endswith("_json"):
            shown[name.removesuffix("_json")] = cut_json(str(value), 500)[0]
        elif isinstance(value, str | int | float | bool):
            shown[name] = value if not isinstance(value, str) else value[:500]
    if isinstance(message, pb.GateRecord):
        shown["state"] = pb.GateState.Name(message.state)
    elif isinstance(message, pb.ObligationRecord):
        shown["status"] = pb.ObligationStatus.Name(message.status)
    return shown


async def _calling(client: AsyncTapeClient, work: Callable[[AsyncTapeClient], Awaitable[Answer]]) -> Answer:
    try:
        return await work(client)
    except TapeError as error:
        raise ToolError(f"{error.code}: {error}") from error


def _subject_of(type_name: str) -> str:
    kind, dot, verb = type_name.partition(".")
    if not dot:
        raise ToolError(f"The type {type_name!r} must be <kind>.<verb>, such as order.paid.")
    try:
        return subjects.build(kind, verb)
    except TapeError as error:
        raise ToolError(str(error)) from error


def _derived_key(ctx: Ctx, subject: str, payload: Any) -> str:
    """The idempotency key of a call without one: a retried request of a session appends once.

    Without a session (stdio, protocol 2026-07-28) request ids are reused, so that such a call has no key.
    """
    request = ctx.request_context.request
    session = request.headers.get("mcp-session-id", "") if request is not None else ""
    if not session:
        return ""
    text = f"{session}\0{ctx.request_id}\0{subject}\0{to_json(payload)}"
    return f"mcp-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:40]}"


# ── resources and prompts ────────────────────────────────────────────────────────────────────────


def _add_resources(server: MCPServer[Any], connect: Connect) -> None:
    def resource(uri: str, name: str, about: str) -> Callable[[Reader], Reader]:
        return server.resource(uri, name=name, description=f"{about} {UNTRUSTED}", mime_type="application/json")

    async def show(ctx: Ctx, work: Callable[[AsyncTapeClient], Awaitable[Any]]) -> str:
        try:
            return msgspec.json.encode({"notice": UNTRUSTED, **(await work(connect(ctx.request_context)))}).decode()
        except TapeError as error:
            raise ResourceError(f"{error.code}: {error}") from error

    @resource("tape://head/{of}", "head", "Both ends of the journal; `of` is `journal`.")
    async def head(of: str, ctx: Ctx) -> str:
        async def work(client: AsyncTapeClient) -> Any:
            found = await client.head()
            return {"global_seq": found.global_seq, "oldest": found.oldest}

        return await show(ctx, work)

    @resource("tape://entries/{global_seq}", "entry", "One entry.")
    async def entry(global_seq: str, ctx: Ctx) -> str:
        async def work(client: AsyncTapeClient) -> Any:
            if not global_seq.isdecimal() or not 0 < int(global_seq) < 1 << 63:
                raise ResourceError(f"{global_seq[:40]!r} is not a global_seq.")
            page = await read_after(client, PageQuestion(), int(global_seq) - 1, 1, 0, _silent)
            if not page.entries or page.entries[0].global_seq != int(global_seq):
                raise ResourceError(f"There is no entry {global_seq} for this caller.")
            return page.entries[0].model_dump()

        return await show(ctx, work)

    @resource("tape://runs/{run_id}", "run", "One run with what happened in it.")
    async def run(run_id: str, ctx: Ctx) -> str:
        async def work(client: AsyncTapeClient) -> Any:
            return (await _show_run(client, run_id)).model_dump()

        return await show(ctx, work)

    @resource("tape://runs/{run_id}/journal{?after}", "run journal", "The entries of a run after a global_seq.")
    async def run_journal(run_id: str, ctx: Ctx, after: str = "0") -> str:
        async def work(client: AsyncTapeClient) -> Any:
            if not after.isdecimal():
                raise ResourceError(f"after {after[:40]!r} is not a global_seq.")
            page = await read_after(client, PageQuestion(run_id=run_id), int(after), MAX_LIMIT, 0, _silent)
            return {"entries": [each.model_dump() for each in page.entries], "next": page.cursor}

        return await show(ctx, work)

    async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
        """Run ids that begin as the argument does, among the newest 100 of the caller."""
        request = _request.get()
        if argument.name != "run_id" or request is None:
            return None
        try:
            found = await connect(request).list_runs(limit=100)
        except TapeError:
            return None
        names = [run.run_id for run in found.runs if run.run_id.startswith(argument.value)]
        return Completion(values=names[:50], total=len(names), has_more=len(names) > 50)

    register: Any = server.completion  # it has no annotations
    register()(complete)


async def _silent(elapsed: float) -> None:
    """Report nothing."""


def _add_prompts(server: MCPServer[Any]) -> None:
    @server.prompt(description="What happened in a run.")
    def what_happened(run_id: str) -> str:
        return (
            f"Use the tools `runs` and `explain` with run_id {run_id[:MAX_NAME]!r}. Say what happened in this run, in"
            f" order, what it waits for and what happens next. Name the global_seq of each fact. {UNTRUSTED}"
        )

    @server.prompt(description="Why a reaction did not fire on an entry.")
    def why_not_fired(reaction_id: str, global_seq: str) -> str:
        return (
            f"Use the tool `explain` with reaction_id {reaction_id[:MAX_NAME]!r} and global_seq {global_seq[:20]}. Say"
            f" why the reaction did or did not fire, and what would have to differ. {UNTRUSTED}"
        )
