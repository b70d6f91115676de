"""Servers for agents, and a world for them to act on."""

from __future__ import annotations

from tests.durable.conftest import observer, url

__all__ = ["observer", "url"]
