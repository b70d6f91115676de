"""Public names of gates: a run parks until it is answered."""

from tape.durable.gates import gate, gate_async, gate_tool
from tape.errors import AckLost

__all__ = ["AckLost", "gate", "gate_async", "gate_tool"]
