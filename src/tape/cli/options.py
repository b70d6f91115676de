"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tape.base.allow_list import HTTP_ALLOW_VARIABLE, AllowList
from tape.base.process import run_async
from tape.errors import InvalidConfig, InvalidInput

T = TypeVar("T")

# The callback of the option then finds the store.
DEFAULT_STORE = ""
DEFAULT_URL = "tape://127.0.0.1:7878"
DEFAULT_SERVER = "http://127.0.0.1:7879"


class Output(StrEnum):
    """How results are printed."""

    text = "text"
    json = "json"


def warn_of_secret(context: typer.Context, name: str, remedy: str) -> None:
    """Warn if a secret is an argument of this command: other users of the machine can read it in the process list."""
    source = context.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        typer.echo(f"warning: --{name} is visible in the process list; {remedy}.", err=True)


def read_secret_file(option: str, path: Path) -> str:
    """The secret in a file, without the line break at its end."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{option} {path} cannot be read: {error}.") from error
    if not secret:
        raise InvalidInput(f"{option} {path} is empty.")
    return secret


def read_document(file: Path) -> str:
    """The text of a document's file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error


def check_grpc_address(address: str) -> str:
    """The address, unless it is that of the HTTP port."""
    if address.startswith("http://"):  # https:// is a gRPC address too: that of a proxy for both
        raise InvalidConfig(
            f"{address!r} is an HTTP address; this command needs the gRPC address of the server, such as {DEFAULT_URL}"
            " (--url or TAPE_URL; the gRPC port is 7878 by default)."
        )
    return address


def check_http_address(address: str) -> str:
    """The address, unless it is that of the gRPC port."""
    if address.startswith(("tape://", "tapes://", "grpc://", "grpcs://")):
        raise InvalidConfig(
            f"{address!r} is a gRPC address; this command needs the HTTP address of the server, such as"
            f" {DEFAULT_SERVER} (--server or TAPE_SERVER_URL; the HTTP port is 7879 by default)."
        )
    return address


def check_predicate(text: str) -> None:
    """Raise InvalidPredicate unless the text is empty or compiles: before the server is contacted."""
    if text:
        from tape.cel import compile_predicate  # most calls have no predicate

        compile_predicate(text)


def _grpc_option(*names: str) -> Any:
    return typer.Option(
        *names, envvar="TAPE_URL", callback=check_grpc_address, help="gRPC address of the server.", metavar="GRPC_URL"
    )


def _http_option(*names: str) -> Any:
    return typer.Option(
        *names,
        envvar="TAPE_SERVER_URL",
        callback=check_http_address,
        help="HTTP address of the server.",
        metavar="HTTP_URL",
    )


# A command that connects to one port accepts both names for its address; the metavar and the help say which port.
UrlOption = Annotated[str, _grpc_option("--url", "--server")]
ServerOption = Annotated[str, _http_option("--server", "--url")]
# A command that connects to both ports.
GrpcUrlOption = Annotated[str, _grpc_option("--url")]
HttpUrlOption = Annotated[str, _http_option("--server")]
WalletKeyOption = Annotated[
    str,
    typer.Option(
        "--wallet-key",
        envvar="TAPE_WALLET_KEY",
        help="Master key: gcp-kms://projects/… or a file (mode 0600). [default: tape-wallet.key beside the database]",
    ),
]


def _found_store(given: str) -> str:
    from tape.base.config import find_store  # commands without this option read no settings

    return find_store(given)


StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        callback=_found_store,
        show_default=False,
        help="Database: sqlite:<path>, a path, postgres://… or alloydb://…"
        " [default: TAPE_STORE, else store of tape.toml, else sqlite:tape.db]",
    ),
]


def _set_http_allow(given: str | None) -> str | None:
    """Set the allow list for this process and its child processes."""
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
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
OwnerOption = Annotated[str, typer.Option("--owner", help="Lease owner. [default: <host>-<pid>-<random>]")]
LogLevelOption = Annotated[str, typer.Option("--log-level", help="Log level: debug, info, warning or error.")]
MetricsOption = Annotated[
    str, typer.Option("--metrics-listen", help="Serve Prometheus metrics on this address, e.g. 127.0.0.1:9464.")
]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop of its own."""
    return run_async(work)
