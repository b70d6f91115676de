"""The RPCs of gates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.engine.ledgers import gate_list, gates
from tape.engine.ledgers.gate_list import GateFilter, ListedGate
from tape.engine.ledgers.gates import GateTerms
from tape.engine.ledgers.run_record import Run
from tape.journal.journal import Journal
from tape.model import subject
from tape.model.entry import Draft
from tape.model.ledger_states import GateState, parse
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_texts, check_time
from tape.server.grpc.methods import Context, owner_of, trace_of
from tape.store import Reader, Transaction

# Of an answer that the server gives when a deadline passes.
MAX_TIMEOUT_BYTES = 64 << 10
# Of a risk within a payload; a longer text there is none.
MAX_RISK_CHARS = 200


class GatesService:
    """RPCs of gates: wait at one, answer one, list them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def await_signal(self, request: pb.AwaitSignalRequest, context: Context) -> pb.AwaitSignalResponse:
        """The answer of a gate; without one the run waits there."""
        check_texts(self._max_bytes, payload_json=request.payload_json)
        check_texts(min(MAX_TIMEOUT_BYTES, self._max_bytes), on_timeout_json=request.on_timeout_json)
        trace, owner = trace_of(context), owner_of(context)
        texts = (request.payload_json, request.on_timeout_json)
        payload, on_timeout = await self._without_secrets(texts, request)
        terms = GateTerms(
            payload_json=payload,
            risk=request.risk or _risk_of(request.payload_json),
            timeout_ms=request.timeout_ms,
            on_timeout_json=request.on_timeout_json,
            shown_timeout_json=on_timeout,
            remind_after_ms=request.remind_after_ms,
            escalate_after_ms=request.escalate_after_ms,
        )
        signal = await self._database.write(
            lambda tx: gates.wait(tx, request.run_id, request.gate_name, terms=terms, owner=owner, trace=trace),
            size=request.ByteSize() + 512,
        )
        return pb.AwaitSignalResponse(
            delivered=signal.delivered,
            resolution_json=signal.resolution_json,
            answered_by=signal.answered_by,
            answered_at_ms=signal.answered_at_ms,
            deadline_ms=signal.deadline_ms,
            timed_out=signal.timed_out,
        )

    async def send_signal(self, request: pb.SendSignalRequest, context: Context) -> pb.SendSignalResponse:
        """Answer a gate."""
        check_texts(self._max_bytes, resolution_json=request.resolution_json)
        trace = trace_of(context)
        (shown,) = await self._without_secrets((request.resolution_json,), request)

        def send(tx: Transaction) -> pb.SendSignalResponse:
            run = gates.run_for_signal(tx, request.run_id, request.app_name, request.user_id, request.session_id)
            resolution = request.resolution_json
            sent = gates.send(tx, run, request.gate_name, resolution_json=resolution, shown_json=shown, trace=trace)
            status = pb.RunStatus.Name(int(sent.status or 0))
            return pb.SendSignalResponse(accepted=True, run_id=run.run_id, run_status=status, repeated=sent.repeated)

        return await self._database.write(send, size=request.ByteSize() + 512)

    async def list_gates(self, request: pb.ListGatesRequest, context: Context) -> pb.ListGatesResponse:
        """Gates, in pages."""
        wanted = GateFilter(
            state=parse(GateState, "state", request.state) if request.state else None,
            app_name=request.app_name,
            risk=request.risk,
            gate_name=request.gate_name,
            run_id=request.run_id,
            deadline_before_ms=check_time("deadline_before_ms", request.deadline_before_ms),
        )
        found, cursor = await self._database.read(
            lambda reader: gate_list.list_gates(reader, wanted, cursor=request.cursor, limit=request.limit)
        )
        return pb.ListGatesResponse(gates=map(gate_record, found), cursor=cursor)

    async def _without_secrets(
        self, texts: Sequence[str], request: pb.AwaitSignalRequest | pb.SendSignalRequest
    ) -> list[str]:
        """The texts as they are shown: JSON, with secrets hidden and large fields in the object store."""
        if not any(texts):
            return ["" for _ in texts]
        run = await self._database.read(lambda reader: _run_of(reader, request))
        drafts = [
            Draft(
                subject=subject.gate("waiting", request.gate_name, run.run_id),
                kind="gate",
                payload_json=gates.as_json(text),
                tenant=run.tenant,
                user=run.user_id,
                session=run.session_id,
            )
            for text in texts
        ]
        screen = self._journal.screen
        screened = drafts if screen is None else await screen(drafts)
        return [draft.payload_json if text else "" for draft, text in zip(screened, texts, strict=True)]


def _run_of(reader: Reader, request: pb.AwaitSignalRequest | pb.SendSignalRequest) -> Run:
    if isinstance(request, pb.SendSignalRequest):
        return gates.run_for_signal(reader, request.run_id, request.app_name, request.user_id, request.session_id)
    return gates.run_for_signal(reader, request.run_id, "", "", "")


def gate_record(gate: ListedGate) -> pb.GateRecord:
    """A gate on the wire."""
    signal = gate.signal
    return pb.GateRecord(
        run_id=signal.run_id,
        gate_name=signal.gate_name,
        app_name=signal.app_name,
        user_id=gate.user_id,
        session_id=gate.session_id,
        invocation_id=gate.invocation_id,
        tenant_id=gate.tenant_id,
        state=pb.GateState.Name(gate.state),
        payload_json=signal.context_json,
        risk=signal.risk,
        created_at_ms=signal.created_at_ms,
        deadline_ms=signal.deadline_ms,
        on_timeout_json=signal.shown_timeout_json or signal.on_timeout_json,
        remind_at_ms=signal.remind_at_ms,
        reminded_at_ms=signal.reminded_at_ms,
        escalate_at_ms=signal.escalate_at_ms,
        escalated_at_ms=signal.escalated_at_ms,
        answer_json=signal.answer_json,
        answered_by=signal.answered_by,
        answered_at_ms=signal.answered_at_ms,
        truncated=gate.truncated,
    )


def _risk_of(payload_json: str) -> str:
    """The `risk` of a payload, as earlier clients send it; empty if it has none."""
    try:
        payload = msgspec.json.decode(payload_json) if payload_json else None
    except (msgspec.MsgspecError, RecursionError):
        return ""
    risk = payload.get("risk") if isinstance(payload, dict) else None
    return risk if isinstance(risk, str) and len(risk) <= MAX_RISK_CHARS and "\0" not in risk else ""
