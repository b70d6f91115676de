"""What the playbook of a batch says of its messages: the list `results` of its output, one item for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from tape.errors import InvalidBatchResults

MAX_REASON_CHARS = 500

Verdict: TypeAlias = Literal["ok", "retry", "dead_letter"]
_VERDICTS: tuple[Verdict, ...] = ("ok", "retry", "dead_letter")


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that was not handled: its number in the batch, what becomes of it, and why."""

    index: int
    verdict: Verdict
    reason: str


def failed_messages(output: Any, count: int) -> list[FailedMessage]:
    """The messages of a batch that its playbook did not handle. Without `results`, all are handled.

    An item is `ok`, `retry` or `dead_letter`, or a mapping with one of them as `result` and a `reason`. The error of a
    step with `on_error: continue` is a retry; any other value is ok. Raises InvalidBatchResults.
    """
    if not isinstance(output, dict) or "results" not in output:
        return []
    results = output["results"]
    if not isinstance(results, list) or len(results) != count:
        found = f"{len(results)} items" if isinstance(results, list) else type(results).__name__
        raise InvalidBatchResults(f"results of the output has {found}; it must be a list of {count}, one per message.")
    read = (_read(index, item) for index, item in enumerate(results))
    return [each for each in read if each.verdict != "ok"]


def failures_json(output: Any, failed: Sequence[FailedMessage]) -> str:
    """The detail of the run of a batch, with the messages that it did not handle."""
    listed = [{"index": each.index, "result": each.verdict, "reason": each.reason} for each in failed]
    return msgspec.json.encode({"output": output, "failed": listed}).decode()


def _read(index: int, item: Any) -> FailedMessage:
    if isinstance(item, str) and item in _VERDICTS:
        return FailedMessage(index, _verdict(index, item), "")
    if not isinstance(item, dict):
        return FailedMessage(index, "ok", "")
    if "result" in item:
        return FailedMessage(index, _verdict(index, item["result"]), _text(item.get("reason", "")))
    if set(item) == {"error"} and isinstance(item["error"], dict) and "message" in item["error"]:
        error = item["error"]
        return FailedMessage(index, "retry", _text(f"{error.get('type', '')}: {error['message']}"))
    return FailedMessage(index, "ok", "")


def _verdict(index: int, given: Any) -> Verdict:
    for verdict in _VERDICTS:
        if given == verdict:
            return verdict
    raise InvalidBatchResults(f"results[{index}].result is {str(given)[:40]!r}; use one of {', '.join(_VERDICTS)}.")


def _text(reason: Any) -> str:
    return str(reason)[:MAX_REASON_CHARS].replace("\0", "")
