"""Shapes of two earlier Python APIs, for programs that were written for them: import what you need explicitly.

`tape.compat.bus` is the event bus SDK (`from tape.compat import bus as tape`), `tape.compat.session` the durable event
log of agents. docs/how-to/migrate.md says what to change, and what to do without them.
"""
