"""`tape doctor`: check the installation and name remedies."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console

from tape import __version__
from tape.base.config import Settings, load_settings, parse_address
from tape.base.extras import has_server_libraries
from tape.base.private_files import is_private
from tape.base.url_mask import mask_urls
from tape.cli.options import Output, OutputOption, run
from tape.errors import JavaMissing, TapeError
from tape.journal.appender import Head, read_head
from tape.journal.damage import DamagedRange, read_damage
from tape.pipeline.java import find_java
from tape.store import open_database

Verdict = Literal["ok", "warning", "problem"]
# Settings whose claims tokens have to carry.
_CLAIMS = ("auth_issuer", "auth_audience")
# The extra of each source of messages, and the module that it needs.
SOURCE_LIBRARIES = {
    "nats": "nats",
    "kafka": "confluent_kafka",
    "pubsub": "google.cloud.pubsub_v1",
    "mqtt": "paho.mqtt",
    "sqs": "botocore",
    "amqp": "aiormq",
}
_MARKS = {"ok": "[green]✓[/green]", "warning": "[yellow]![/yellow]", "problem": "[red]✗[/red]"}


class Check(msgspec.Struct, frozen=True):
    """The result of one check; `remedy` says what to do about a problem."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def doctor(
    store: Annotated[str | None, typer.Option(help="Database to check. [default: sqlite:tape.db]")] = None,
    listen: Annotated[str | None, typer.Option(help="gRPC address to check. [default: 127.0.0.1:7878]")] = None,
    http_listen: Annotated[str | None, typer.Option(help="HTTP address to check. [default: 127.0.0.1:7879]")] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="TAPE_CONFIG", help="Settings file. [default: tape.toml]")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Check the installation, the store, the ports and Java for Spark, and name remedies.

    Exits with 1 if there is a problem; warnings do not count.
    """
    settings = load_settings({"store": store, "listen": listen, "http_listen": http_listen}, file=config)
    checks = list(_checks(settings))
    if output is Output.json:
        typer.echo(msgspec.json.encode(checks).decode())
    else:
        console = Console(highlight=False)
        for check in checks:
            console.print(f"{_MARKS[check.verdict]} {check.name}: {check.found}")
            if check.remedy:
                console.print(f"    → {check.remedy}", markup=False)
    if any(check.verdict == "problem" for check in checks):
        raise typer.Exit(1)


def _checks(settings: Settings) -> Iterator[Check]:
    yield _python()
    if has_server_libraries():
        yield _sqlite()
        store = _store(settings.store)
        yield store
        with contextlib.suppress(TapeError):  # the check of the store has reported it
            yield _files(settings)
        if store.verdict == "ok" and (damaged := _damage(settings.store)):
            entries = sum(each.last - each.first + 1 for each in damaged)
            yield Check(
                "Journal",
                "warning",
                f"{entries:,} entries are damaged or missing, the first is {damaged[0].first}: {damaged[0].detail}",
                f"name all damage: tape verify --store {mask_urls(settings.store)}; then restore a backup",
            )
        if store.verdict == "ok" and (unbound := _unbound_secrets(settings.store)):
            yield Check(
                "Wallet",
                "warning",
                f"secrets not bound to a host: {', '.join(unbound)}",
                "bind those of sources and spools: tape wallet set ALIAS --host HOST:PORT; signing secrets need none",
            )
        needs_key = settings.require_keys and not (
            settings.auth_jwks or settings.tls_clients or settings.internal_token
        )
        if needs_key and store.verdict == "ok" and not _has_keys(settings.store):
            yield Check(
                "Service keys",
                "warning",
                "require_keys is set and there is no key: no client is let in",
                f"tape keys create NAME --tenant TENANT --scope admin --store {mask_urls(settings.store)}",
            )
    else:
        remedy = "only a server and a SQLite store need them: pip install 'tape[server]'"
        yield Check("Server libraries", "warning", "not installed", remedy)
    if settings.tls.is_on:
        yield _tls(settings)
    elif settings.unencrypted:
        found = f"off, and other machines reach {' and '.join(settings.unencrypted)} (insecure)"
        yield Check("TLS", "warning", found, "set tls_cert and tls_key, or let a proxy on this host encrypt")
    if settings.auth_jwks and (unset := [name for name in _CLAIMS if not getattr(settings, name)]):
        yield Check(
            "Tokens",
            "warning",
            f"{' and '.join(unset)} not set: tokens that the same keys sign for other systems are valid here too",
            f"set {' and '.join(unset)}; the next minor version will demand it",
        )
    for name, address in (("gRPC port", settings.listen), ("HTTP port", settings.http_listen)):
        if address:
            yield _port(name, address)
    yield _java()
    yield _sources()
    yield _package("PySpark", "pyspark", "only the data pipeline needs it: pip install pyspark")
    yield _package("psycopg", "psycopg", "only a PostgreSQL store needs it: pip install 'tape[postgres]'")


def _python() -> Check:
    return Check("Tape", "ok", f"{__version__} on Python {platform.python_version()}, {platform.platform(terse=True)}")


def _sqlite() -> Check:
    import apsw

    return Check("SQLite", "ok", f"{apsw.sqlite_lib_version()} (apsw)")


def _store(url: str) -> Check:
    shown = mask_urls(url)
    try:
        database = open_database(url)
        if (path := getattr(database, "path", None)) is not None and not path.exists():
            if not path.parent.is_dir():
                return Check("Store", "problem", f"{shown}: no such folder", f"mkdir -p {path.parent}")
            return Check("Store", "ok", f"{shown} does not exist yet; tape serve creates it")
        pending = open_database(url, create=False).pending()
        if pending:
            return Check(
                "Store", "warning", f"{shown} lacks {len(pending)} migrations", f"tape migrate --store {shown}"
            )
        head = run(_head(url))
    except TapeError as error:
        return Check("Store", "problem", f"{shown}: {mask_urls(str(error))}", f"see docs/errors.md, {error.code}")
    ahead_s = head.ts_ms / 1000 - time.time()
    if ahead_s > 1:
        return Check(
            "Store",
            "warning",
            f"{shown}: its newest entry is {ahead_s:.0f} s in the future",
            "synchronize the clocks of all writers (NTP): new entries get that time until it has passed",
        )
    free_space = ""
    if path is not None:
        free = shutil.disk_usage(path.parent).free
        free_space = f", {free / 1e9:.1f} GB free"
        if free < 500e6:
            return Check(
                "Store",
                "warning",
                f"{shown}: {free / 1e6:.0f} MB free on its disk",
                "free disk space, or run tape prune",
            )
    return Check(
        "Store", "ok", f"{shown}, {head.global_seq - head.oldest + 1:,} entries up to {head.global_seq}{free_space}"
    )


def _files(settings: Settings) -> Check:
    """Whether only the owner can read the files of the store."""
    database = open_database(settings.store)
    path: Path | None = getattr(database, "path", None)
    files = [] if path is None else [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    if "://" not in settings.artifact_store:
        files.append(Path(settings.artifact_store).expanduser())
    wide = [str(file) for file in files if not is_private(file)]
    if not wide:
        return Check("File modes", "ok", "only their owner can read the files of the store")
    return Check("File modes", "warning", f"others can read {', '.join(wide)}", f"chmod -R go= {' '.join(wide)}")


def _tls(settings: Settings) -> Check:
    """Whether the certificate of the listeners can be used, and for how long."""
    if not has_server_libraries():
        return Check("TLS", "warning", "not checked", "the server libraries are not installed")
    from tape.server.tls import WARNING_S, days_left, load

    try:
        expires_at = load(settings.tls).expires_at
    except TapeError as error:
        return Check("TLS", "problem", str(error), "name a certificate and its key: tls_cert, tls_key")
    if expires_at <= time.time():
        return Check("TLS", "problem", f"{settings.tls_cert} has expired", "renew it; servers load it when it changes")
    found = f"{settings.tls_cert} expires in {days_left(expires_at)}"
    if expires_at - time.time() < WARNING_S:
        return Check("TLS", "warning", found, "renew it; servers load it when it changes")
    if not is_private(Path(settings.tls_key)):
        return Check("TLS", "warning", f"others can read {settings.tls_key}", f"chmod 600 {settings.tls_key}")
    return Check("TLS", "ok", found)


def _damage(url: str) -> list[DamagedRange]:
    database = open_database(url)
    if (path := getattr(database, "path", None)) is not None and not path.exists():
        return []
    return run(_read_damage(url))


async def _read_damage(url: str) -> list[DamagedRange]:
    async with open_database(url, migrate=False, create=False) as database:
        return await database.read(read_damage)


def _unbound_secrets(url: str) -> list[str]:
    database = open_database(url)
    if (path := getattr(database, "path", None)) is not None and not path.exists():
        return []
    return run(_read_unbound(url))


def _has_keys(url: str) -> bool:
    database = open_database(url)
    if (path := getattr(database, "path", None)) is not None and not path.exists():
        return False
    return run(_count_keys(url)) > 0


async def _count_keys(url: str) -> int:
    from tape.engine.security.service_keys import list_keys

    async with open_database(url, migrate=False, create=False) as database:
        return len(await database.read(lambda reader: list_keys(reader, limit=1)))


async def _read_unbound(url: str) -> list[str]:
    query = "SELECT alias FROM tape_secrets WHERE hosts = '' AND retires_at_ms = 0 ORDER BY alias"
    async with open_database(url, migrate=False, create=False) as database:
        return [alias for (alias,) in await database.read(lambda reader: reader.query(query))]


async def _head(url: str) -> Head:
    async with open_database(url, migrate=False, create=False) as database:
        return await database.read(read_head)


def _port(name: str, address: str) -> Check:
    host, port = parse_address(name, address)
    try:
        with socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), timeout=1):  # noqa: S104
            return Check(name, "ok", f"{address} answers: a server is running")
    except OSError:
        return Check(name, "ok", f"{address} is free")


def _java() -> Check:
    try:
        return Check("Java", "ok", _first_line([str(find_java()), "-version"]))
    except JavaMissing as missing:
        return Check("Java", "warning", str(missing), "only the data pipeline needs it")


def _sources() -> Check:
    """Which brokers a subscription can fetch from, and the extras for the others."""
    missing = [name for name, module in SOURCE_LIBRARIES.items() if not _has_module(module)]
    found = ", ".join(name for name in SOURCE_LIBRARIES if name not in missing) or "none"
    return Check(
        "Sources",
        "ok",
        f"libraries for {found}" + (f"; not installed: {', '.join(missing)}" if missing else ""),
        f"only subscriptions to them need it: pip install 'tape[{','.join(missing)}]'" if missing else "",
    )


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def _package(name: str, module: str, remedy: str) -> Check:
    if importlib.util.find_spec(module) is None:
        return Check(name, "warning", "not installed", remedy)
    from importlib.metadata import version

    return Check(name, "ok", version(module))


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    lines = (done.stderr or done.stdout).splitlines()
    return lines[0] if lines else ""
