"""Executions: a request starts a run and issues a command to its pool, unless it is a duplicate.

Plain functions on a transaction. `execute_batch` reads the catalog and the dedup claims once, and inserts once per
table. An invalid request is its own result and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import parse_traceparent
from tape.engine.catalog import Resource, fetch_many
from tape.engine.executions.dedup import Claims
from tape.engine.executions.pools import command_subject, ensure_pool
from tape.engine.executions.shared_commands import SharedCommands
from tape.engine.ledgers.run_batches import RunOpening, find_taken_ids, open_runs
from tape.engine.ledgers.run_record import PLAYBOOKS, Run
from tape.engine.reactions.downstreams import name_of
from tape.errors import ExecutionSkipped, InvalidInput, NotAPlaybook, PlaybookNotFound, TapeError
from tape.journal.appender import append
from tape.model import subject
from tape.model.dispatch_result import RunDispatchResult
from tape.model.entry import MAX_PAYLOAD_BYTES, Draft, check_id, check_payload, checked
from tape.model.execution_ids import MAX_ID, new_id
from tape.model.ledger_states import RunStatus
from tape.model.payload import to_json
from tape.model.principal import current_principal
from tape.model.reserved import refuse_reserved
from tape.model.shared_command import SUMMARY
from tape.model.tenant_names import name_within, plain_name, prefix_of, qualify, tenant_of, visible_prefix
from tape.playbooks.inputs import bind_inputs
from tape.playbooks.library import known_playbook
from tape.playbooks.pools import POOL_RULE, default_pool, is_pool
from tape.store import Transaction

MAX_BATCH = 1_000
KIND = "playbook"


class Dedup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that identifies duplicates of a request, and the window in seconds."""

    key: str
    window_secs: int = 300


class Attached(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event for the journal of the new run, appended with it; `execution_id` is added to its payload."""

    subject: str
    payload: dict[str, Any] = {}


class ExecuteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to run a playbook. `workload` is another name of `payload`.

    In a batch, requests of one `lane` start in order; after a failure the rest of the lane is skipped.
    """

    path: str = ""
    catalog_id: str | int = ""
    payload: dict[str, Any] | None = None
    workload: dict[str, Any] | None = None
    parent_execution_id: int | str | None = None
    execution_pool: str | None = None
    trace: dict[str, Any] | None = None
    dedup: Dedup | None = None
    subscription: str = ""
    message_id: str = ""
    priority: str = ""
    events: tuple[Attached, ...] = ()
    resource_kind: str = KIND
    lane: str = ""
    # Runs of one key, within the scope of their dedup keys, take turns in their pool.
    ordering_key: str = ""
    # The downstream of the subscription that the run depends on: it waits while that is held.
    downstream: str = ""
    # What is kept of the run: `full`, or `summary`, which shares the entries of its begin and end with other runs.
    record: Literal["full", "summary"] = "full"
    # Messages of one run at most: those of one call that agree in everything else are a batch. 0: a run for each.
    batch: int = 0
    # The tenant of the run and the prefix of the documents that it may use, whatever the request says.
    tenant: str = ""
    prefix: str = ""
    # The limit of a payload on this server, whatever the request says.
    max_bytes: int = MAX_PAYLOAD_BYTES

    @property
    def parent(self) -> int:
        """The parent execution or subscription; 0 without one."""
        return int(self.parent_execution_id or 0)

    @property
    def scope(self) -> str:
        """The scope of its dedup key and of its ordering key: its subscription, else its parent, within its tenant."""
        of_tenant = f"tenant:{self.tenant}:" if self.tenant else ""
        subscription = plain_name(self.subscription)
        return of_tenant + (f"subscription:{subscription}" if subscription else str(self.parent))

    @property
    def is_shared(self) -> bool:
        """Whether the entry that begins its run may begin others, too."""
        return self.record == SUMMARY or self.batch > 0

    @property
    def input(self) -> dict[str, Any]:
        """The payload of the playbook."""
        return (self.payload if self.payload is not None else self.workload) or {}


Result: TypeAlias = RunDispatchResult | TapeError


def checked_record(text: str) -> Literal["full", "summary"]:
    """What is to be kept of a run. Raises InvalidInput if it is neither `full` nor `summary`."""
    if text == "summary":
        return "summary"
    if text != "full":
        raise InvalidInput(f"record {text[:40]!r} must be 'full' or 'summary'.")
    return "full"


def checked_request(request: ExecuteRequest, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> ExecuteRequest:
    """The request, if it is valid, with the names of its tenant. Raises InvalidInput with the field otherwise."""
    if not request.path and request.catalog_id in ("", 0):
        raise InvalidInput("Either 'path' or 'catalog_id' must be provided")
    _check_number("catalog_id", request.catalog_id)
    _check_number("parent_execution_id", request.parent_execution_id)
    for name in ("path", "subscription", "message_id", "priority", "lane", "ordering_key", "downstream"):
        check_id(name, getattr(request, name))
    if request.execution_pool and not is_pool(request.execution_pool):
        raise InvalidInput(f"execution_pool {request.execution_pool!r} {POOL_RULE}.")
    if request.payload is not None and request.workload is not None:
        raise InvalidInput("payload and workload are the same; send one of them.")
    if request.dedup is not None:
        check_id("dedup.key", request.dedup.key)
        if not request.dedup.key or request.dedup.window_secs < 1:
            raise InvalidInput(
                f"dedup needs a key and a window_secs of at least 1; it is {request.dedup.key!r},"
                f" {request.dedup.window_secs}."
            )
    if not 0 <= request.batch <= MAX_BATCH:
        raise InvalidInput(f"batch {request.batch} must lie between 0 and {MAX_BATCH}; 0 means a run for each message.")
    _check_granted(request.events)
    check_payload(to_json(request.input), max_payload_bytes)
    return msgspec.structs.replace(_within_tenant(request), max_bytes=max_payload_bytes)


def _within_tenant(request: ExecuteRequest) -> ExecuteRequest:
    """The request with qualified names.

    The tenant is that of the subscription, else that of the playbook: a subscription cannot run a playbook of another
    tenant. A caller of one tenant names things of that tenant only.
    """
    principal = current_principal()
    subscription = qualify(request.subscription)
    owner = tenant_of(subscription or qualify(request.path))
    path = name_within(owner, request.path) if subscription and request.path else qualify(request.path)
    return msgspec.structs.replace(
        request,
        path=path,
        subscription=subscription,
        tenant=owner or (principal.tenant if principal.is_open else ""),
        prefix=visible_prefix() or prefix_of(owner),
    )


def _check_granted(events: Sequence[Attached]) -> None:
    """Raise SubjectNotGranted if the caller's write grants do not include what it attaches of its own."""
    if (principal := current_principal()).write is None:
        return
    for event in events:
        name = subject.normalize(event.subject)
        if subject.kind_of(name) != "subscription":  # what a runtime attaches about its message
            principal.check_write(name)


def execute(tx: Transaction, request: ExecuteRequest) -> RunDispatchResult:
    """Start the run of a checked request. Raises its error."""
    result = execute_batch(tx, [request])[0]
    if isinstance(result, TapeError):
        raise result
    return result


def execute_batch(tx: Transaction, requests: Sequence[ExecuteRequest], *, until_refused: bool = False) -> list[Result]:
    """Start the runs of checked requests in order; one result each. `until_refused` stops after the first error."""
    found = fetch_many(tx, {each.path for each in requests}, {int(each.catalog_id or 0) for each in requests})
    claims = Claims(tx, [(each.scope, each.dedup.key) for each in requests if each.dedup])
    batch = _Batch(tx, found, claims, _new_ids(tx, sum(not each.is_shared or bool(each.dedup) for each in requests)))
    results: list[Result] = []
    for request in requests:
        results.append(batch.add(request))
        if until_refused and isinstance(results[-1], TapeError):
            break
    batch.write()
    return results


class _Batch:
    """The runs of one transaction, collected and written together."""

    def __init__(
        self, tx: Transaction, found: Mapping[str | int, Resource], claims: Claims, ids: Sequence[str]
    ) -> None:
        self._tx = tx
        self._stopped: set[str] = set()
        self._ids = iter(ids)
        self._found = found
        self._claims = claims
        self._now = now_ms()
        self._pools: set[str] = set()
        self._openings: list[RunOpening] = []
        self._others: list[list[Draft]] = []  # the entries after the first of each run
        self._attached: list[Draft] = []  # the attached events of runs that are kept as a summary
        self._audits: list[Draft] = []
        self._shared = SharedCommands(tx)

    def add(self, request: ExecuteRequest) -> Result:
        if request.lane in self._stopped:
            return ExecutionSkipped(f"not tried: an execution before it in lane {request.lane!r} failed.")
        result = self._add(request)
        if request.lane and isinstance(result, TapeError):
            self._stopped.add(request.lane)
        return result

    def _add(self, request: ExecuteRequest) -> Result:
        dedup, window_ms = request.dedup, request.dedup.window_secs * 1_000 if request.dedup else 0
        if dedup and (holder := self._claims.holder(request.scope, dedup.key, window_ms, self._now)):
            self._audits.append(_deduplicated(request, dedup.key, holder, next(self._ids)))
            return RunDispatchResult("duplicate", int(holder))
        try:
            run_id = self._begin(request)
        except TapeError as error:
            return error
        if dedup:
            self._claims.claim(request.scope, dedup.key, run_id, window_ms, self._now)
        return RunDispatchResult("started", int(run_id))

    def _begin(self, request: ExecuteRequest) -> str:
        resource = self._resource(request)
        playbook = known_playbook(resource.content).playbook
        if not request.subscription:
            # A direct request gets the error at once; a message starts its run, which fails with the error.
            bind_inputs(playbook.inputs, playbook.workload, request.input)
        path, tenant = plain_name(resource.path), tenant_of(resource.path) or request.tenant
        pool = request.execution_pool or playbook.pool or default_pool(path)
        if request.is_shared:
            self._events(request, _owner(request, "", tenant))  # raises before anything is kept
            run_id = self._shared.add(request, resource, pool, tenant or PLAYBOOKS)
            self._attached += self._events(request, _owner(request, run_id, tenant))
            self._pools.add(pool)
            return run_id
        run_id = next(self._ids)
        trace = parse_traceparent(str((request.trace or {}).get("traceparent", "")))
        about: dict[str, Any] = {
            "path": path,
            "version": resource.version,
            "catalog_id": str(resource.catalog_id),
            "pool": pool,
            **({"parent_execution_id": str(request.parent)} if request.parent else {}),
            **{name: value for name in _SHOWN if (value := getattr(request, name))},
        }
        if request.subscription:
            about["subscription"] = plain_name(request.subscription)
        # The command has the qualified path: workers of several tenants share a pool.
        command = {"execution_id": run_id, **about, "path": resource.path, "payload": request.input}
        if request.ordering_key:
            command["ordering_key"] = f"{request.scope}:{request.ordering_key}"
        if request.subscription and request.downstream:
            command["downstream"] = name_of(request.subscription, request.downstream)
        run = Run(
            run_id=run_id,
            app_name=PLAYBOOKS,
            user_id="",
            session_id=plain_name(request.subscription),
            invocation_id=run_id,
            status=RunStatus.RUNNABLE,
            agent_id=path,
            labels_json=to_json({f"tape.{name}": str(about[name]) for name in _LABELS if name in about}),
            tenant_id=tenant,
            tenant=tenant or PLAYBOOKS,
        )
        owner = _owner(request, run_id, tenant)
        command_draft = Draft(
            subject=command_subject(pool, run_id), kind="command", payload_json=to_json(command), **owner
        )
        drafts = [command_draft, *self._events(request, owner)]
        self._pools.add(pool)
        self._openings.append(RunOpening(run, about, trace))
        self._others.append(drafts)
        return run_id

    def _events(self, request: ExecuteRequest, owner: dict[str, Any]) -> list[Draft]:
        drafts = []
        for event in request.events:
            payload_json = to_json({**event.payload, "execution_id": owner["run_id"]})
            draft = checked(Draft(subject=event.subject, payload_json=payload_json, **owner))
            if draft.kind != "subscription":  # what a runtime attaches about its message
                refuse_reserved(draft)
            drafts.append(draft)
        return drafts

    def _resource(self, request: ExecuteRequest) -> Resource:
        wanted = int(request.catalog_id) if request.catalog_id else request.path
        resource = self._found.get(wanted)
        is_usable = resource is not None and resource.path.startswith(request.prefix)
        if resource is None or not is_usable or (request.path and resource.path != request.path):
            raise PlaybookNotFound(f"Playbook not found: {str(wanted).removeprefix(request.prefix)}")
        if resource.kind != KIND:
            raise NotAPlaybook(f"Catalog entry '{plain_name(resource.path)}' is kind '{resource.kind}', not '{KIND}'")
        return resource

    def write(self) -> None:
        """Write all rows, one insert per table. Pools come first: they must exist before their commands."""
        for pool in sorted(self._pools):
            ensure_pool(self._tx, pool)
        self._claims.write()
        if self._openings:
            drafts = []
            for first, others in zip(open_runs(self._tx, self._openings), self._others, strict=True):
                drafts += [first, *others]
            append(self._tx, drafts)
        if shared := self._shared.drafts():
            append(self._tx, [*shared, *self._attached])
        if self._audits:
            append(self._tx, self._audits)


_SHOWN = ("message_id", "priority", "trace")
_LABELS = ("path", "version", "catalog_id", "pool", "parent_execution_id", "subscription", "message_id")


def _owner(request: ExecuteRequest, run_id: str, tenant: str) -> dict[str, Any]:
    """The fields of the entries of a run that say whose they are."""
    trace = parse_traceparent(str((request.trace or {}).get("traceparent", "")))
    session = plain_name(request.subscription)
    return {"run_id": run_id, "tenant": tenant or PLAYBOOKS, "session": session, **trace._asdict()}


def _deduplicated(request: ExecuteRequest, key: str, original: str, suppressed: str) -> Draft:
    """The event about a duplicate; `suppressed` is the id that its run would have had."""
    payload = {
        "subscription": plain_name(request.subscription),
        "execution_id": original,
        "status": "DEDUPLICATED",
        "emitter": "control_plane",
        "subscription_id": str(request.parent),
        "dedup_key": key,
        "original_execution_id": original,
        "suppressed_execution_id": suppressed,
        "duplicate_suppressed": True,
    }
    name = subject.build("subscription", "message.deduplicated", request.subscription.rpartition("/")[2])
    return Draft(
        subject=name,
        kind="subscription",
        payload_json=to_json(payload),
        run_id=original,
        tenant=request.tenant or PLAYBOOKS,
    )


def _new_ids(tx: Transaction, count: int) -> list[str]:
    """New ids that no run has. Two processes can generate the same id; the later one generates another."""
    ids = [str(new_id()) for _ in range(count)]
    while ids and (taken := find_taken_ids(tx, ids)):
        ids = [str(new_id()) if each in taken else each for each in ids]
    return ids


def _check_number(name: str, value: int | str | None) -> None:
    text = str(value or 0)
    if not (len(text) <= len(str(MAX_ID)) and text.isascii() and text.isdecimal() and int(text) <= MAX_ID):
        raise InvalidInput(f"{name} {text[:40]!r} must be a whole number, as a number or as a text.")
