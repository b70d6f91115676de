"""The synchronous client with RPC errors, and lists where it lists something."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from typing import Any, TypeVar

from tape.client import DEFAULT_URL as DEFAULT_URL
from tape.client import sync
from tape.compat.bus.rpc_errors import rpc_errors

T = TypeVar("T")
# The repeated field of the answer to each call that lists something.
_FIELDS = {
    "claim_tasks": "tasks",
    "list_compactable_runs": "runs",
    "list_due_timers": "timers",
    "list_effects_to_dispatch": "effects",
    "list_obligations": "obligations",
    "list_pending_effects": "effects",
    "list_reactions": "reactions",
    "list_runs_to_recover": "runs",
    "list_sessions": "sessions",
    "list_tasks": "tasks",
    "list_unresolved_obligations": "obligations",
}


class MessageList(list[Any]):
    """What a call listed. The fields of the message are its attributes: `answer` and `answer.tasks` are the same."""

    def __init__(self, items: Iterable[Any], message: Any) -> None:
        super().__init__(items)
        self.message = message

    def __getattr__(self, name: str) -> Any:
        if name == "message":
            raise AttributeError(name)
        return getattr(self.message, name)


class SettledTask:
    """A task after CompleteTask or NackTask: its fields, and `task`, the message itself."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        if name == "task":
            raise AttributeError(name)
        return getattr(self.task, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.task == (other.task if isinstance(other, SettledTask) else other))

    __hash__ = None  # type: ignore[assignment]  # messages have none either

    def __repr__(self) -> str:
        return repr(self.task)


class TapeClient(sync.TapeClient):
    """A connection to one server. Errors are `grpc.RpcError`s; what lists something returns a list."""

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        with rpc_errors():
            return super()._wait(call)

    def _iterate(self, items: AsyncIterator[T]) -> Generator[T, None, None]:
        with rpc_errors():
            yield from super()._iterate(items)

    def complete_task(self, **fields: Any) -> Any:
        """Complete a claimed task; the task."""
        return SettledTask(super().complete_task(**fields).task)

    def nack_task(self, **fields: Any) -> Any:
        """Fail a claimed task; the task."""
        return SettledTask(super().nack_task(**fields).task)


def _listing(name: str, field: str) -> Any:
    method = getattr(sync.TapeClient, name)

    def call(client: TapeClient, *args: Any, **kwargs: Any) -> MessageList:
        message = method(client, *args, **kwargs)
        return MessageList(getattr(message, field), message)

    call.__name__, call.__doc__ = name, method.__doc__
    return call


for _name, _field in _FIELDS.items():
    setattr(TapeClient, _name, _listing(_name, _field))
