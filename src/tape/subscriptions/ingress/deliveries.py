"""What became of the deliveries of a subscription, and a delivery dispatched again.

The input of a run is its message, and the journal keeps it: a resend starts a new run of the same playbook, in its
current version, with the same input. The request as it was received, with its signature, is not kept, and neither is
the body of a rejected one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from tape.engine import catalog
from tape.engine.executions.execute import Attached, Dedup, ExecuteRequest
from tape.engine.ledgers import runs
from tape.engine.ledgers.run_record import COLUMNS, PLAYBOOKS, Run
from tape.engine.ledgers.summary_runs import find_command
from tape.engine.reactions.downstreams import SEPARATOR
from tape.errors import DeliveryNotKept, EntryDamaged, InvalidDocument, UnknownDelivery
from tape.journal.key_index import look_up_subject
from tape.model import subject
from tape.model.entry import MAX_SEQ
from tape.model.principal import current_principal
from tape.model.tenant_names import display, name_within, plain_name, tenant_of
from tape.store import Reader, Transaction
from tape.store.records import load_all
from tape.subscriptions import events
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import subscription_ref
from tape.subscriptions.routing import storable_key

MAX_LIST = 200
# Entries of each kind that a page looks at.
MAX_ENTRIES = 200

# Events about deliveries that started no run, by their verb, and the outcome that each is.
_OUTCOMES = {
    "message.deduplicated": "duplicate",
    "message.spooled": "spooled",
    "message.rejected": "rejected",
    "handshake": "handshake",
}


class DeliveryOutcome(NamedTuple):
    """What became of a delivery, or of several equal ones (`times`)."""

    at_ms: int
    outcome: str
    execution_id: str = ""
    message_id: str = ""
    status: str = ""
    playbook: str = ""
    reason: str = ""
    times: int = 1


def list_deliveries(
    reader: Reader | Transaction, path: str, *, before: tuple[int, str] = (0, ""), limit: int = 50
) -> tuple[list[DeliveryOutcome], tuple[int, str] | None]:
    """The outcomes of a page, newest first, and the cursor of the next page if there may be one.

    `path` is qualified. Runs that are kept as a summary have no row and are not listed unless they failed.
    """
    conditions, params = "", list[Any]()
    if before[0]:
        conditions, params = " AND (started_at_ms, run_id) < (?, ?)", [*before]
    rows = reader.query(
        f"SELECT {COLUMNS} FROM tape_runs WHERE app_name = ? AND user_id = '' AND session_id = ? AND tenant = ?"
        f"{conditions} ORDER BY started_at_ms DESC, run_id DESC LIMIT ?",
        PLAYBOOKS,
        plain_name(path),
        tenant_of(path) or PLAYBOOKS,
        *params,
        limit + 1,
    )
    found = load_all(Run, rows)
    is_more, page = len(found) > limit, found[:limit]
    since_ms = page[-1].started_at_ms if is_more else 0
    outcomes = [_accepted(run) for run in page]
    for verb, outcome in _OUTCOMES.items():
        outcomes += _journaled(reader, path, verb, outcome, since_ms, before[0])
    outcomes.sort(key=lambda each: each.at_ms, reverse=True)
    return outcomes, (page[-1].started_at_ms, page[-1].run_id) if is_more else None


def _accepted(run: Run) -> DeliveryOutcome:
    return DeliveryOutcome(
        run.started_at_ms,
        "accepted",
        run.run_id,
        run.labels.get("tape.message_id", ""),
        run.status.name.lower(),
        run.agent_id,
    )


def _journaled(
    reader: Reader | Transaction, path: str, verb: str, outcome: str, since_ms: int, before_ms: int
) -> list[DeliveryOutcome]:
    """The events of a page about deliveries without a run."""
    name = subject.build("subscription", verb, path.rpartition("/")[2])
    # Events of control planes have the tenant of runs, those of runtimes none.
    lookup = look_up_subject(
        name,
        where="j.tenant IN (?, ?) AND j.ts_ms >= ? AND j.ts_ms < ?",
        where_params=(tenant_of(path), tenant_of(path) or PLAYBOOKS, since_ms, before_ms or MAX_SEQ),
    )
    rows = lookup.select(reader, "ts_ms, payload_json", 0, MAX_SEQ, MAX_ENTRIES, newest=True)
    found = []
    for ts_ms, payload_json in rows:
        event = msgspec.json.decode(payload_json)
        if event.get("subscription") != plain_name(path):  # another one with the same last part
            continue
        found.append(
            DeliveryOutcome(
                ts_ms,
                outcome,
                str(event.get("original_execution_id", "")),
                str(event.get("message_id", event.get("dedup_key", ""))),
                reason=str(event.get("reason", event.get("kind", ""))),
                times=int(event.get("count", 1)),
            )
        )
    return found


def plan_resend(reader: Reader | Transaction, execution_id: str, dedup: Literal["new", "same"]) -> ExecuteRequest:
    """The request that dispatches a delivery again. Raises UnknownDelivery or DeliveryNotKept."""
    run = runs.find(reader, execution_id)
    if run is None or run.app_name != PLAYBOOKS or not run.session_id:
        raise UnknownDelivery(f"no delivery {execution_id[:40]!r} was accepted; see `tape ingress deliveries`.")
    try:
        command = find_command(reader, run.run_id)
    except EntryDamaged as error:
        raise DeliveryNotKept(f"the message of {execution_id} is damaged on the journal: {error}") from error
    if command is None:
        raise DeliveryNotKept(f"the message of {execution_id} was pruned from the journal.")
    path = name_within(run.tenant_id, run.session_id)
    message_id, payload = str(command.get("message_id", "")), dict(command["payload"])
    principal = current_principal()
    event = events.resent(subscription_ref(path), message_id, execution_id, dedup, principal.user or principal.key_id)
    draft = event.draft()
    return ExecuteRequest(
        path=plain_name(command["path"]),
        payload=payload,
        parent_execution_id=command.get("parent_execution_id"),
        execution_pool=command["pool"],
        trace=command.get("trace") or None,
        dedup=_dedup(reader, path, message_id, payload) if dedup == "same" else None,
        subscription=display(path),
        message_id=message_id,
        priority=command.get("priority", ""),
        ordering_key=_ordering_key(command, path),
        downstream=str(command.get("downstream", "")).rpartition(SEPARATOR)[2],
        events=(Attached(draft.subject, msgspec.json.decode(draft.payload_json)),),
    )


def _dedup(reader: Reader | Transaction, path: str, message_id: str, payload: dict[str, Any]) -> Dedup | None:
    """The key of the message, if the subscription deduplicates now."""
    resource = catalog.fetch(reader, path)
    try:
        spec = parse_subscription(resource.content, path).spec if resource is not None else None
    except InvalidDocument:  # registered by an older version
        spec = None
    if spec is None or not spec.dedup.enabled:
        return None
    key = storable_key(str(payload.get("idempotency_key") or message_id))
    return Dedup(key, spec.dedup.window_secs) if key else None


def _ordering_key(command: dict[str, Any], path: str) -> str:
    """The ordering key without its scope, which ends with the subscription."""
    text, scope = str(command.get("ordering_key", "")), f"subscription:{plain_name(path)}:"
    return text.partition(scope)[2] if scope in text else ""
