"""The command line: `tape …`, one module per command."""

from tape.cli.main import main

__all__ = ["main"]
