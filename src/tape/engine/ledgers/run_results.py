"""What a run gave: its result, or the error it failed with."""

from __future__ import annotations

from typing import Any

import msgspec

from tape.base import structs
from tape.engine.ledgers.run_record import Run
from tape.errors import InvalidJson
from tape.model.json_depth import check_depth
from tape.model.ledger_states import RunStatus

# Results of more bytes are on the run alone; its entry has the number of bytes.
JOURNALED_BYTES = 256 * 1024
# Characters of an error message that the entry of the end has.
MESSAGE_CHARS = 2_000

_WITHOUT_RESULT = (RunStatus.FAILED, RunStatus.STUCK, RunStatus.CANCELLED, RunStatus.COMPENSATING)


class _Detail(msgspec.Struct):
    """What `detail_json` of ended runs says: those of playbooks have an output or an error with a step."""

    output: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None
    message: Any = ""


def check_result(text: str) -> None:
    """Raise InvalidJson unless the text is JSON that an entry can hold."""
    if not text:
        return
    try:
        check_depth(f"[{text}]".encode())
        msgspec.json.decode(text)
    except (InvalidJson, ValueError, RecursionError) as error:
        raise InvalidJson(f"result_json is not JSON that can be recorded: {error}") from error


def result_json(run: Run) -> str:
    """The result of a finished run as JSON; empty if it has none."""
    if run.status != RunStatus.TERMINAL or run.result_json:
        return run.result_json
    return bytes(_detail(run.detail_json).output).decode()


def error_of(run: Run) -> tuple[str, str]:
    """Type and message of the error that a run failed with; empty if it has none."""
    if run.status not in _WITHOUT_RESULT:
        return "", ""
    return _error(run.detail_json)


def facts_json(status: int, detail_json: str, result: str) -> str:
    """What the entry of the end says besides the status, as a JSON object: the result, or the error. "" if nothing."""
    facts: dict[str, Any] = {}
    if status == RunStatus.TERMINAL and result:
        size = len(result.encode())
        facts = {"result": msgspec.Raw(result.encode())} if size <= JOURNALED_BYTES else {"result_bytes": size}
    elif status != RunStatus.TERMINAL:
        kind, message = _error(detail_json)
        if kind or message:
            facts = {"error": {"type": kind[:MESSAGE_CHARS], "message": message[:MESSAGE_CHARS]}}
    return msgspec.json.encode(facts).decode() if facts else ""


def _error(detail_json: str) -> tuple[str, str]:
    detail = _detail(detail_json)
    if isinstance(detail.error, dict):
        return str(detail.error.get("type", "")), str(detail.error.get("message", ""))
    return ("" if detail.error is None else str(detail.error)), str(detail.message or "")


def _detail(detail_json: str) -> _Detail:
    if not detail_json.startswith("{"):
        return _Detail()
    try:
        return structs.decode(detail_json, _Detail)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # clients write what they like
        return _Detail()
