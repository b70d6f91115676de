"""Options that several commands share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")


class Output(StrEnum):
    """How results are printed."""

    text = "text"
    json = "json"


UrlOption = Annotated[str, typer.Option("--url", envvar="TAPE_URL", help="The server's gRPC address.")]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="TAPE_STORE",
        help="The database: sqlite:<path>, a path, memory, postgres://…, alloydb://…",
    ),
]
ServerOption = Annotated[str, typer.Option("--server", envvar="TAPE_SERVER_URL", help="The server's HTTP address.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people (text) or for programs (json).")]

DEFAULT_STORE = "sqlite:tape.db"
DEFAULT_URL = "tape://127.0.0.1:7878"
DEFAULT_SERVER = "http://127.0.0.1:7879"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on the faster loop where there is one."""
    try:
        import uvloop
    except ImportError:  # pragma: no cover - no uvloop on Windows
        return asyncio.run(work)
    return uvloop.run(work)
