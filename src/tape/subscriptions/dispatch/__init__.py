"""Dispatch: circuits, ordering, and the calls that start runs from routed messages."""
