"""The functions of `tape` that make one call, with RPC errors."""

from __future__ import annotations

from collections.abc import Generator

from tape.client import DEFAULT_URL
from tape.compat.bus.rpc_errors import raising_rpc_errors, rpc_errors
from tape.durable import calls
from tape.proto import tape_pb2 as pb

cancel_run = raising_rpc_errors(calls.cancel_run)
cancel_timer = raising_rpc_errors(calls.cancel_timer)
delete_value = raising_rpc_errors(calls.delete_value)
get_value = raising_rpc_errors(calls.get_value)
heartbeat = raising_rpc_errors(calls.heartbeat)
is_cancelled = raising_rpc_errors(calls.is_cancelled)
policy_is = raising_rpc_errors(calls.policy_is)
send_signal = raising_rpc_errors(calls.send_signal)
set_timer = raising_rpc_errors(calls.set_timer)
set_value = raising_rpc_errors(calls.set_value)


def watch_value(
    namespace: str, key: str, *, from_version: int = 0, url: str = DEFAULT_URL
) -> Generator[pb.ValueEvent, None, None]:
    """Every version above `from_version`, in order, then each new one, without end."""
    with rpc_errors():
        yield from calls.watch_value(namespace, key, from_version=from_version, url=url)
