"""Status checks: find out whether an effect with unknown outcome happened, and record the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tape.durable.callback_arguments import call_offering, finish, name_of
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb

_RESOLUTIONS = {
    "confirmed": pb.EFFECT_RESOLUTION_CONFIRMED,
    "failed": pb.EFFECT_RESOLUTION_FAILED,
    "absent": pb.EFFECT_RESOLUTION_ABSENT,
    "duplicate": pb.EFFECT_RESOLUTION_DUPLICATE,
    "stuck": pb.EFFECT_RESOLUTION_STUCK,
}


def check_status(check: Callable[..., Any], effect: pb.EffectRecord) -> tuple[str, dict[str, Any]] | None:
    """The outcome of an effect by its status check, and the response if there is one; None if it is not known yet.

    A check may answer with a dict (it happened, and this is the response), True (it happened), False (it did
    not), None (not known yet), one of confirmed, failed, absent, duplicate, stuck, or an `ObservationResult`.
    It is given what its parameters name: the arguments of the tool, `args`, `idempotency_key`, `run_id`, `effect`.
    """
    try:
        arguments = json.loads(effect.request_json or "{}")
    except ValueError:
        arguments = {}
    offered = {
        **(arguments if isinstance(arguments, dict) else {}),
        "args": arguments,
        "idempotency_key": effect.idempotency_key,
        "business_key": effect.business_key,
        "run_id": effect.run_id,
        "effect": effect,
    }
    answer = finish(call_offering(check, offered, effect.idempotency_key))
    if answer is None:
        return None
    if isinstance(answer, bool):
        return ("confirmed" if answer else "absent"), {}
    if isinstance(answer, dict):
        return "confirmed", answer
    word = str(getattr(answer, "status", answer))
    if word not in _RESOLUTIONS:
        raise InvalidInput(
            f"The status check {name_of(check)} answered {answer!r}; it may answer a dict, True, False, None,"
            f" or one of {', '.join(_RESOLUTIONS)}."
        )
    response = dict(getattr(answer, "response", None) or {})
    if reference := getattr(answer, "external_ref", ""):
        response.setdefault("external_ref", reference)
    return word, response


def observe_unknown(client: Any, effect: pb.EffectRecord, check: Callable[..., Any] | None) -> pb.EffectRecord | None:
    """Run a status check and record its outcome; returns the new record, or None if the outcome is still unknown."""
    observed = check and check_status(check, effect)
    if not observed:
        return None
    word, response = observed
    record: pb.EffectRecord = client.record_external_observation(
        run_id=effect.run_id,
        idempotency_key=effect.idempotency_key,
        resolution=_RESOLUTIONS[word],
        response_json=json.dumps(response) if response else "",
        error_json=json.dumps({"type": "Observed", "message": word}) if word in ("failed", "absent") else "",
    )
    return record
