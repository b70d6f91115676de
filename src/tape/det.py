"""Public names of determinism: values that a resumed run gets again."""

from tape.durable.determinism import now, random, sample, uuid

__all__ = ["now", "random", "sample", "uuid"]
