"""`tape token`: a token for development, signed with a key pair of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import InvalidInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def token(
    tenant: Annotated[str, typer.Option(help="The tenant: an app.")] = "dev",
    user: Annotated[str, typer.Option(help="The user.")] = "dev",
    session: Annotated[str, typer.Option(help="The session; without one, requests name it themselves.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="admin, console:fleet or service; may be repeated.")] = None,
    lifetime: Annotated[str, typer.Option(help="How long it is good for: 30m, 24h, 7d.")] = "24h",
    key: Annotated[Path, typer.Option(envvar="TAPE_DEV_KEY", help="The key pair; made if it is not there.")] = Path(
        "tape-dev.key"
    ),
) -> None:
    """Print a token. A server takes it when it was started with --auth-jwks and the public half of the key."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", lifetime)
    if match is None:
        raise InvalidInput(f"--lifetime {lifetime!r} must be a number and s, m, h or d, for example 24h.")
    signing, is_new = load_key(key)
    text = signing.mint(
        tenant=tenant,
        user=user,
        session=session,
        scopes=scope or [],
        lifetime_s=int(match[1]) * _UNITS[match[2]],
    )
    if is_new:
        typer.echo(f"Made the key {key} (mode 0600); its public half is {jwks_path(key)}.", err=True)
        typer.echo(f"Servers take its tokens with: tape serve --auth-jwks {jwks_path(key)}", err=True)
    typer.echo(text)
