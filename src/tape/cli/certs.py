"""`tape certs`: certificates for development."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tape.base.extras import require_server_libraries

if TYPE_CHECKING:
    from tape.engine.security.dev_certificates import DevAuthority, Pair

app = typer.Typer(help="Make certificates for development.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Make certificates for development."""


@app.command()
def dev(
    out: Annotated[Path, typer.Option(help="Folder of the files; created if missing.")] = Path("tape-certs"),
    host: Annotated[
        list[str] | None, typer.Option(help="Further host name or address of the server; repeatable.")
    ] = None,
    client: Annotated[
        str, typer.Option(help="Make a client certificate for this DNS name or URI instead. [default: none]")
    ] = "",
) -> None:
    """Make an authority and a server certificate for localhost, and print how to use them.

    What exists is kept: a certificate is made anew only if it lacks a host, was signed by another authority or expires
    within 30 days. Keys have the mode 0600. For production, use certificates of your own authority.
    """
    require_server_libraries("tape certs")
    from tape.engine.security.dev_certificates import DevAuthority

    authority = DevAuthority(out)
    if authority.is_new:
        typer.echo(f"Created the authority {authority.cert} (10 years); its key {out / 'ca.key'} signs certificates.")
    if client:
        _explain_client(client, authority, authority.client(client))
    else:
        _explain_server(authority, authority.server(host or ()))


def _explain_server(authority: DevAuthority, pair: Pair) -> None:
    _report("server certificate", pair)
    typer.echo(
        "\nStart a server with it:\n"
        f"  tape serve --tls-cert {pair.cert} --tls-key {pair.key}\n"
        "\nIn the terminals of its clients:\n"
        f"  export TAPE_CA={authority.cert.absolute()}\n"
        "  export TAPE_URL=tapes://localhost:7878 TAPE_SERVER_URL=https://localhost:7879\n"
        "  tape tail"
    )


def _explain_client(name: str, authority: DevAuthority, pair: Pair) -> None:
    _report("client certificate", pair)
    typer.echo(
        "\nIn tape.toml of the server, beside tls_cert and tls_key:\n"
        f'  tls_client_ca = "{authority.cert}"\n'
        "  [[tls_clients]]\n"
        f'  san = "{name}"\n'
        '  tenant = "dev"\n'
        '  scopes = ["agent", "worker"]\n'
        "\nIn the terminal of the client:\n"
        f"  export TAPE_CA={authority.cert.absolute()}\n"
        f"  export TAPE_CLIENT_CERT={pair.cert.absolute()} TAPE_CLIENT_KEY={pair.key.absolute()}\n"
        "  export TAPE_URL=tapes://localhost:7878 TAPE_SERVER_URL=https://localhost:7879"
    )


def _report(what: str, pair: Pair) -> None:
    verb = "Created" if pair.is_new else "Kept"
    typer.echo(f"{verb} the {what} {pair.cert} with the key {pair.key} (mode 0600).")
