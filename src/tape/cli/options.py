"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from tape.base.allow_list import AllowList
from tape.base.config import HTTP_ALLOW_VARIABLE
from tape.base.process import run_async

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


def _set_http_allow(given: str | None) -> str | None:
    """Make the option the setting of this process and of those that it starts."""
    if given is not None:
        AllowList.parse(given)
        os.environ[HTTP_ALLOW_VARIABLE] = given
    return given


HttpAllowOption = Annotated[
    str | None,
    typer.Option(
        "--http-allow",
        envvar=HTTP_ALLOW_VARIABLE,
        callback=_set_http_allow,
        help="Private hosts and networks that HTTP requests may reach, e.g. localhost:8080,10.0.0.0/8.",
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people (text) or for programs (json).")]

DEFAULT_STORE = "sqlite:tape.db"
DEFAULT_URL = "tape://127.0.0.1:7878"
DEFAULT_SERVER = "http://127.0.0.1:7879"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop of its own."""
    return run_async(work)
