"""Durable runs in the caller's process: effects, gates, determinism and budgets."""
