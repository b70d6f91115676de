"""Carrying runs on and undoing what they did, one by one."""

from tape.reactors.compensation import compensate_one
from tape.reactors.compensations import compensate_run
from tape.reactors.recovery import recover_once, resume

__all__ = ["compensate_one", "compensate_run", "recover_once", "resume"]
