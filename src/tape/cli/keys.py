"""`tape keys`: create, list, rotate and revoke service keys, and revoke tokens.

With `--server` the commands go through a server; otherwise they work on the database, as the operator of its host.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import typer

from tape.base.clock import now_ms
from tape.base.config import find_store
from tape.base.extras import require_server_libraries
from tape.cli.database import open_for_writing
from tape.cli.options import Output, OutputOption, check_http_address, run
from tape.cli.output import age, moment, parse_age, print_json, print_table
from tape.errors import InvalidInput
from tape.store import Reader, Transaction, open_database
from tape.subscriptions.api_client import connect

if TYPE_CHECKING:
    from tape.engine.security.service_keys import IssuedKey

T = TypeVar("T")

app = typer.Typer(help="Manage service keys, and revoke tokens.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of the key, unique in its tenant.")]
TenantOption = Annotated[
    str | None, typer.Option(help="Tenant of the key. [default: that of the caller, or the only one with that name]")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Database to work on, without a server."
        " [default: TAPE_STORE, else store of tape.toml, else sqlite:tape.db]",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="HTTP address of the server to call, with the key or token in TAPE_TOKEN. [env: TAPE_SERVER_URL]",
        metavar="HTTP_URL",
    ),
]


@app.callback()
def keys() -> None:
    """Manage service keys, and revoke tokens.

    A key is for a worker, runtime, gateway or SDK process, which reads it from TAPE_TOKEN. It is shown once.
    """


@app.command()
def create(
    name: NameArgument,
    tenant: Annotated[str, typer.Option(help="Tenant of the key. [default: that of the caller]")] = "",
    scope: Annotated[
        list[str] | None, typer.Option(help="Scopes, separated by commas; repeatable. [default: none]")
    ] = None,
    expires: Annotated[str, typer.Option(help="Time until it expires: 12h, 90d. [default: never]")] = "",
    user: Annotated[str, typer.Option(help="User that the key acts as. [default: the name of the key]")] = "",
    read: Annotated[
        list[str] | None, typer.Option(help="Subject pattern that it may read; repeatable. [default: all]")
    ] = None,
    write: Annotated[
        list[str] | None, typer.Option(help="Subject pattern that it may append; repeatable. [default: all]")
    ] = None,
    store: StoreOption = None,
    server: ServerOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Create a service key and print it, once. Only a digest of it is stored."""
    wanted = {
        "name": name,
        "tenant": tenant,
        "scopes": [each.strip() for text in scope or [] for each in text.split(",") if each.strip()],
        "user": user,
        "expires_in_s": parse_age("--expires", expires) / 1000 if expires else None,
        "read": read,
        "write": write,
    }
    _print_issued(_backend(store, server).create(wanted), output, "Created")


@app.command(name="list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant. [default: all that the caller sees]")] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also keys that were revoked or replaced in the last 30 days.")
    ] = False,
    store: StoreOption = None,
    server: ServerOption = None,
    output: OutputOption = Output.text,
) -> None:
    """List service keys, never their secrets. The time of the last use is a minute late at most."""
    found = _backend(store, server).list(tenant, all_)
    if output is Output.json:
        print_json(found)
        return
    now = now_ms()
    rows = [
        (
            key["name"],
            key["tenant"],
            key["key_id"],
            key["state"],
            " ".join(key["scopes"]) or "none",
            _until(key["retires_at_ms"] or key["expires_at_ms"], now),
            f"{age(now - key['last_used_at_ms'])} ago" if key["last_used_at_ms"] else "never",
        )
        for key in found
    ]
    print_table(
        ("NAME", "TENANT", "KEY ID", "STATE", "SCOPES", "VALID FOR", "LAST USED"), rows, "There are no service keys."
    )


@app.command()
def rotate(
    name: NameArgument,
    overlap: Annotated[str, typer.Option(help="How long the secret before stays valid: 0s, 24h.")] = "24h",
    expires: Annotated[
        str, typer.Option(help="Time until the new secret expires. [default: the lifetime of the one before]")
    ] = "",
    tenant: TenantOption = None,
    store: StoreOption = None,
    server: ServerOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Replace the secret of a key and print the new one, once."""
    change = {
        "tenant": tenant,
        "overlap_s": parse_age("--overlap", overlap) / 1000,
        "expires_in_s": parse_age("--expires", expires) / 1000 if expires else None,
    }
    _print_issued(_backend(store, server).rotate(name, change), output, "Rotated")


@app.command()
def revoke(
    name: NameArgument,
    tenant: TenantOption = None,
    store: StoreOption = None,
    server: ServerOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Revoke a key at once. Its open streams end on every server of the database within seconds."""
    key = _backend(store, server).revoke(name, tenant)
    if output is Output.json:
        print_json(key)
    else:
        typer.echo(f"{key['name']} of tenant {key['tenant'] or 'none'} is revoked ({key['key_id']}).")


@app.command(name="revoke-token")
def revoke_token(
    jti: Annotated[str, typer.Argument(help="The claim `jti` of the token; `tape access check` shows it.")],
    tenant: Annotated[str, typer.Option(help="Tenant of the token. [default: that of the caller]")] = "",
    until: Annotated[
        str, typer.Option(help="Time until the token expires: 12h, 7d. [default: auth_max_lifetime_s, 24 hours]")
    ] = "",
    store: StoreOption = None,
    server: ServerOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Revoke one JWT by its `jti`. Its open streams end on every server of the database within seconds."""
    for_s = parse_age("--until", until) / 1000 if until else None
    token = _backend(store, server).revoke_token({"jti": jti, "tenant": tenant, "for_s": for_s})
    if output is Output.json:
        print_json(token)
    else:
        until_when = moment(token["until_ms"])
        typer.echo(f"Tokens of tenant {token['tenant']} with the jti {jti} are rejected until {until_when}.")


class _Backend(Protocol):
    """Where keys are managed. Answers have the shape of the HTTP API."""

    def create(self, wanted: dict[str, Any]) -> dict[str, Any]: ...
    def list(self, tenant: str | None, with_ended: bool) -> list[dict[str, Any]]: ...
    def rotate(self, name: str, change: dict[str, Any]) -> dict[str, Any]: ...
    def revoke(self, name: str, tenant: str | None) -> dict[str, Any]: ...
    def revoke_token(self, wanted: dict[str, Any]) -> dict[str, Any]: ...


class _Server:
    """The keys of a server's database, as far as the caller's own key or token permits."""

    def __init__(self, url: str) -> None:
        self._control = connect(check_http_address(url))

    def create(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return dict(self._control.call("POST", "/api/keys", wanted))

    def list(self, tenant: str | None, with_ended: bool) -> list[dict[str, Any]]:
        asked = ({} if tenant is None else {"tenant": tenant}) | ({"all": "true"} if with_ended else {})
        found: list[dict[str, Any]] = []
        while True:
            page = self._control.call("GET", f"/api/keys?{urlencode(asked)}")
            found += page["keys"]
            if "next" not in page:
                return found
            asked["after"] = page["next"]

    def rotate(self, name: str, change: dict[str, Any]) -> dict[str, Any]:
        return dict(self._control.call("POST", f"/api/keys/{quote(name, safe='')}/rotate", change))

    def revoke(self, name: str, tenant: str | None) -> dict[str, Any]:
        return dict(self._control.call("POST", f"/api/keys/{quote(name, safe='')}/revoke", {"tenant": tenant}))

    def revoke_token(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return dict(self._control.call("POST", "/api/tokens/revoke", wanted))


class _Store:
    """The keys of a database, for a user who can write to it."""

    def __init__(self, store: str) -> None:
        require_server_libraries("tape keys")
        self._store = store

    def create(self, wanted: dict[str, Any]) -> dict[str, Any]:
        from tape.engine.security.service_keys import KeyRequest, create

        request = KeyRequest(
            wanted["name"],
            wanted["tenant"],
            wanted["scopes"],
            wanted["user"],
            _ms(wanted["expires_in_s"]),
            wanted["read"],
            wanted["write"],
        )
        return _describe(self._write(lambda tx: create(tx, request, by=_me()), may_create=True))

    def list(self, tenant: str | None, with_ended: bool) -> list[dict[str, Any]]:
        from tape.engine.security.service_keys import MAX_PAGE, list_keys, page_key

        def read_all(reader: Reader) -> list[dict[str, Any]]:
            found = list_keys(reader, tenant, with_ended=with_ended)
            while found and len(page := list_keys(reader, tenant, after=page_key(found[-1]), with_ended=with_ended)):
                found += page
                if len(page) < MAX_PAGE:
                    break
            return [key.describe(now_ms()) for key in found]

        async def work() -> list[dict[str, Any]]:
            async with open_database(self._store, migrate=False, create=False) as database:
                return await database.read(read_all)

        return run(work())

    def rotate(self, name: str, change: dict[str, Any]) -> dict[str, Any]:
        from tape.engine.security.service_keys import rotate

        overlap_ms, lifetime_ms = int(change["overlap_s"] * 1000), _ms(change["expires_in_s"])
        return _describe(
            self._write(
                lambda tx: rotate(tx, name, change["tenant"], overlap_ms=overlap_ms, lifetime_ms=lifetime_ms, by=_me())
            )
        )

    def revoke(self, name: str, tenant: str | None) -> dict[str, Any]:
        from tape.engine.security.service_keys import revoke

        return self._write(lambda tx: revoke(tx, name, tenant, by=_me())).describe(now_ms())

    def revoke_token(self, wanted: dict[str, Any]) -> dict[str, Any]:
        from tape.base.config import load_settings
        from tape.engine.security.revoked_tokens import revoke_token
        from tape.model.principal import CLOCK_SKEW_S

        for_s = wanted["for_s"]
        if for_s is None:
            for_s = load_settings({}).auth_max_lifetime_s + CLOCK_SKEW_S
        token = self._write(
            lambda tx: revoke_token(tx, wanted["jti"], wanted["tenant"], for_ms=int(for_s * 1000), by=_me())
        )
        return {"jti": token.jti, "tenant": token.tenant, "until_ms": token.until_ms}

    def _write(self, operation: Callable[[Transaction], T], *, may_create: bool = False) -> T:
        async def work() -> T:
            async with open_for_writing(self._store, may_create=may_create) as database:
                return await database.write(operation)

        return run(work())


def _backend(store: str | None, server: str | None) -> _Backend:
    """Options win over variables. Without any of them, the default database."""
    if store is not None and server is not None:
        raise InvalidInput("--store and --server exclude each other; give one.")
    if store is None:
        server = server or os.environ.get("TAPE_SERVER_URL")
    return _Server(server) if server else _Store(find_store(store))


def _describe(issued: IssuedKey) -> dict[str, Any]:
    return {**issued.key.describe(now_ms()), "key": issued.text}


def _print_issued(key: dict[str, Any], output: Output, verb: str) -> None:
    """The key alone on standard output, so that a script can store it; what it is on standard error."""
    if output is Output.json:
        print_json(key)
        return
    scopes = " ".join(key["scopes"]) or "none"
    typer.echo(
        f"{verb} the service key {key['name']} ({key['key_id']}): tenant {key['tenant'] or 'none'}, scopes {scopes},"
        f" {'expires ' + moment(key['expires_at_ms']) if key['expires_at_ms'] else 'does not expire'}."
        " It is shown once; give it to its process as TAPE_TOKEN.",
        err=True,
    )
    typer.echo(key["key"])


def _until(at_ms: int | None, now: int) -> str:
    return "ever" if not at_ms else age(at_ms - now) if at_ms > now else "ended"


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


def _me() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return ""
