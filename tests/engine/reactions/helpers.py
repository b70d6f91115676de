"""What the tests of reactions share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from tape.client import AsyncTapeClient
from tape.proto import tape_pb2 as pb

AGENT, TASK, PUBLISH = pb.HANDLER_KIND_AGENT, pb.HANDLER_KIND_TASK, pb.HANDLER_KIND_PUBLISH
PENDING, CLAIMED, DONE, FAILED, DLQ = (
    pb.TASK_STATUS_PENDING,
    pb.TASK_STATUS_CLAIMED,
    pb.TASK_STATUS_DONE,
    pb.TASK_STATUS_FAILED,
    pb.TASK_STATUS_DLQ,
)


async def register(client: AsyncTapeClient, reaction_id: str = "r", **fields: Any) -> pb.Reaction:
    """A reaction on orders, with many tasks at once allowed unless the test says otherwise."""
    defaults = {"subject_pattern": "/tape/order/**", "handler_kind": TASK, "max_concurrency": 1_000}
    return await client.register_reaction(reaction_id=reaction_id, **(defaults | fields))


async def until(condition: Callable[[], Awaitable[Any]], what: str, seconds: float = 120) -> Any:
    """Wait until a condition holds; what it gave then."""
    try:
        async with asyncio.timeout(seconds):
            while not (found := await condition()):
                await asyncio.sleep(0.01)
            return found
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s for {what}") from None


async def matched(client: AsyncTapeClient, up_to: int | None = None) -> None:
    """Wait until every reaction has been matched against the whole journal, or up to an entry."""
    goal = (await client.head()).global_seq if up_to is None else up_to

    async def is_matched() -> bool:
        answer = await client.get_reaction_stats()
        return all(stats.position >= goal for stats in answer.stats)

    await until(is_matched, f"matching up to {goal}")


async def tasks(client: AsyncTapeClient, reaction_id: str = "r", status: Any = 0) -> list[pb.Task]:
    """A reaction's tasks in the order of the journal."""
    answer = await client.list_tasks(reaction_id=reaction_id, status=status, limit=10_000)
    return list(reversed(answer.tasks))


async def sources(client: AsyncTapeClient, reaction_id: str = "r") -> list[int]:
    """The entries that a reaction has made tasks of."""
    return [task.source_global_seq for task in await tasks(client, reaction_id)]


async def claim(client: AsyncTapeClient, reaction_id: str = "r", owner: str = "w", **fields: Any) -> list[pb.Task]:
    """Claimed tasks."""
    return list((await client.claim_tasks(reaction_id=reaction_id, owner=owner, **fields)).tasks)


class Dispatcher:
    """A task stream and what has come over it."""

    def __init__(
        self, client: AsyncTapeClient, owner: str, reactions: Iterable[str], window: int, **fields: Any
    ) -> None:
        self._requests: asyncio.Queue[pb.DispatchRequest | None] = asyncio.Queue()
        self._requests.put_nowait(pb.DispatchRequest(owner=owner, reaction_ids=reactions, window=window, **fields))
        self._stream = client.dispatch_tasks(self._outgoing())
        self.tasks: list[pb.Task] = []
        self.settled: list[pb.Task] = []
        self.refused: list[pb.TaskRefusal] = []
        self.renewed: list[pb.Task] = []
        self.error: Exception | None = None
        self.is_over = False
        self._grew = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _outgoing(self) -> AsyncIterator[pb.DispatchRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self) -> None:
        try:
            async for reply in self._stream:
                async with self._grew:
                    self.tasks += reply.tasks
                    self.settled += reply.settled
                    self.refused += reply.refused
                    self.renewed += reply.renewed
                    self._grew.notify_all()
        except Exception as error:
            self.error = error
        async with self._grew:
            self.is_over = True
            self._grew.notify_all()

    def say(self, **fields: Any) -> None:
        """Send something."""
        self._requests.put_nowait(pb.DispatchRequest(**fields))

    async def until(self, condition: Callable[[Dispatcher], object], what: str) -> None:
        """Wait until what has come is enough."""
        try:
            async with asyncio.timeout(120), self._grew:
                await self._grew.wait_for(lambda: condition(self) or self.is_over)
        except TimeoutError:
            raise AssertionError(f"waited for {what}; has {len(self.tasks)} tasks") from None
        assert condition(self), f"the stream ended before {what}: {self.error}"

    async def close(self) -> None:
        """Say goodbye and wait for the last answers."""
        self._requests.put_nowait(None)
        await asyncio.wait_for(self._reading, 120)
