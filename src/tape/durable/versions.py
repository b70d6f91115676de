"""Versions of a run's code: deliberate changes, decided once per run."""

from __future__ import annotations

import msgspec

from tape.durable.effect_call import EffectCall
from tape.errors import InvalidInput, RunChanged
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb


def version(call: EffectCall, name: str, newest: int, lowest: int = 1) -> int:
    """The version of a change that this run has: see `DurableRun.version`."""
    if not name:
        raise InvalidInput("version needs a name, such as run.version('refund', 2).")
    if not 0 <= lowest <= newest:
        raise InvalidInput(f"version {name!r} goes from {lowest} to {newest}; give lowest <= newest, both from 0 on.")
    run = call.run
    chosen = run.versions.get(name)
    if chosen is None:
        chosen = run.versions[name] = _recorded(call, name, newest, lowest)
    if not lowest <= chosen <= newest:
        change = RunChanged(
            f"The run {run.run_id!r} has version {chosen} of {name!r}, and this code knows {lowest} to {newest} only."
        )
        change.remedy = "Run a version of the code that still knows it; see docs/how-to/change-a-running-agent.md"
        raise run.interrupt(change)
    return chosen


def _recorded(call: EffectCall, name: str, newest: int, lowest: int) -> int:
    """The recorded version; a run that has passed this point before it existed records the lowest."""
    run = call.run
    key = f"{run.run_id}/version/{name}"
    cursor = run.cursor
    is_replaying = cursor is not None and not cursor.is_caught_up
    begun = run.call(
        run.client.begin_effect,
        decision_index=call.decision_index,
        tool_name=f"version.{name}",
        custom_key=key,
        semantics=pb.EFFECT_SEMANTICS_OBSERVE_ONLY,
        change_check=pb.CHANGE_CHECK_PEEK if is_replaying else pb.CHANGE_CHECK_UNSPECIFIED,
        after_seq=cursor.last_seq if cursor is not None else 0,
    )
    if cursor is not None:
        cursor.saw(begun.seq)
    recorded = begun.response_json
    if begun.status == pb.EFFECT_STATUS_PENDING:
        recorded = run.settle(
            run.client.complete_effect,
            idempotency_key=key,
            status=pb.EFFECT_STATUS_CONFIRMED,
            response_json=to_json({"version": lowest if begun.displaced else newest}),
        ).response_json
    return int(msgspec.json.decode(recorded)["version"])
