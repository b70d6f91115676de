"""Shards and matcher partitions: how matching is divided among servers.

The entries of a run belong to one shard of a reaction, so their tasks keep their order. Shards are hashed onto
16 matcher partitions. Servers lease partitions, which are few, instead of shards, which may be many.
"""

from __future__ import annotations

PARTITIONS = 16
MAX_SHARDS = 256

_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def fnv1a(text: str) -> int:
    """The 32-bit FNV-1a hash that clients in every language agree on."""
    value = _OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _PRIME & _MASK
    return value


def shard_of(run_id: str, num_shards: int) -> int:
    """The shard of a run's entries."""
    return fnv1a(run_id) % num_shards if num_shards > 1 else 0


def partition_of(reaction_id: str, shard: int) -> int:
    """The matcher partition of a reaction's shard."""
    return fnv1a(f"{reaction_id}/{shard}") % PARTITIONS
