"""`tape token`: a JWT for development, signed with a local key pair."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tape.base.extras import require_server_libraries
from tape.errors import InvalidInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def token(
    tenant: Annotated[str, typer.Option(help="Tenant of the token.")] = "dev",
    user: Annotated[str, typer.Option(help="User of the token.")] = "dev",
    session: Annotated[str, typer.Option(help="Session of the token. [default: requests name it]")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="Scope: admin, console:fleet or service; repeatable.")] = None,
    read: Annotated[
        list[str] | None, typer.Option(help="Subject pattern that it may read; repeatable. [default: all]")
    ] = None,
    write: Annotated[
        list[str] | None, typer.Option(help="Subject pattern that it may append to; repeatable. [default: all]")
    ] = None,
    lifetime: Annotated[str, typer.Option(help="Time until it expires: 30m, 24h, 7d.")] = "24h",
    key: Annotated[Path, typer.Option(envvar="TAPE_DEV_KEY", help="File of the key pair; created if missing.")] = Path(
        "tape-dev.key"
    ),
) -> None:
    """Print a JWT for development. A server started with --auth-jwks and the public key accepts it."""
    require_server_libraries("tape token")
    from tape.engine.security.tokens import jwks_path, load_key

    match = re.fullmatch(r"(\d{1,9})([smhd])", lifetime)
    if match is None:
        raise InvalidInput(f"--lifetime {lifetime!r} must be a number and s, m, h or d, for example 24h.")
    signing, is_new = load_key(key)
    text = signing.mint(
        tenant=tenant,
        user=user,
        session=session,
        scopes=scope or [],
        read=read or None,
        write=write or None,
        lifetime_s=int(match[1]) * _UNITS[match[2]],
    )
    if is_new:
        typer.echo(f"Created the key {key} (mode 0600); its public key is in {jwks_path(key)}.", err=True)
        typer.echo(f"Servers accept its tokens with: tape serve --auth-jwks {jwks_path(key)}", err=True)
    typer.echo(text)
