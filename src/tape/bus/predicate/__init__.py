"""CEL predicates: one text, one tree, many uses.

`compile_predicate(text).matches(entry)` is all that most callers need. Nothing here imports gRPC, a
database or Spark, so predicates run in servers, clients and Spark's workers alike.
"""

from tape.bus.predicate.envelope import VARIABLES, Envelope
from tape.bus.predicate.explanation import Explanation, Step
from tape.bus.predicate.failure import EvaluationError
from tape.bus.predicate.indexing import MISSING, IndexKey, read_path
from tape.bus.predicate.limits import LIMITS, Limits
from tape.bus.predicate.predicate import Predicate, compile_predicate
from tape.bus.predicate.values import Duration, Timestamp, TypeValue, Uint

__all__ = [
    "LIMITS",
    "MISSING",
    "VARIABLES",
    "Duration",
    "Envelope",
    "EvaluationError",
    "Explanation",
    "IndexKey",
    "Limits",
    "Predicate",
    "Step",
    "Timestamp",
    "TypeValue",
    "Uint",
    "compile_predicate",
    "read_path",
]
