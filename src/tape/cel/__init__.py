"""CEL predicates over journal entries.

`compile_predicate(text).matches(entry)` is all that most callers need. Nothing here imports gRPC, a
database or Spark, so predicates run in servers, clients and Spark workers alike.
"""

import warnings
from typing import Any

from tape.cel.entry_view import VARIABLES, EntryView
from tape.cel.explanation import Explanation, TraceStep
from tape.cel.failure import EvaluationError
from tape.cel.index import MISSING, IndexKey, read_path
from tape.cel.limits import LIMITS, PredicateLimits
from tape.cel.predicate import Predicate, compile_predicate
from tape.cel.values import Duration, Timestamp, TypeValue, Uint

__all__ = [
    "LIMITS",
    "MISSING",
    "VARIABLES",
    "Duration",
    "EntryView",
    "EvaluationError",
    "Explanation",
    "IndexKey",
    "Predicate",
    "PredicateLimits",
    "Timestamp",
    "TraceStep",
    "TypeValue",
    "Uint",
    "compile_predicate",
    "read_path",
]

_RENAMED = {"Envelope": EntryView, "Limits": PredicateLimits, "Step": TraceStep}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(f"tape.cel.{name} is now tape.cel.{new.__name__}", DeprecationWarning, stacklevel=2)
    return new
