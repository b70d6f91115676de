"""Runs and effects as tests need them."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tape.client import TapeClient
from tape.proto import tape_pb2 as pb

IDEMPOTENT, NON_IDEMPOTENT = 1, 2


def begin(client: TapeClient, **fields: Any) -> str:
    """A run of its own."""
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s", "invocation_id": uuid.uuid4().hex}
    return client.begin_run(**(ids | {"scopes": ["bank"]} | fields)).run_id


def send(client: TapeClient, run_id: str, semantics: int = NON_IDEMPOTENT, **request: Any) -> str:
    """An effect in the outbox; its key."""
    return client.begin_effect(
        run_id=run_id,
        decision_index=0,
        tool_name="pay",
        custom_key=f"{run_id}/{uuid.uuid4().hex}",
        request_json=json.dumps(request),
        semantics=semantics,
        dispatch_mode=2,
        connector="bank",
        scope="bank",
    ).idempotency_key


def effect_of(client: TapeClient, run_id: str, key: str) -> pb.EffectRecord:
    return client.get_effect(run_id=run_id, idempotency_key=key).effect


def owe(client: TapeClient, run_id: str, *kinds: str, key: str = "", **payload: Any) -> list[int]:
    """Obligations, in that order."""
    return [
        client.register_compensation(
            run_id=run_id, effect_key=key or kind, kind=kind, payload_json=json.dumps(payload or {"kind": kind})
        ).seq
        for kind in kinds
    ]


def fail(client: TapeClient, run_id: str) -> None:
    client.end_run(run_id=run_id, status=pb.RUN_STATUS_FAILED)


def status_of(client: TapeClient, run_id: str) -> str:
    return pb.RunStatus.Name(client.get_run(run_id).status).removeprefix("RUN_STATUS_")


def outcomes(reports: list[dict[str, Any]]) -> list[str]:
    return [report["outcome"] for report in reports]
