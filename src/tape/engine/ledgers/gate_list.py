"""Lists of gates: by state, app, risk, name, run and deadline, in pages that are bounded by number and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tape.engine.ledgers.gates import GateSignal
from tape.engine.ledgers.runs import ENDED
from tape.errors import InvalidInput
from tape.model.entry import check_id
from tape.model.ledger_states import GateState, RunStatus
from tape.model.principal import current_principal
from tape.store import Reader
from tape.store.records import columns, load_all

DEFAULT_LIMIT = 50
MAX_LIMIT = 1_000
# Bytes of payloads and answers in one page; the first gate is there however large it is.
MAX_BYTES = 1 << 20
# Gates that are read at once: one has at most some payloads of max_payload_bytes.
ROWS_AT_ONCE = 20
# Gates of a run that GetRun shows, and the size of their texts there.
MAX_OF_RUN = 50
MAX_TEXT_BYTES = 16 << 10

_COLUMNS = columns(GateSignal)
_RUN_COLUMNS = ("user_id", "session_id", "invocation_id", "tenant_id", "status")
_TEXTS = ("context_json", "on_timeout_json", "shown_timeout_json", "resolution_json", "shown_answer_json")
_IS_ENDED = ", ".join(str(int(status)) for status in sorted(ENDED))


class GateFilter(NamedTuple):
    """Which gates are wanted; empty fields match all."""

    state: GateState | None = None
    app_name: str = ""
    risk: str = ""
    gate_name: str = ""
    run_id: str = ""
    deadline_before_ms: int = 0


class ListedGate(NamedTuple):
    """A gate, and what its run says about it."""

    signal: GateSignal
    user_id: str
    session_id: str
    invocation_id: str
    tenant_id: str
    run_status: RunStatus
    truncated: bool = False

    @property
    def state(self) -> GateState:
        """Where the gate stands."""
        if self.signal.delivered:
            return GateState.TIMED_OUT if self.signal.timed_out else GateState.ANSWERED
        return GateState.CLOSED if self.run_status in ENDED else GateState.WAITING


def list_gates(reader: Reader, wanted: GateFilter, *, cursor: str = "", limit: int = 0) -> tuple[list[ListedGate], str]:
    """A page of gates and the cursor of the next one. Waiting gates come oldest first, others newest first."""
    for name in ("app_name", "risk", "gate_name", "run_id"):
        check_id(name, getattr(wanted, name))
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit {limit} must lie between 0 and {MAX_LIMIT}; 0 means {DEFAULT_LIMIT}.")
    count = limit or DEFAULT_LIMIT
    after = _parse_cursor(cursor) if cursor else None
    found: list[ListedGate] = []
    size = 0
    # One more than wanted is read: it shows that there is a next page.
    while rows := _read(reader, wanted, after, min(ROWS_AT_ONCE, count + 1 - len(found))):
        for gate in rows:
            size += sum(len(getattr(gate.signal, name)) for name in _TEXTS)
            if len(found) == count or (found and size > MAX_BYTES):
                return found, _cursor_after(found[-1].signal)
            found.append(gate)
            after = _position(gate.signal)
    return found, ""


def gates_of_run(reader: Reader, run_id: str) -> tuple[list[ListedGate], bool]:
    """The newest gates of a run in the order in which they were reached, without large texts; True if it has more."""
    rows = _read(reader, GateFilter(run_id=run_id), None, MAX_OF_RUN + 1, cut=True)
    return rows[:MAX_OF_RUN][::-1], len(rows) > MAX_OF_RUN


def _read(
    reader: Reader, wanted: GateFilter, after: tuple[int, str, str] | None, limit: int, *, cut: bool = False
) -> list[ListedGate]:
    conditions: list[str] = []
    params: list[Any] = []
    is_waiting = wanted.state is GateState.WAITING
    match wanted.state:
        case GateState.WAITING:
            conditions.append(f"s.delivered = 0 AND s.closed = 0 AND r.status NOT IN ({_IS_ENDED})")
        case GateState.ANSWERED:
            conditions.append("s.delivered = 1 AND s.timed_out = 0")
        case GateState.TIMED_OUT:
            conditions.append("s.delivered = 1 AND s.timed_out = 1")
        case GateState.CLOSED:
            conditions.append(f"s.delivered = 0 AND r.status IN ({_IS_ENDED})")
        case None:
            pass
    tenant = current_principal().only_tenant
    for column, value in (
        ("s.tenant", tenant),
        ("s.app_name", wanted.app_name),
        ("s.risk", wanted.risk),
        ("s.gate_name", wanted.gate_name),
        ("s.run_id", wanted.run_id),
    ):
        if value or (column == "s.tenant" and tenant is not None):
            conditions.append(f"{column} = ?")
            params.append(value)
    if wanted.deadline_before_ms:
        conditions.append("s.deadline_ms > 0 AND s.deadline_ms < ?")
        params.append(wanted.deadline_before_ms)
    if after is not None:
        conditions.append(f"(s.created_at_ms, s.run_id, s.gate_name) {'>' if is_waiting else '<'} (?, ?, ?)")
        params += after
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    by = "" if is_waiting else " DESC"
    names = [f"r.{name}" for name in _RUN_COLUMNS]
    size = " + ".join(f"length(s.{name})" for name in _TEXTS)
    texts = [
        f"CASE WHEN {size} > {MAX_TEXT_BYTES} THEN '' ELSE s.{name} END" if cut and name in _TEXTS else f"s.{name}"
        for name in GateSignal.__struct_fields__
    ]
    rows = reader.query(
        f"SELECT {', '.join([*texts, *names])}, {size} FROM tape_signals s JOIN tape_runs r ON r.run_id = s.run_id"
        f"{where} ORDER BY s.created_at_ms{by}, s.run_id{by}, s.gate_name{by} LIMIT ?",
        *params,
        limit,
    )
    width = len(GateSignal.__struct_fields__)
    signals = load_all(GateSignal, [row[:width] for row in rows])
    return [
        ListedGate(signal, *_owner(row, width), RunStatus(row[-2]), cut and row[-1] > MAX_TEXT_BYTES)
        for signal, row in zip(signals, rows, strict=True)
    ]


def _owner(row: Sequence[Any], width: int) -> tuple[str, str, str, str]:
    user_id, session_id, invocation_id, tenant_id = row[width : width + 4]
    return user_id, session_id, invocation_id, tenant_id


def _position(signal: GateSignal) -> tuple[int, str, str]:
    return signal.created_at_ms, signal.run_id, signal.gate_name


def _cursor_after(signal: GateSignal) -> str:
    return msgspec.json.encode(_position(signal)).decode()


def _parse_cursor(cursor: str) -> tuple[int, str, str]:
    try:
        position = msgspec.json.decode(cursor, type=tuple[int, str, str])
    except msgspec.MsgspecError:
        raise InvalidInput(f"cursor {cursor[:100]!r} is none that ListGates returned.") from None
    if not 0 <= position[0] < 1 << 63 or "\0" in position[1] + position[2]:
        raise InvalidInput(f"cursor {cursor[:100]!r} is none that ListGates returned.")
    return position
