"""CEL predicates: one text, one tree, many uses.

`compile_predicate(text).matches(entry)` is all that most callers need. Nothing here imports gRPC, a
database or Spark, so predicates run in servers, clients and Spark's workers alike.
"""

from tape.cel.envelope import VARIABLES, Envelope
from tape.cel.explanation import Explanation, Step
from tape.cel.failure import EvaluationError
from tape.cel.index import MISSING, IndexKey, read_path
from tape.cel.limits import LIMITS, Limits
from tape.cel.predicate import Predicate, compile_predicate
from tape.cel.values import Duration, Timestamp, TypeValue, Uint

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
