"""`tape mcp`: the journal as an MCP server on standard input and output."""

from __future__ import annotations

import logging
import sys

from tape.cli.options import DEFAULT_URL, UrlOption, run
from tape.mcp import require_mcp


def mcp(url: UrlOption = DEFAULT_URL) -> None:
    """Serve the journal to desktop clients and coding agents, by MCP on standard input and output.

    Tools: append, tail, search, runs, explain. The token is that of TAPE_TOKEN. Logs go to standard error.
    """
    require_mcp("tape mcp")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    run(_serve(url))


async def _serve(url: str) -> None:
    from tape.client import AsyncTapeClient
    from tape.mcp.server import journal_server  # `tape mcp --help` does without it

    async with AsyncTapeClient(url) as client:
        await journal_server(lambda _: client).run_stdio_async()
