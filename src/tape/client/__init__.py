"""Talking to a Tape server: `TapeClient` for ordinary code, `AsyncTapeClient` for asyncio."""

from tape.client.aio import AsyncTapeClient
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient

__all__ = ["DEFAULT_URL", "AsyncTapeClient", "TapeClient"]
