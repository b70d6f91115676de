"""`tape access`: whether a token may make a call, by which rule; and moving data between tenants."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from tape.base.config import load_settings
from tape.base.extras import require_server_libraries
from tape.base.url_mask import mask_urls
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption, WalletKeyOption, run
from tape.cli.output import age, console, moment, print_facts, print_json
from tape.errors import IdentityRequired, InvalidInput, SessionOutOfReach, TokenRejected
from tape.model.grants import Grants
from tape.model.pattern import Pattern
from tape.model.principal import Principal
from tape.model.service_key import has_key_prefix

app = typer.Typer(help="Explain what a token may do, and move data between tenants.", no_args_is_help=True)

STANDARD_INPUT = "-"
# Before the file of a client certificate.
CERTIFICATE = "cert:"


@app.callback()
def options() -> None:
    """Explain what a token may do, and move data between tenants."""


class Verdict(msgspec.Struct, kw_only=True):
    """Whether a call is allowed, and the rule that says so. Without `principal` the token was rejected."""

    call: str
    is_allowed: bool
    rule: str
    needed: list[str]
    is_verified: bool
    principal: Principal | None = None
    # What the grants say about the subject, if one was given.
    grant: str = ""


@app.command()
def check(
    call: Annotated[
        list[str], typer.Argument(help="RPC, e.g. BeginRun, or route, e.g. POST /api/execute.", metavar="METHOD|ROUTE")
    ],
    token: Annotated[str, typer.Option("--as", help="Token, service key or cert:FILE; - reads from standard input.")],
    subject: Annotated[
        str, typer.Option(help="Subject or pattern that the call is about; checks the token's grants. [default: none]")
    ] = "",
    session: Annotated[str, typer.Option(help="X-Harbor-Session that the caller sends. [default: none]")] = "",
    auth_jwks: Annotated[
        str, typer.Option(envvar="TAPE_AUTH_JWKS", help="Verify the token with this JWKS file or URL. [default: none]")
    ] = "",
    auth_issuer: Annotated[
        str, typer.Option(envvar="TAPE_AUTH_ISSUER", help="Issuer that the server accepts. [default: any]")
    ] = "",
    auth_audience: Annotated[
        str, typer.Option(envvar="TAPE_AUTH_AUDIENCE", help="Audience that the server accepts. [default: any]")
    ] = "",
    auth_max_lifetime_s: Annotated[
        float,
        typer.Option(envvar="TAPE_AUTH_MAX_LIFETIME_S", help="Seconds that a token may be valid for at the server."),
    ] = 86_400.0,
    store: StoreOption = DEFAULT_STORE,
    output: OutputOption = Output.text,
) -> None:
    """Show whether a token, key or client certificate may make a call, and by which rule, without making the call.

    Exits with 0 if the call is allowed and with 1 if not. A token is verified if --auth-jwks is given, a service key
    with the database (--store). Pass it on standard input (--as -), because other users of the host can read the
    arguments of a process. A certificate, as --as cert:worker.crt, is looked up in tls_clients of tape.toml.
    """
    require_server_libraries("tape access check")
    from tape.server.calls import display, find_call

    name = find_call(" ".join(call))
    text = sys.stdin.read().strip() if token == STANDARD_INPUT else token.strip()
    if not text:
        raise InvalidInput("the token is empty; pass it with --as, or on standard input with --as -.")
    keys = _Keys(auth_jwks, auth_issuer, auth_audience, auth_max_lifetime_s)
    verdict = run(_judge(name, text, session, keys, store))
    if subject:
        verdict = _judge_subject(verdict, Pattern(subject))
    if output is Output.json:
        print_json(_as_dict(verdict, display(name)))
    else:
        _print(verdict, display(name), store if has_key_prefix(text) else auth_jwks)
    raise typer.Exit(0 if verdict.is_allowed else 1)


@app.command()
def migrate(
    to: Annotated[str, typer.Option(help="Tenant that gets the data.")],
    source: Annotated[
        str,
        typer.Option("--from", help="Tenant that has the data; of a run without one, its app. [default: none]"),
    ] = "",
    store: StoreOption = DEFAULT_STORE,
    wallet_key: WalletKeyOption = "",
    output: OutputOption = Output.text,
) -> None:
    """Move what belongs to no tenant, or to another one, to a tenant: for data from before the server had keys.

    Moved are runs, values, sessions and tasks; documents, subscriptions, reactions and secrets. Entries keep their
    tenant, because the hash chain covers it; they belong to the new tenant, which sees them and goes on in their runs.
    Servers know that within a second and reject tokens of the old tenant; restart those that receive deliveries, which
    know their listeners by the old names until then. Nothing is moved if both have something of the same name.
    """
    from tape.engine.ledgers.tenant_migration import move_tenant
    from tape.engine.name_migration import move_names
    from tape.engine.security.wallet import Wallet, master_keys
    from tape.store import Transaction, open_database

    async def move() -> dict[str, int]:
        async with open_database(store, create=False) as database:
            wallet = Wallet(database, master_keys(wallet_key, store))
            try:
                secrets = await wallet.reseal_for(source, to)
            finally:
                wallet.close()

            def write(tx: Transaction) -> dict[str, int]:
                return move_tenant(tx, source, to) | move_names(tx, source, to, secrets)

            return await database.write(write)

    moved = run(move())
    if output is Output.json:
        print_json(moved)
    else:
        print_facts({table.removeprefix("tape_").replace("_", " "): f"{count:,}" for table, count in moved.items()})


class _Keys(NamedTuple):
    """How the server checks tokens. Without a JWKS their signature is not verified."""

    jwks: str
    issuer: str
    audience: str
    max_lifetime_s: float


async def _judge(call: str, token: str, session: str, server: _Keys, store: str) -> Verdict:
    from tape.server.permissions import TOKENLESS_ROUTES, is_permitted, scopes_for

    if call in TOKENLESS_ROUTES:
        return Verdict(call=call, is_allowed=True, rule="no token is needed", needed=[], is_verified=False)
    needed = sorted(scopes_for(call))
    is_key, is_certificate = has_key_prefix(token), token.startswith(CERTIFICATE)
    try:
        if is_certificate:
            principal = _find_certificate(token.removeprefix(CERTIFICATE), session)
        else:
            principal = await (_verify_key(token, session, store) if is_key else _verify_token(token, session, server))
    except (TokenRejected, IdentityRequired, SessionOutOfReach) as error:
        credential = "certificate" if is_certificate else "key" if is_key else "token"
        rule = f"the server rejects the {credential}: {getattr(error, 'reason', '') or error}"
        return Verdict(call=call, is_allowed=False, rule=rule, needed=needed, is_verified=False)
    return Verdict(
        call=call,
        is_allowed=is_permitted(call, principal),
        rule=_explain(frozenset(needed), principal),
        needed=needed,
        is_verified=is_key or (bool(server.jwks) and not is_certificate),
        principal=principal,
    )


def _judge_subject(verdict: Verdict, pattern: Pattern) -> Verdict:
    """The verdict on a call for a subject: its scopes allow it, and so do its grants."""
    from tape.server.permissions import explain_grants

    if verdict.principal is None or not verdict.is_allowed:
        return verdict
    is_granted, grant = explain_grants(verdict.call, verdict.principal, pattern)
    return msgspec.structs.replace(
        verdict, is_allowed=is_granted, rule=grant if not is_granted else verdict.rule, grant=grant
    )


async def _verify_token(token: str, session: str, server: _Keys) -> Principal:
    from tape.engine.security.identity import Authenticator
    from tape.engine.security.jwks import KeySet

    keys = KeySet(server.jwks)
    authenticator = Authenticator(keys, server.issuer, server.audience, server.max_lifetime_s)
    try:
        if not server.jwks:
            return authenticator.examine(token, session)
        await keys.start()
        return await authenticator.verify(token, session)
    finally:
        await keys.close()


async def _verify_key(key: str, session: str, store: str) -> Principal:
    from tape.engine.security.key_ring import KeyRing
    from tape.store import open_database

    async with open_database(store, migrate=False, create=False) as database:
        keys = KeyRing(database)
        await keys.refresh()
        return await keys.verify(key, session)


def _find_certificate(path: str, session: str) -> Principal:
    """The principal that the table `tls_clients` gives to a certificate; its signature is not verified."""
    from tape.server.client_certificates import ClientCertificates, to_der

    try:
        der = to_der(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the certificate {path} cannot be read as PEM: {error}.") from error
    rows = load_settings({}, file=Path(file) if (file := os.environ.get("TAPE_CONFIG")) else None).tls_clients
    if not rows:
        raise InvalidInput("tape.toml has no tls_clients here; name the server's file with TAPE_CONFIG.")
    return ClientCertificates(rows).principal_of(der, session)


def _explain(needed: frozenset[str], principal: Principal) -> str:
    if not needed:
        return "every valid token may make this call; it reaches its own tenant, user and session"
    among = ", ".join(sorted(needed))
    if sufficient := ", ".join(sorted(needed & principal.scopes)):
        return f"the token has {sufficient}; one of these scopes is needed: {among}"
    return f"one of these scopes is needed: {among}; the token has {_names(principal.scopes)}"


def _names(scopes: frozenset[str]) -> str:
    return ", ".join(sorted(scopes)) or "none"


def _patterns(grants: Grants | None) -> str:
    return "every subject" if grants is None else str(grants) if grants.patterns else "no subject"


def _as_dict(verdict: Verdict, shown: str) -> dict[str, Any]:
    principal = verdict.principal
    return {
        "call": shown,
        "allowed": verdict.is_allowed,
        "rule": verdict.rule,
        "verified": verdict.is_verified,
        "scopes_needed": verdict.needed,
        "scopes_held": sorted(principal.scopes) if principal else None,
        "tenant": principal.tenant if principal else None,
        "user": principal.user if principal else None,
        "session": principal.session if principal else None,
        "all_tenants": principal.sees_all_tenants if principal else None,
        "read": principal.read if principal else None,
        "write": principal.write if principal else None,
        "grant": verdict.grant or None,
        "expires_at": principal.expires_at if principal else None,
        "token_id": principal.token_id if principal else None,
        "key_id": principal.key_id if principal else None,
    }


def _print(verdict: Verdict, shown: str, source: str) -> None:
    console().print(f"{shown}: {'[green]allowed[/]' if verdict.is_allowed else '[red]not allowed[/]'}")
    facts = {"rule": verdict.rule}
    if verdict.grant not in ("", verdict.rule):
        facts["grant"] = verdict.grant
    if (principal := verdict.principal) is not None:
        reach = "all tenants" if principal.sees_all_tenants else "this tenant only"
        facts |= {
            "scopes": _names(principal.scopes),
            "tenant": f"{principal.tenant} ({reach})",
            "user": f"{principal.user}, session {principal.session}",
            "read": _patterns(principal.read_grants),
            "write": _patterns(principal.write_grants),
        }
        if principal.expires_at is not None:
            left = age(round((principal.expires_at - time.time()) * 1000))
            facts["expires"] = f"{moment(round(principal.expires_at * 1000))} (in {left})"
        if principal.token_id:
            facts["token id"] = principal.token_id
        if principal.key_id.startswith("key:"):
            facts["key id"] = principal.key_id.removeprefix("key:")
        verifier = (
            "--auth-jwks verifies it" if not principal.key_id.startswith("cert:") else "the handshake verifies it"
        )
        verified = f"verified with {mask_urls(source)}" if verdict.is_verified else f"not verified; {verifier}"
        facts["signature"] = verified
    print_facts(facts)
