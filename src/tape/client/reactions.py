"""The calls about reactions and tasks, each named for its RPC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from tape.client import rpcs
from tape.client.channel import ChannelCalls
from tape.proto import tape_pb2 as pb


class ReactionCalls(ChannelCalls):
    """The registry of reactions, tasks, and dead letters."""

    # ── reactions ────────────────────────────────────────────────────────────────────────────────

    async def register_reaction(
        self,
        *,
        reaction_id: str = "",
        name: str = "",
        subject_pattern: str,
        predicate_cel: str = "",
        handler_kind: int | str,
        agent_app: str = "",
        publish_target: str = "",
        max_concurrency: int = 1,
        rate_limit_per_s: int = 0,
        debounce_ms: int = 0,
        retry_max: int = 5,
        retry_backoff_ms: int = 1000,
        dlq_after_n: int = 5,
        num_shards: int = 1,
        from_global_seq: int = 0,
        backfill: bool = False,
        allow_self: bool = False,
        strict_order: bool = False,
    ) -> pb.Reaction:
        """Register a reaction, or change the one with its id.

        A new one begins at the head unless `from_global_seq` or `backfill` is set.
        """
        request = pb.Reaction(
            reaction_id=reaction_id,
            name=name,
            subject_pattern=subject_pattern,
            predicate_cel=predicate_cel,
            handler_kind=cast("pb.HandlerKind", handler_kind),
            agent_app=agent_app,
            publish_target=publish_target,
            max_concurrency=max_concurrency,
            rate_limit_per_s=rate_limit_per_s,
            debounce_ms=debounce_ms,
            retry_max=retry_max,
            retry_backoff_ms=retry_backoff_ms,
            dlq_after_n=dlq_after_n,
            num_shards=num_shards,
            from_global_seq=from_global_seq,
            backfill=backfill,
            allow_self=allow_self,
            strict_order=strict_order,
        )
        return await self._channel.call(rpcs.REGISTER_REACTION, request)

    async def deregister_reaction(self, reaction_id: str) -> bool:
        """Remove a reaction; False if there never was one. Its tasks stay."""
        answer = await self._channel.call(
            rpcs.DEREGISTER_REACTION, pb.DeregisterReactionRequest(reaction_id=reaction_id)
        )
        return answer.deregistered

    async def list_reactions(self, subject_pattern: str = "") -> pb.ListReactionsResponse:
        """The reactions that are registered, all or those with exactly this pattern."""
        request = pb.ListReactionsRequest(subject_pattern=subject_pattern)
        return await self._channel.call(rpcs.LIST_REACTIONS, request)

    async def get_reaction_stats(self, reaction_id: str = "") -> pb.GetReactionStatsResponse:
        """Statistics of one reaction or of all: lag, tasks by state, predicate errors."""
        request = pb.GetReactionStatsRequest(reaction_id=reaction_id)
        return await self._channel.call(rpcs.GET_REACTION_STATS, request)

    async def explain_reaction(self, reaction_id: str, global_seq: int) -> pb.ExplainReactionResponse:
        """Why a reaction did or did not fire on an entry, and the state of its task."""
        request = pb.ExplainReactionRequest(reaction_id=reaction_id, global_seq=global_seq)
        return await self._channel.call(rpcs.EXPLAIN_REACTION, request)

    async def test_reaction(
        self,
        *,
        subject_pattern: str,
        predicate_cel: str = "",
        from_global_seq: int = 0,
        to_global_seq: int = 0,
        samples: int = 5,
        bucket_ms: int = 0,
    ) -> pb.TestReactionResponse:
        """What a pattern and a predicate would have fired on in a range of the journal."""
        request = pb.TestReactionRequest(
            subject_pattern=subject_pattern,
            predicate_cel=predicate_cel,
            from_global_seq=from_global_seq,
            to_global_seq=to_global_seq,
            samples=samples,
            bucket_ms=bucket_ms,
        )
        return await self._channel.call(rpcs.TEST_REACTION, request)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────

    async def claim_tasks(
        self,
        *,
        reaction_id: str,
        shard: int = -1,
        owner: str,
        lease_ms: int = 60000,
        max: int = 16,  # noqa: A002  (the RPC's name for it)
        now_ms: int = 0,
        task_ids: Sequence[str] = (),
    ) -> pb.ClaimTasksResponse:
        """Lease tasks for `lease_ms`; with `task_ids`, renew the owner's leases on these."""
        request = pb.ClaimTasksRequest(
            reaction_id=reaction_id,
            shard=shard,
            owner=owner,
            lease_ms=lease_ms,
            max=max,
            now_ms=now_ms,
            task_ids=task_ids,
        )
        return await self._channel.call(rpcs.CLAIM_TASKS, request)

    async def complete_task(self, *, task_id: str, owner: str) -> pb.CompleteTaskResponse:
        """Complete a claimed task."""
        request = pb.CompleteTaskRequest(task_id=task_id, owner=owner)
        return await self._channel.call(rpcs.COMPLETE_TASK, request)

    async def nack_task(
        self, *, task_id: str, owner: str, error: str = "", permanent: bool = False
    ) -> pb.NackTaskResponse:
        """Fail a claimed task: it is retried later, or becomes a dead letter at once with `permanent`."""
        request = pb.NackTaskRequest(task_id=task_id, owner=owner, error=error, permanent=permanent)
        return await self._channel.call(rpcs.NACK_TASK, request)

    async def settle_tasks(
        self,
        *,
        owner: str,
        completed: Sequence[str] = (),
        failed: Iterable[pb.TaskFailure] = (),
        released: Sequence[str] = (),
        answered: Iterable[pb.TaskAnswers] = (),
    ) -> pb.SettleTasksResponse:
        """Complete, nack and release many tasks in one step; tasks that the owner has not leased are rejected.

        `answered` names the downstreams that answered tasks.
        """
        request = pb.SettleTasksRequest(
            owner=owner, completed=completed, failed=failed, released=released, answered=answered
        )
        return await self._channel.call(rpcs.SETTLE_TASKS, request)

    async def list_tasks(
        self, *, reaction_id: str, status: int | str = 0, limit: int = 200, before_global_seq: int = 0
    ) -> pb.ListTasksResponse:
        """A reaction's tasks, the newest first."""
        request = pb.ListTasksRequest(
            reaction_id=reaction_id,
            status=cast("pb.TaskStatus", status),
            limit=limit,
            before_global_seq=before_global_seq,
        )
        return await self._channel.call(rpcs.LIST_TASKS, request)

    async def get_task(self, task_id: str) -> pb.Task:
        """One task."""
        return await self._channel.call(rpcs.GET_TASK, pb.GetTaskRequest(task_id=task_id))

    async def redrive_tasks(
        self,
        *,
        task_ids: Sequence[str] = (),
        filter: pb.TaskFilter | None = None,  # noqa: A002  (the RPC's name for it)
        everything: bool = False,
        limit: int = 0,
    ) -> pb.RedriveTasksResponse:
        """Redrive dead letters: these, those that match a filter, or all."""
        request = pb.RedriveTasksRequest(task_ids=task_ids, filter=filter, everything=everything, limit=limit)
        return await self._channel.call(rpcs.REDRIVE_TASKS, request)

    async def retry_runs(
        self,
        *,
        run_ids: Sequence[str] = (),
        subscription: str = "",
        ended_after_ms: int = 0,
        limit: int = 0,
        dry_run: bool = False,
        resume: bool = False,
    ) -> pb.RetryRunsResponse:
        """Begin failed runs again under their ids: these, or those of a subscription; confirmed steps stay.

        With `resume`, runs that are CANCELLED or STUCK go on instead.
        """
        request = pb.RetryRunsRequest(
            run_ids=run_ids,
            subscription=subscription,
            ended_after_ms=ended_after_ms,
            limit=limit,
            dry_run=dry_run,
            resume=resume,
        )
        return await self._channel.call(rpcs.RETRY_RUNS, request)

    async def drop_tasks(
        self,
        *,
        task_ids: Sequence[str] = (),
        filter: pb.TaskFilter | None = None,  # noqa: A002  (the RPC's name for it)
        everything: bool = False,
        limit: int = 0,
        reason: str = "",
    ) -> pb.DropTasksResponse:
        """Drop dead letters: these, those that match a filter, or all."""
        request = pb.DropTasksRequest(
            task_ids=task_ids, filter=filter, everything=everything, limit=limit, reason=reason
        )
        return await self._channel.call(rpcs.DROP_TASKS, request)

    # ── dead letters of every origin ─────────────────────────────────────────────────────────────

    async def list_dead_letters(
        self,
        *,
        filter: pb.DeadLetterFilter | None = None,  # noqa: A002  (the RPC's name for it)
        cursor: str = "",
        limit: int = 0,
        group: bool = False,
        preview_bytes: int = 0,
    ) -> pb.ListDeadLettersResponse:
        """Dead letters of every origin that the server reaches, page by page; with `group` their counts by error."""
        request = pb.ListDeadLettersRequest(
            filter=filter, cursor=cursor, limit=limit, group=group, preview_bytes=preview_bytes
        )
        return await self._channel.call(rpcs.LIST_DEAD_LETTERS, request)

    async def get_dead_letter(self, id: str, *, preview_bytes: int = 0) -> pb.DeadLetter:  # noqa: A002
        """One dead letter, with up to 64 KiB of its payload."""
        request = pb.GetDeadLetterRequest(id=id, preview_bytes=preview_bytes)
        return await self._channel.call(rpcs.GET_DEAD_LETTER, request)

    async def redrive_dead_letters(
        self,
        *,
        ids: Sequence[str] = (),
        filter: pb.DeadLetterFilter | None = None,  # noqa: A002  (the RPC's name for it)
        everything: bool = False,
        limit: int = 0,
        dry_run: bool = False,
        cursor: str = "",
    ) -> pb.SettleDeadLettersResponse:
        """Bring dead letters back: these, those that match a filter, or all."""
        request = pb.RedriveDeadLettersRequest(
            ids=ids, filter=filter, everything=everything, limit=limit, dry_run=dry_run, cursor=cursor
        )
        return await self._channel.call(rpcs.REDRIVE_DEAD_LETTERS, request)

    async def drop_dead_letters(
        self,
        *,
        ids: Sequence[str] = (),
        filter: pb.DeadLetterFilter | None = None,  # noqa: A002  (the RPC's name for it)
        everything: bool = False,
        limit: int = 0,
        dry_run: bool = False,
        cursor: str = "",
        reason: str = "",
    ) -> pb.SettleDeadLettersResponse:
        """Give dead letters up: these, those that match a filter, or all."""
        request = pb.DropDeadLettersRequest(
            ids=ids, filter=filter, everything=everything, limit=limit, dry_run=dry_run, cursor=cursor, reason=reason
        )
        return await self._channel.call(rpcs.DROP_DEAD_LETTERS, request)
