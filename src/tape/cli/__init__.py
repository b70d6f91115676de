"""The command line: `tape …`, one module a command."""

from tape.cli.main import main

__all__ = ["main"]
