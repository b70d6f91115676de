"""A checkpointer of LangGraph on a Tape server."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from tape.base.ids import new_id
from tape.client.channel import DEFAULT_URL
from tape.client.shared import shared_client
from tape.client.sync import TapeClient
from tape.durable.server_retry import call_with_retry
from tape.errors import InvalidInput
from tape.langgraph.contents import Contents
from tape.langgraph.thread import Key, StoredCheckpoint, Thread
from tape.proto import tape_pb2 as pb

# Events that are read first to find the latest checkpoint; the whole thread is read if it is not among them.
NEWEST_EVENTS = 100


class TapeCheckpointer(BaseCheckpointSaver[int]):
    """Keeps the checkpoints of threads on a Tape server, for the tenant of its caller.

    A thread is the session `app_name`/`user_id`/thread id, and each checkpoint an event of it. Contents come back as
    they were written: they are not searched for secrets.
    """

    def __init__(
        self,
        url: str = "",
        *,
        client: TapeClient | None = None,
        app_name: str = "langgraph",
        user_id: str = "",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._url = url or os.environ.get("TAPE_URL") or DEFAULT_URL
        self._given = client
        self._app_name = app_name
        self._user_id = user_id
        self._contents: dict[str, Contents] = {}

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a configuration names, or the latest of its thread; None if there is none."""
        thread_id, ns = _thread_of(config), config["configurable"].get("checkpoint_ns", "")
        wanted = get_checkpoint_id(config)
        thread = self._thread(thread_id, newest=NEWEST_EVENTS)
        checkpoint_id = wanted or thread.latest(ns)
        # Of a checkpoint that is among the newest events, all writes are too: they come after it.
        if (ns, checkpoint_id) not in thread.checkpoints:
            thread = self._thread(thread_id)
            checkpoint_id = wanted or thread.latest(ns)
        stored = thread.checkpoints.get((ns, checkpoint_id))
        return None if stored is None else self._tuple(thread_id, thread, stored)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of the interface
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all threads, the newest of each namespace first."""
        ns = config["configurable"].get("checkpoint_ns") if config else None
        only = get_checkpoint_id(config) if config else None
        earlier_than = get_checkpoint_id(before) if before else None
        left = limit
        for thread_id in [_thread_of(config)] if config else self._thread_ids():
            thread = self._thread(thread_id)
            for key in sorted(thread.checkpoints, key=lambda key: key[1], reverse=True):
                if (ns is not None and key[0] != ns) or (only and key[1] != only):
                    continue
                if earlier_than and key[1] >= earlier_than:
                    continue
                if left is not None and left <= 0:
                    return
                found = self._tuple(thread_id, thread, thread.checkpoints[key])
                metadata: Any = found.metadata
                if filter and any(metadata.get(name) != value for name, value in filter.items()):
                    continue
                left = None if left is None else left - 1
                yield found

    def _tuple(self, thread_id: str, thread: Thread, stored: StoredCheckpoint) -> CheckpointTuple:
        contents = self._contents_of(thread_id)

        def load(ref: Any) -> Any:
            return self.serde.loads_typed(contents.get(ref))

        checkpoint: Any = load(stored.checkpoint)
        checkpoint["channel_values"] = {name: load(ref) for name, ref in stored.channels.items()}
        writes = thread.ordered_writes((stored.ns, stored.id))
        return CheckpointTuple(
            config=_config(thread_id, stored.ns, stored.id),
            checkpoint=checkpoint,
            metadata=load(stored.metadata),
            parent_config=_config(thread_id, stored.ns, stored.parent) if stored.parent else None,
            pending_writes=[(task, channel, load(ref)) for task, channel, ref in writes],
        )

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint."""
        thread_id, ns = _thread_of(config), config["configurable"].get("checkpoint_ns", "")
        contents = self._contents_of(thread_id)
        bare: Any = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        stored = {
            "kind": "checkpoint",
            "ns": ns,
            "id": checkpoint["id"],
            "parent": get_checkpoint_id(config) or "",
            "checkpoint": contents.put(self.serde.dumps_typed(bare)),
            "metadata": contents.put(self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))),
            "channels": {
                name: contents.put(self.serde.dumps_typed(value))
                for name, value in checkpoint["channel_values"].items()
                if name in checkpoint["channel_versions"] or name not in new_versions
            },
        }
        self._append(thread_id, stored)
        return _config(thread_id, ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote after a checkpoint."""
        thread_id = _thread_of(config)
        contents = self._contents_of(thread_id)
        stored = {
            "kind": "writes",
            "ns": config["configurable"].get("checkpoint_ns", ""),
            "id": config["configurable"]["checkpoint_id"],
            "task": task_id,
            "path": task_path,
            "writes": [
                [WRITES_IDX_MAP.get(channel, index), channel, contents.put(self.serde.dumps_typed(value))]
                for index, (channel, value) in enumerate(writes)
            ],
        }
        self._append(thread_id, stored)

    # ── deleting and copying ─────────────────────────────────────────────────────────────────────

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread. The journal keeps the entries of what was written."""
        thread = self._thread(thread_id)
        self._contents_of(thread_id).delete(thread.refs())
        call_with_retry(self._client.delete_session, **self._session(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata name one of these runs, and their writes."""
        wanted = set(run_ids)
        for thread_id in self._thread_ids() if wanted else ():
            thread, contents = self._thread(thread_id), self._contents_of(thread_id)
            self._delete(
                thread_id,
                thread,
                [
                    key
                    for key, stored in thread.checkpoints.items()
                    if self.serde.loads_typed(contents.get(stored.metadata)).get("run_id") in wanted
                ],
            )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads: all but the latest of each namespace, or all with `delete`."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"strategy {strategy!r} is not one of keep_latest, delete.")
        for thread_id in thread_ids:
            thread = self._thread(thread_id)
            latest = {ns: thread.latest(ns) for ns, _ in thread.checkpoints}
            is_kept = strategy == "keep_latest"
            keys = [key for key in thread.checkpoints if not (is_kept and latest[key[0]] == key[1])]
            self._delete(thread_id, thread, keys)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one."""
        thread = self._thread(source_thread_id)
        source, target = self._contents_of(source_thread_id), self._contents_of(target_thread_id)
        for stored in thread.checkpoints.values():
            copied = {
                "kind": "checkpoint",
                "ns": stored.ns,
                "id": stored.id,
                "parent": stored.parent,
                "checkpoint": target.put(source.get(stored.checkpoint)),
                "metadata": target.put(source.get(stored.metadata)),
                "channels": {name: target.put(source.get(ref)) for name, ref in stored.channels.items()},
            }
            self._append(target_thread_id, copied)
        for (ns, checkpoint_id), writes in thread.writes.items():
            for (task, index), write in writes.items():
                one = [index, write["channel"], target.put(source.get(write["ref"]))]
                event = {"kind": "writes", "ns": ns, "id": checkpoint_id, "task": task, "path": write["path"]}
                self._append(target_thread_id, {**event, "writes": [one]})

    def _delete(self, thread_id: str, thread: Thread, keys: Sequence[Key]) -> None:
        if not keys:
            return
        self._append(thread_id, {"kind": "delete", "checkpoints": [[ns, checkpoint_id] for ns, checkpoint_id in keys]})
        gone = thread.refs(keys)
        for key in keys:
            thread.checkpoints.pop(key, None)
            thread.writes.pop(key, None)
        used = {ref.get("sha256") for ref in thread.refs()}
        self._contents_of(thread_id).delete([ref for ref in gone if ref.get("sha256") not in used])

    # ── the same for coroutines ──────────────────────────────────────────────────────────────────

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of the interface
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`."""
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    # ── the server ───────────────────────────────────────────────────────────────────────────────

    @property
    def _client(self) -> TapeClient:
        return self._given or shared_client(self._url)

    def _session(self, thread_id: str) -> dict[str, str]:
        return {"app_name": self._app_name, "user_id": self._user_id, "session_id": thread_id}

    def _contents_of(self, thread_id: str) -> Contents:
        namespace = f"{self._app_name}:{self._user_id}:{thread_id}"
        return self._contents.setdefault(thread_id, Contents(self._client, namespace))

    def _thread(self, thread_id: str, *, newest: int = 0) -> Thread:
        found = call_with_retry(self._client.get_session, **self._session(thread_id), max_events=newest)
        return Thread.read(found.session.events)

    def _thread_ids(self) -> builtins.list[str]:
        listed = call_with_retry(self._client.list_sessions, app_name=self._app_name, user_id=self._user_id)
        return [session.session_id for session in listed.sessions]

    def _append(self, thread_id: str, content: dict[str, Any]) -> None:
        event = pb.EventRecord(id=new_id(), author="langgraph", content_json=msgspec.json.encode(content).decode())
        call_with_retry(self._client.append_event, **self._session(thread_id), event=event)


def _thread_of(config: RunnableConfig) -> str:
    thread_id = str(config.get("configurable", {}).get("thread_id") or "")
    if not thread_id:
        raise InvalidInput("The configuration names no thread: pass {'configurable': {'thread_id': '…'}}.")
    return thread_id


def _config(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
