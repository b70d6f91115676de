"""Tape without a server: `url="sqlite:agent.db"` runs the engine in the caller's process."""
