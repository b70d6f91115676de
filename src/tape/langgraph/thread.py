"""A thread's checkpoints and writes, read from the events of its session.

Each checkpoint, each set of writes and each deletion is an event of the session that has the thread's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from langgraph.checkpoint.base import writes_sort_key

from tape.langgraph.contents import Ref
from tape.proto import tape_pb2 as pb

Key = tuple[str, str]  # checkpoint_ns, checkpoint_id


@dataclass
class StoredCheckpoint:
    """A checkpoint: references to its contents."""

    ns: str
    id: str
    parent: str
    checkpoint: Ref
    metadata: Ref
    channels: dict[str, Ref]

    def refs(self) -> list[Ref]:
        """Everything that it refers to."""
        return [self.checkpoint, self.metadata, *self.channels.values()]


@dataclass
class Thread:
    """What is left of a thread's checkpoints, by namespace and id, and their writes by task and index."""

    checkpoints: dict[Key, StoredCheckpoint] = field(default_factory=dict)
    writes: dict[Key, dict[tuple[str, int], dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def read(cls, events: Iterable[pb.EventRecord]) -> Thread:
        """The thread that these events come to."""
        thread = cls()
        for event in events:
            content = msgspec.json.decode(event.content_json or "{}")
            match content.get("kind"):
                case "checkpoint":
                    del content["kind"]
                    stored = StoredCheckpoint(**content)
                    thread.checkpoints[stored.ns, stored.id] = stored
                case "writes":
                    thread._add_writes(content)
                case "delete":
                    for ns, checkpoint_id in content["checkpoints"]:
                        thread.checkpoints.pop((ns, checkpoint_id), None)
                        thread.writes.pop((ns, checkpoint_id), None)
        return thread

    def _add_writes(self, content: dict[str, Any]) -> None:
        known = self.writes.setdefault((content["ns"], content["id"]), {})
        for index, channel, ref in content["writes"]:
            key = (content["task"], index)
            # The first write counts; those of special channels, which have a negative index, replace earlier ones.
            if index < 0 or key not in known:
                known[key] = {"channel": channel, "ref": ref, "path": content["path"]}

    def latest(self, ns: str) -> str:
        """The id of the latest checkpoint of a namespace; "" if there is none."""
        return max((key[1] for key in self.checkpoints if key[0] == ns), default="")

    def ordered_writes(self, key: Key) -> list[tuple[str, str, Ref]]:
        """Task, channel and content of the writes to a checkpoint, in the order in which they are applied."""
        stored = self.writes.get(key, {})
        order = sorted(stored, key=lambda each: writes_sort_key(stored[each]["path"], *each))
        return [(each[0], stored[each]["channel"], stored[each]["ref"]) for each in order]

    def refs(self, keys: Sequence[Key] | None = None) -> list[Ref]:
        """What checkpoints and their writes refer to; of all of them without `keys`."""
        wanted = set(self.checkpoints) | set(self.writes) if keys is None else set(keys)
        found = [ref for key in wanted if key in self.checkpoints for ref in self.checkpoints[key].refs()]
        return found + [write["ref"] for key in wanted for write in self.writes.get(key, {}).values()]
