"""Recovery and compensation of single runs."""

from tape.reactors.compensation import compensate_run
from tape.reactors.compensator import compensate_one
from tape.reactors.recovery import recover_once, resume

__all__ = ["compensate_one", "compensate_run", "recover_once", "resume"]
