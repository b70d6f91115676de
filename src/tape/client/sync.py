"""The synchronous client: the asyncio client on a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import os
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from tape.client import resumption
from tape.client.aio import DEPRECATED_SPEAKING_AS, AsyncTapeClient
from tape.client.append_batcher import TIMEOUT_S
from tape.client.channel import DEFAULT_URL
from tape.client.failures import forked_client
from tape.client.gap import Gap, OnGap
from tape.client.upgrade import Transport

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncTapeClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[TapeClient, P], T]:
    """The synchronous form of a coroutine method."""

    @wraps(method)
    def call(client: TapeClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._wait(method(client._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncTapeClient, P], AsyncIterator[T]],
) -> Callable[Concatenate[TapeClient, P], Generator[T, None, None]]:
    """The synchronous form of a method that returns an async iterator."""

    @wraps(method)
    def call(client: TapeClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        if (on_gap := kwargs.get("on_gap")) is not None:
            kwargs["on_gap"] = _on_thread(on_gap)
        return client._iterate(method(client._client, *args, **kwargs))

    return call


def _on_thread(on_gap: Any) -> OnGap:
    """The same function on a thread of its own, so that it may use the client. The stream waits for it."""

    async def report(gap: Gap) -> None:
        await asyncio.to_thread(on_gap, gap)

    return report


class TapeClient:
    """A connection to one server, safe to share between threads. Use with `with`, or call `close()`.

    It has the methods of `AsyncTapeClient`; threads that append at the same time share messages and commits.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        auth: bool = True,
        audience: str = "",
        id_token: str = "",
        lease_owner: str = "",
        append_timeout_s: float = TIMEOUT_S,
        reconnect_timeout_s: float = resumption.TIMEOUT_S,
        transport: Transport | None = None,
    ) -> None:
        self.url = url
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tape-client", daemon=True)
        self._thread.start()

        async def connect() -> AsyncTapeClient:  # on its loop: a channel belongs to the loop it is created on
            return AsyncTapeClient(
                url,
                auth=auth,
                audience=audience,
                id_token=id_token,
                lease_owner=lease_owner,
                append_timeout_s=append_timeout_s,
                reconnect_timeout_s=reconnect_timeout_s,
                transport=transport,
            )

        self._client = self._wait(connect())

    def __enter__(self) -> TapeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for appends in flight, then disconnect."""
        if self._loop.is_closed() or os.getpid() != self._pid:
            return
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def with_lease_owner(self, lease_owner: str) -> TapeClient:
        """A client for another lease owner on the same connection; `close()` of this client disconnects both."""
        other = copy.copy(self)
        other._client = self._client.with_lease_owner(lease_owner)
        return other

    def speaking_as(self, lease_owner: str) -> TapeClient:
        """Deprecated name of `with_lease_owner`."""
        warnings.warn(DEPRECATED_SPEAKING_AS, DeprecationWarning, stacklevel=2)
        return self.with_lease_owner(lease_owner)

    @property
    def reconnects(self) -> Mapping[str, int]:
        """How often streams of this client were lost and opened again, by RPC."""
        return self._client.reconnects

    append = _blocking(AsyncTapeClient.append)
    append_many = _blocking(AsyncTapeClient.append_many)
    head = _blocking(AsyncTapeClient.head)
    follow = _iterating(AsyncTapeClient.follow)
    follow_batches = _iterating(AsyncTapeClient.follow_batches)
    subscribe_by_subject = _iterating(AsyncTapeClient.subscribe_by_subject)
    subscribe_events = _iterating(AsyncTapeClient.subscribe_events)
    subscribe_run = _iterating(AsyncTapeClient.subscribe_run)

    write_value = _blocking(AsyncTapeClient.write_value)
    get_value = _blocking(AsyncTapeClient.get_value)
    delete_value = _blocking(AsyncTapeClient.delete_value)
    watch_value = _iterating(AsyncTapeClient.watch_value)

    begin_run = _blocking(AsyncTapeClient.begin_run)
    resume_run = _blocking(AsyncTapeClient.resume_run)
    advance_run = _blocking(AsyncTapeClient.advance_run)
    end_run = _blocking(AsyncTapeClient.end_run)
    get_run = _blocking(AsyncTapeClient.get_run)
    list_runs = _blocking(AsyncTapeClient.list_runs)
    list_runs_to_recover = _blocking(AsyncTapeClient.list_runs_to_recover)
    list_compactable_runs = _blocking(AsyncTapeClient.list_compactable_runs)
    compact_run = _blocking(AsyncTapeClient.compact_run)
    record_decision = _blocking(AsyncTapeClient.record_decision)
    get_decision = _blocking(AsyncTapeClient.get_decision)
    begin_effect = _blocking(AsyncTapeClient.begin_effect)
    complete_effect = _blocking(AsyncTapeClient.complete_effect)
    get_effect = _blocking(AsyncTapeClient.get_effect)
    reconcile_effect = _blocking(AsyncTapeClient.reconcile_effect)
    list_effects_to_dispatch = _blocking(AsyncTapeClient.list_effects_to_dispatch)
    claim_effect_dispatch = _blocking(AsyncTapeClient.claim_effect_dispatch)
    record_dispatch_attempt = _blocking(AsyncTapeClient.record_dispatch_attempt)
    record_external_observation = _blocking(AsyncTapeClient.record_external_observation)
    list_pending_effects = _blocking(AsyncTapeClient.list_pending_effects)
    register_compensation = _blocking(AsyncTapeClient.register_compensation)
    list_obligations = _blocking(AsyncTapeClient.list_obligations)
    list_unresolved_obligations = _blocking(AsyncTapeClient.list_unresolved_obligations)
    claim_obligation = _blocking(AsyncTapeClient.claim_obligation)
    record_obligation_attempt = _blocking(AsyncTapeClient.record_obligation_attempt)
    resolve_obligation = _blocking(AsyncTapeClient.resolve_obligation)
    set_budget = _blocking(AsyncTapeClient.set_budget)
    admit_budget = _blocking(AsyncTapeClient.admit_budget)
    charge_budget = _blocking(AsyncTapeClient.charge_budget)
    await_signal = _blocking(AsyncTapeClient.await_signal)
    send_signal = _blocking(AsyncTapeClient.send_signal)
    list_gates = _blocking(AsyncTapeClient.list_gates)
    create_schedule = _blocking(AsyncTapeClient.create_schedule)
    get_schedule = _blocking(AsyncTapeClient.get_schedule)
    list_schedules = _blocking(AsyncTapeClient.list_schedules)
    pause_schedule = _blocking(AsyncTapeClient.pause_schedule)
    resume_schedule = _blocking(AsyncTapeClient.resume_schedule)
    delete_schedule = _blocking(AsyncTapeClient.delete_schedule)
    trigger_schedule = _blocking(AsyncTapeClient.trigger_schedule)
    sleep_run = _blocking(AsyncTapeClient.sleep_run)
    fork_run = _blocking(AsyncTapeClient.fork_run)
    list_run_steps = _blocking(AsyncTapeClient.list_run_steps)
    set_timer = _blocking(AsyncTapeClient.set_timer)
    cancel_timer = _blocking(AsyncTapeClient.cancel_timer)
    list_due_timers = _blocking(AsyncTapeClient.list_due_timers)
    complete_timer = _blocking(AsyncTapeClient.complete_timer)
    create_session = _blocking(AsyncTapeClient.create_session)
    get_session = _blocking(AsyncTapeClient.get_session)
    list_sessions = _blocking(AsyncTapeClient.list_sessions)
    delete_session = _blocking(AsyncTapeClient.delete_session)
    append_event = _blocking(AsyncTapeClient.append_event)

    register_reaction = _blocking(AsyncTapeClient.register_reaction)
    deregister_reaction = _blocking(AsyncTapeClient.deregister_reaction)
    list_reactions = _blocking(AsyncTapeClient.list_reactions)
    get_reaction_stats = _blocking(AsyncTapeClient.get_reaction_stats)
    explain_reaction = _blocking(AsyncTapeClient.explain_reaction)
    test_reaction = _blocking(AsyncTapeClient.test_reaction)
    claim_tasks = _blocking(AsyncTapeClient.claim_tasks)
    complete_task = _blocking(AsyncTapeClient.complete_task)
    nack_task = _blocking(AsyncTapeClient.nack_task)
    settle_tasks = _blocking(AsyncTapeClient.settle_tasks)
    list_tasks = _blocking(AsyncTapeClient.list_tasks)
    get_task = _blocking(AsyncTapeClient.get_task)
    redrive_tasks = _blocking(AsyncTapeClient.redrive_tasks)
    retry_runs = _blocking(AsyncTapeClient.retry_runs)
    drop_tasks = _blocking(AsyncTapeClient.drop_tasks)
    list_dead_letters = _blocking(AsyncTapeClient.list_dead_letters)
    get_dead_letter = _blocking(AsyncTapeClient.get_dead_letter)
    redrive_dead_letters = _blocking(AsyncTapeClient.redrive_dead_letters)
    drop_dead_letters = _blocking(AsyncTapeClient.drop_dead_letters)

    register_resource = _blocking(AsyncTapeClient.register_resource)
    get_resource = _blocking(AsyncTapeClient.get_resource)
    list_resources = _blocking(AsyncTapeClient.list_resources)
    execute = _blocking(AsyncTapeClient.execute)
    execute_many = _blocking(AsyncTapeClient.execute_many)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._pid:
            work.close()
            raise forked_client(self.url, self._pid)
        context = contextvars.copy_context()  # the call belongs to the trace span of the calling thread

        async def in_context() -> T:
            return await self._loop.create_task(work, context=context)

        return asyncio.run_coroutine_threadsafe(in_context(), self._loop).result()

    def _iterate(self, stream: AsyncIterator[T]) -> Generator[T, None, None]:
        async def read_next() -> T:
            return await anext(stream)

        async def close() -> None:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

        try:
            while True:
                try:
                    yield self._wait(read_next())
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_closed() and os.getpid() == self._pid:
                self._wait(close())
