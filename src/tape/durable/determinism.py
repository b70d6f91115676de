"""Non-deterministic values, recorded once per run: a resumed run gets the recorded ones.

Each is an observe-only effect (`det.now`, `det.random`, …), so the journal shows it too.
"""

from __future__ import annotations

import random as _random
import time
import uuid as _uuid
from collections.abc import Callable
from typing import Any

import msgspec

from tape.client.channel import DEFAULT_URL
from tape.client.shared import shared_client
from tape.durable.callback_arguments import finish
from tape.durable.effect_call import call_of
from tape.durable.server_retry import call_with_retry
from tape.errors import InvalidInput
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb


def now(tool_context: Any, **kw: Any) -> float:
    """Seconds since 1970 at the run's first call."""
    return float(sample(tool_context, time.time, **_named(kw, "now")))


def random(tool_context: Any, **kw: Any) -> float:
    """A number from [0, 1)."""
    return float(sample(tool_context, _random.random, **_named(kw, "random")))


def uuid(tool_context: Any, **kw: Any) -> str:
    """A random UUID."""
    return str(sample(tool_context, lambda: str(_uuid.uuid4()), **_named(kw, "uuid")))


def sample(
    tool_context: Any,
    fn: Callable[..., Any],
    *fn_args: Any,
    name: str = "sample",
    url: str = DEFAULT_URL,
    **fn_kwargs: Any,
) -> Any:
    """The result of `fn(*fn_args, **fn_kwargs)`, called once per run and recorded.

    Samples are identified by `name` and by the number of earlier samples of that name. The result must be a JSON
    value. `url` is the server for a context without a client.
    """
    call = call_of(tool_context)
    client = call.run.client or shared_client(url)
    key = call.inner_key(f"det.{name}")
    begun = call_with_retry(
        client.begin_effect,
        run_id=call.run_id,
        decision_index=call.decision_index,
        tool_name=f"det.{name}",
        custom_key=key,
        semantics=pb.EFFECT_SEMANTICS_OBSERVE_ONLY,
    )
    recorded = begun.response_json
    if begun.status == pb.EFFECT_STATUS_PENDING:
        value = finish(fn(*fn_args, **fn_kwargs))
        recorded = call_with_retry(
            client.complete_effect,
            run_id=call.run_id,
            idempotency_key=key,
            status=pb.EFFECT_STATUS_CONFIRMED,
            response_json=to_json({"value": value}),
        ).response_json
    return msgspec.json.decode(recorded)["value"]


def _named(kw: dict[str, Any], name: str) -> dict[str, Any]:
    if unknown := sorted(set(kw) - {"name", "url"}):
        raise InvalidInput(f"det.{name} has no setting {unknown[0]!r}; it has name and url.")
    return {"name": name, **kw}
