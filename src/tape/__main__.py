"""`python -m tape` is `tape`."""

from tape.cli import main

main()
