"""`tape wallet`: secrets by alias.

A secret is read from a prompt or from standard input, never from an argument, and is never printed.
"""

from __future__ import annotations

import getpass
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tape.base.extras import require_server_libraries
from tape.cli.database import open_for_writing
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption, WalletKeyOption, YesOption, run
from tape.errors import InvalidInput, WalletLocked
from tape.model.tenant_names import name_within, tenant_of

if TYPE_CHECKING:
    from tape.engine.security.wallet import Secret, SecretInfo, Wallet

app = typer.Typer(help="Manage secrets by alias, encrypted in the database.", no_args_is_help=True)

TenantOption = Annotated[str, typer.Option(help="Tenant that the secret belongs to. [default: none]")]
AliasArgument = Annotated[str, typer.Argument(help="Alias of the secret; subscriptions refer to it.")]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.callback()
def wallet() -> None:
    """Manage secrets by alias, encrypted in the database."""
    require_server_libraries("tape wallet")


@app.command(name="set")
def set_(
    alias: AliasArgument,
    json: Annotated[
        bool, typer.Option("--json", help="Read the secret as a JSON object with fields such as url and token.")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host that the secret may be sent to, as host:port; repeatable. [default: those of the version before]"
        ),
    ] = None,
    keep_previous: Annotated[str, typer.Option(help="How long the previous secret stays valid, e.g. 24h.")] = "0s",
    tenant: TenantOption = "",
    store: StoreOption = DEFAULT_STORE,
    wallet_key: WalletKeyOption = "",
) -> None:
    """Store a secret, read from standard input or from a hidden prompt."""
    from tape.engine.security.wallet import check_alias

    name = name_within(tenant, alias)
    check_alias(name)
    kept_s = _seconds(keep_previous)
    secret = _read(alias, is_object=json)

    async def work() -> SecretInfo:
        async with open_wallet(store, wallet_key, may_create=True) as wallet:
            return await wallet.set(name, secret, keep_previous_s=kept_s, by=_me(), hosts=host or ())

    held = run(work())
    bound = f", bound to {', '.join(held.hosts)}" if held.hosts else ""
    typer.echo(f"{alias} is set, version {held.version}, sealed with {held.master_key}{bound}.")


@app.command(name="list")
def list_(
    tenant: Annotated[str, typer.Option(help="Tenant whose secrets are listed. [default: all]")] = "",
    store: StoreOption = DEFAULT_STORE,
    wallet_key: WalletKeyOption = "",
    output: OutputOption = Output.text,
) -> None:
    """List secrets by alias, with version and key; never their values. A tenant's secret is ~TENANT/ALIAS here."""

    async def work() -> list[SecretInfo]:
        async with open_wallet(store, wallet_key) as wallet:
            return [each for each in await wallet.list() if not tenant or tenant_of(each.alias) == tenant]

    held = run(work())
    if output is Output.json:
        typer.echo(msgspec.json.encode(held).decode())
        return
    table = Table("ALIAS", "VERSION", "SET", "SEALED WITH", "GOOD UNTIL", "HOSTS", box=None, pad_edge=False)
    for each in held:
        until = _when(each.retires_at_ms) if each.retires_at_ms else "replaced"
        hosts = ", ".join(each.hosts) or "not bound to a host"
        table.add_row(each.alias, str(each.version), _when(each.set_at_ms), each.master_key, until, hosts)
    Console(file=sys.stdout).print(table if held else "The wallet is empty.")


@app.command()
def rotate(
    data_keys_only: Annotated[bool, typer.Option(help="Keep the master key and renew only the data keys.")] = False,
    store: StoreOption = DEFAULT_STORE,
    wallet_key: WalletKeyOption = "",
) -> None:
    """Re-encrypt every secret with a new master key and a new data key. The values do not change.

    A key file gets a new key and keeps the previous one until the next rotation. With KMS the primary version is used.
    """

    async def work() -> tuple[int, str]:
        async with open_wallet(store, wallet_key) as wallet:
            return await wallet.rotate(new_master_key=not data_keys_only, by=_me())

    count, master_key = run(work())
    typer.echo(f"{count} secrets are re-encrypted with {master_key}." if count else "The wallet is empty.")


@app.command()
def delete(
    alias: AliasArgument,
    yes: YesOption = False,
    tenant: TenantOption = "",
    store: StoreOption = DEFAULT_STORE,
    wallet_key: WalletKeyOption = "",
) -> None:
    """Delete a secret. Requests that use it are rejected from then on."""
    if not yes:
        typer.confirm(f"Remove the secret {alias} from {store}?", abort=True, err=True)

    async def work() -> None:
        async with open_wallet(store, wallet_key) as wallet:
            await wallet.delete(name_within(tenant, alias), by=_me())

    run(work())
    typer.echo(f"{alias} is removed.")


@asynccontextmanager
async def open_wallet(store: str, wallet_key: str, *, may_create: bool = False) -> AsyncIterator[Wallet]:
    """Open the wallet of a database."""
    from tape.engine.security.keyfile import KeyFile
    from tape.engine.security.wallet import Wallet, master_keys

    keys = master_keys(wallet_key, store)
    async with open_for_writing(store, may_create=may_create) as database:
        wallet = Wallet(database, keys)
        if may_create and isinstance(keys, KeyFile) and not keys.exists:
            if await wallet.list():
                raise WalletLocked(
                    f"There is no key file {keys.path}, but {store} has secrets that were sealed with one."
                    " Name it with --wallet-key."
                )
            keys.create()
            typer.echo(
                f"Created the master key {keys.path} (mode 0600). Keep a copy of it apart from the database: without it"
                " the secrets cannot be decrypted.",
                err=True,
            )
        try:
            yield wallet
        finally:
            wallet.close()


def _read(alias: str, *, is_object: bool) -> Secret:
    from tape.engine.security.wallet import MAX_BYTES

    if sys.stdin.isatty():
        text: str = typer.prompt(f"Secret for {alias}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        try:
            text = sys.stdin.buffer.read(MAX_BYTES + 2).decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InvalidInput("The secret is not UTF-8 text; encode it, for example in base64.") from None
    if not is_object:
        return text
    try:
        fields: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise InvalidInput('The secret is not a JSON object such as {"url": "…", "token": "…"}.') from None
    return fields


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise InvalidInput(f"--keep-previous {text!r} must be a number and s, m, h or d, for example 24h.")
    return int(match[1]) * _UNITS[match[2]]


def _when(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def _me() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return ""
