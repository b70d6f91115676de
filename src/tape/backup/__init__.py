"""Backups: the journal in immutable parts, snapshots of every other table, and the way back into an empty store."""
