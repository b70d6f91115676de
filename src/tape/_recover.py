"""Carrying runs on and undoing what they did, one by one."""

from tape.reactors.compensations import compensate_run
from tape.reactors.recovery import recover_once, resume
from tape.reactors.undoing import compensate_one

__all__ = ["compensate_one", "compensate_run", "recover_once", "resume"]
