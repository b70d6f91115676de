"""Settings: flags win over `TAPE_*` variables, which win over `tape.toml`, which wins over the defaults."""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from tape.base.allow_list import HTTP_ALLOW_VARIABLE, AllowList
from tape.base.redaction_policy import RedactionPolicies, check_key, parse_policies
from tape.base.store_url import DEFAULT_STORE, StoreUrl
from tape.errors import InvalidConfig

FILE = "tape.toml"
WITNESS_VARIABLE = "TAPE_WITNESS"
HTTP_PROXY_VARIABLE = "TAPE_HTTP_PROXY"  # no flag and no key of the file: it may have a password in it

# A journal has 9.2 * 10^18 numbers.
MAX_EPOCH_MARGIN = 10**12
MAX_SERVER_ID = 128

# Settings that are tables of the file, without a flag and a variable.
_TABLES_ONLY = ("lake_options", "redaction", "tls_clients")
# Settings for one start, without a key of the file.
_ONCE_ONLY = ("accept_loss",)
# Tables of the file, and what they may hold.
_TABLES = {"archive": ("lake", "options"), "pipeline": ("master", "spark")}
# Names that older deployments use.
_ENV_ALIASES = {
    "TAPE_DB": "store",
    "TAPE_HEALTHZ_LISTEN": "http_listen",
    "TAPE_INTERNAL_API_TOKEN": "internal_token",
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate chain of a listener, its key, and the authorities of client certificates."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) is not bool(self.key):
            missing = "tls_key" if self.cert else "tls_cert"
            raise InvalidConfig(
                f"{missing} is not set; TLS needs both tls_cert and tls_key. `tape certs dev` makes a pair."
            )
        if self.client_ca and not self.cert:
            raise InvalidConfig("tls_client_ca is set, and tls_cert and tls_key are not; set all three.")

    @property
    def is_on(self) -> bool:
        """Whether TLS is used."""
        return bool(self.cert)


@dataclass(frozen=True, slots=True)
class TlsClient:
    """A row of [[tls_clients]]: the tenant and the scopes of clients whose certificate has a matching name."""

    san: str
    tenant: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `tape serve`. Each name is a flag, a TAPE_* variable and a key of tape.toml."""

    store: str = DEFAULT_STORE
    listen: str = "127.0.0.1:7878"
    http_listen: str = "127.0.0.1:7879"
    max_payload_bytes: int = 1 << 20
    queue_operations: int = 20_000
    queue_bytes: int = 64 << 20
    readers: int = 4
    sqlite_wal_bytes: int = 32 << 20
    sqlite_cache_bytes: int = 64 << 20
    server_id: str = ""
    shutdown_grace_s: float = 5.0
    log_level: str = "info"
    auth_jwks: str = ""
    auth_issuer: str = ""
    auth_audience: str = ""
    auth_refresh_s: float = 300.0
    auth_max_stale_s: float = 3600.0
    auth_max_lifetime_s: float = 86_400.0
    require_keys: bool = False
    anonymous: str = "loopback"
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tls_client_listen: str = ""
    # From the file's [[tls_clients]].
    tls_clients: tuple[TlsClient, ...] = ()
    insecure: bool = False
    cors_origins: str = ""
    http_allow: str = ""
    subscriber_buffer_size: int = 256
    max_subscribers_per_session: int = 16
    idle_timeout_s: float = 60.0
    drop_window_s: float = 1.0
    keepalive_s: float = 15.0
    safe_types: str = ""
    # From the file's [redaction]; empty is the default policy for all tenants.
    redaction: RedactionPolicies = ()
    # No flag, for the same reason as internal_token.
    redaction_key: str = field(default="", repr=False)
    imports: str = ""
    artifacts: str = ""
    artifact_threshold_bytes: int = 32 << 10
    match_reactions: bool = True
    mcp: bool = False
    keep_tasks_h: int = 168
    scrub_entries_per_s: float = 1_000.0
    scrub_interval_h: float = 24.0
    predicate_cpu_ms_per_s: float = 50.0
    epoch_margin: int = 1_000_000
    grpc_max_message_bytes: int = 4 << 20
    grpc_max_concurrent_calls: int = 1_024
    tenant_max_calls: int = 512
    tenant_max_bytes_in_flight: int = 64 << 20
    tenant_max_streams: int = 1_000
    user_max_streams: int = 100
    tenant_appends_per_s: float = 0.0
    tenant_bytes_per_s: float = 0.0
    http_max_header_bytes: int = 64 << 10
    http_max_url_bytes: int = 16 << 10
    http_header_timeout_s: float = 10.0
    http_body_timeout_s: float = 30.0
    http_max_connections: int = 2_000
    ingress_body_timeout_s: float = 10.0
    wallet_key: str = ""
    witness: str = ""
    accept_loss: bool = False
    # No flag: the arguments of a process can be read by others on the machine.
    internal_token: str = field(default="", repr=False)
    lake: str = ""
    # What an object store wants to know, from the file's [archive.options]; it may hold keys.
    lake_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in (
            "max_payload_bytes",
            "queue_operations",
            "queue_bytes",
            "readers",
            "subscriber_buffer_size",
            "max_subscribers_per_session",
            "artifact_threshold_bytes",
            "keep_tasks_h",
            "grpc_max_message_bytes",
            "grpc_max_concurrent_calls",
            "http_max_header_bytes",
            "http_max_url_bytes",
            "http_max_connections",
        ):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in (
            "auth_refresh_s",
            "auth_max_stale_s",
            "auth_max_lifetime_s",
            "idle_timeout_s",
            "drop_window_s",
            "keepalive_s",
            "ingress_body_timeout_s",
            "http_header_timeout_s",
            "http_body_timeout_s",
        ):
            if not getattr(self, name) > 0:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it must be more than 0.")
        for name in (
            "tenant_max_calls",
            "tenant_max_bytes_in_flight",
            "tenant_max_streams",
            "user_max_streams",
            "tenant_appends_per_s",
            "tenant_bytes_per_s",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it must be at least 0, where 0 is unlimited.")
        for name in ("shutdown_grace_s", "predicate_cpu_ms_per_s"):
            if not getattr(self, name) >= 0:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it must not be negative.")
        if not 0 <= self.epoch_margin <= MAX_EPOCH_MARGIN:
            raise InvalidConfig(f"epoch_margin is {self.epoch_margin}; it must lie between 0 and {MAX_EPOCH_MARGIN}.")
        for name in ("scrub_entries_per_s", "scrub_interval_h"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it must be a number of at least 0.")
        for name in ("sqlite_wal_bytes", "sqlite_cache_bytes"):
            if getattr(self, name) < 1 << 20:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it must be at least 1048576, 1 MiB.")
        if self.queue_bytes < self.max_payload_bytes:
            raise InvalidConfig(
                f"queue_bytes ({self.queue_bytes}) must be at least max_payload_bytes ({self.max_payload_bytes})."
            )
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidConfig(f"log_level is {self.log_level!r}; use debug, info, warning or error.")
        if self.anonymous not in ("loopback", "network"):
            raise InvalidConfig(f"anonymous is {self.anonymous!r}; use loopback or network.")
        if "#" in self.server_id or not self.server_id.isprintable() or len(self.server_id) > MAX_SERVER_ID:
            raise InvalidConfig(
                f"server_id is {self.server_id[:40]!r}; use up to {MAX_SERVER_ID} printable characters without #."
            )
        AllowList.parse(self.http_allow)
        check_key(self.redaction, self.redaction_key)
        for name in ("tls_clients", "tls_client_listen"):
            if getattr(self, name) and not self.tls.client_ca:
                raise InvalidConfig(f"{name} is set, and tls_client_ca is not: no client could prove who it is.")
        self._check_exposure()

    def _check_exposure(self) -> None:
        """Reject addresses that other machines can reach without tokens or without TLS, unless that is asked for."""
        for name in ("listen", "http_listen", "tls_client_listen"):
            address = getattr(self, name)
            if not address and name != "listen":
                continue
            host, _ = parse_address(name, address)
            check_encryption(name, address, has_tls=self.tls.is_on, insecure=self.insecure)
            has_proof = self.auth_jwks or self.require_keys or self.tls_clients
            if not (has_proof or self.anonymous == "network" or is_loopback(host)):
                raise InvalidConfig(
                    f"{name} is {address!r}, which other machines can reach, and neither auth_jwks nor require_keys is"
                    " set: all of them could read and write. Set require_keys (`tape keys create` makes service keys),"
                    " auth_jwks (`tape token` makes keys for development) or tls_clients, stay on 127.0.0.1, or, behind"
                    " a proxy that authenticates, set anonymous to network."
                )

    @property
    def tls(self) -> TlsFiles:
        """The files of certificate and key of the listeners, and of the authority of client certificates."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def unencrypted(self) -> list[str]:
        """The addresses that other machines reach without TLS, because `insecure` is set."""
        addresses = [] if self.tls.is_on else [("listen", self.listen), ("http_listen", self.http_listen)]
        return [address for name, address in addresses if address and not is_loopback(parse_address(name, address)[0])]

    @property
    def origins(self) -> frozenset[str]:
        """The origins of `cors_origins`."""
        return frozenset(filter(None, map(str.strip, self.cors_origins.split(","))))

    @property
    def artifact_store(self) -> str:
        """Where artifacts are: beside the database file, unless something else is said."""
        scheme, _, path = self.store.partition(":")
        return self.artifacts or (f"{path}.artifacts" if scheme == "sqlite" and path else "tape-artifacts")

    @property
    def safe_type_names(self) -> tuple[str, ...]:
        """The types of `safe_types`."""
        return tuple(filter(None, map(str.strip, self.safe_types.split(","))))


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What the jobs of `tape pipeline` find in tape.toml: where Spark runs and how, and where the archive is."""

    master: str = ""
    spark: tuple[tuple[str, str], ...] = ()
    lake: str = ""
    lake_options: tuple[tuple[str, str], ...] = ()


def load_pipeline_settings(env: Mapping[str, str] | None = None, file: Path | None = None) -> PipelineSettings:
    """The tables [pipeline], [pipeline.spark] and [archive] of the file that TAPE_CONFIG names, or of tape.toml."""
    env = os.environ if env is None else env
    file = file or (Path(env["TAPE_CONFIG"]) if env.get("TAPE_CONFIG") else None)
    content = _from_file(file, _types())
    pipeline = content.get("pipeline", {})
    return PipelineSettings(
        pipeline.get("master", ""),
        tuple(pipeline.get("spark", {}).items()),
        env.get("TAPE_LAKE") or content.get("lake", ""),
        content.get("lake_options", ()),
    )


def load_settings(flags: Mapping[str, Any], env: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """Settings from everywhere. A flag that is None was not given."""
    values = _collect(flags, env, file)
    values["store"] = find_store(flags.get("store"), env, file)
    return Settings(**values)


def _collect(flags: Mapping[str, Any], env: Mapping[str, str] | None, file: Path | None) -> dict[str, Any]:
    env = os.environ if env is None else env
    types = _types()
    values: dict[str, Any] = {}
    for source, given in (
        ("file", _from_file(file, types)),
        ("env", _from_env(env, types)),
        ("flags", flags),
    ):
        for name, value in given.items():
            if value is not None and name != "pipeline":
                values[name] = _convert(name, value, types[name], source)
    return values


# What an embedded engine has in common with a server. Listeners, tokens and limits of callers are no part of it.
EMBEDDED = frozenset(
    {
        "max_payload_bytes", "queue_operations", "queue_bytes", "readers", "sqlite_wal_bytes", "sqlite_cache_bytes",
        "safe_types", "redaction", "redaction_key", "artifacts", "artifact_threshold_bytes", "match_reactions",
        "keep_tasks_h", "predicate_cpu_ms_per_s", "epoch_margin", "wallet_key", "witness", "accept_loss", "lake",
        "lake_options",
    }
)  # fmt: skip


def load_embedded_settings(store: str, env: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """Settings of an engine in the caller's process: those of EMBEDDED from variables and tape.toml."""
    values = {name: value for name, value in _collect({}, env, file).items() if name in EMBEDDED}
    # The caller is the process itself: limits that keep tenants apart would only stop its own threads.
    values |= dict.fromkeys(("tenant_max_calls", "tenant_max_bytes_in_flight", "tenant_max_streams"), 0)
    return Settings(**values, user_max_streams=0, grpc_max_concurrent_calls=1 << 30, store=store)


def find_store(given: str | None = None, env: Mapping[str, str] | None = None, file: Path | None = None) -> StoreUrl:
    """The store that a command works on: its flag, TAPE_STORE (or TAPE_DB), `store` of tape.toml, else sqlite:tape.db.

    The file is the one given, that of TAPE_CONFIG, or tape.toml of the working directory.
    """
    env = os.environ if env is None else env
    if given:
        return given if isinstance(given, StoreUrl) else StoreUrl(given, "--store")
    for variable in ("TAPE_STORE", *(alias for alias, name in _ENV_ALIASES.items() if name == "store")):
        if env.get(variable):
            return StoreUrl(env[variable], variable)
    file = file or (Path(env["TAPE_CONFIG"]) if env.get("TAPE_CONFIG") else None)
    if "store" in (content := _from_file(file, _types())):
        return StoreUrl(_convert("store", content["store"], str, "file"), str(file or FILE))
    return StoreUrl(DEFAULT_STORE, "default")


def load_redaction(env: Mapping[str, str] | None = None, file: Path | None = None) -> tuple[RedactionPolicies, str]:
    """The policies of [redaction] and the key of their hashes, for programs other than the server."""
    env = os.environ if env is None else env
    file = file or (Path(env["TAPE_CONFIG"]) if env.get("TAPE_CONFIG") else None)
    content = _from_file(file, _types())
    policies = content.get("redaction", ())
    key = env.get("TAPE_REDACTION_KEY") or content.get("redaction_key", "")
    check_key(policies, key)
    return policies, key


def load_tls(flags: Mapping[str, Any], env: Mapping[str, str] | None = None) -> tuple[TlsFiles, bool]:
    """The TLS files of a process without other settings, and its `insecure`: flags, variables, else the file."""
    env = os.environ if env is None else env
    types = _types()
    file = _from_file(Path(env["TAPE_CONFIG"]) if env.get("TAPE_CONFIG") else None, types)
    given = {name: value for name, value in flags.items() if value is not None}
    values = file | _from_env(env, types) | given
    files = TlsFiles(*(str(values.get(f"tls_{name}", "")) for name in ("cert", "key", "client_ca")))
    return files, _convert("insecure", values.get("insecure", False), bool, "env")


def load_http_allow(env: Mapping[str, str] | None = None) -> str:
    """The setting `http_allow` of this process: TAPE_HTTP_ALLOW, else the file that TAPE_CONFIG names or tape.toml."""
    env = os.environ if env is None else env
    if (given := env.get(HTTP_ALLOW_VARIABLE)) is not None:
        return given
    return _http_allow_of_file(env.get("TAPE_CONFIG", ""))


def load_witness(env: Mapping[str, str] | None = None) -> str:
    """The setting `witness` of this process: TAPE_WITNESS, else the file that TAPE_CONFIG names or tape.toml."""
    env = os.environ if env is None else env
    if (given := env.get(WITNESS_VARIABLE)) is not None:
        return given
    return str(_from_file(Path(env["TAPE_CONFIG"]) if env.get("TAPE_CONFIG") else None, _types()).get("witness", ""))


def load_http_proxy(env: Mapping[str, str] | None = None) -> str:
    """The proxy for outgoing HTTP requests, TAPE_HTTP_PROXY; empty without one."""
    proxy = (os.environ if env is None else env).get(HTTP_PROXY_VARIABLE, "")
    if proxy and not proxy.startswith(("http://", "https://")):
        raise InvalidConfig(f"{HTTP_PROXY_VARIABLE} must look like http://proxy.internal:3128.")
    return proxy


@cache
def _http_allow_of_file(path: str) -> str:
    return str(_from_file(Path(path) if path else None, _types()).get("http_allow", ""))


def parse_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `:port` or `[v6]:port`."""
    host, colon, port = address.rpartition(":")
    is_literal = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65_535 or (":" in host and not is_literal):
        raise InvalidConfig(f"{name} is {address!r}; write it as host:port, for example 127.0.0.1:7878.")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  (asked for with an empty host)


def check_encryption(name: str, address: str, *, has_tls: bool, insecure: bool) -> None:
    """Raise InvalidConfig for an address that other machines can reach without TLS, unless `insecure` allows it."""
    host, _ = parse_address(name, address)
    if not (has_tls or insecure or is_loopback(host)):
        raise InvalidConfig(
            f"{name} is {address!r}, which other machines can reach, and TLS is off: tokens and entries would cross the"
            " network in plain text. Set tls_cert and tls_key (--tls-cert, --tls-key; `tape certs dev` makes a pair),"
            " stay on 127.0.0.1, or, where something else encrypts (a proxy, a service mesh), set insecure"
            " (--insecure, TAPE_INSECURE=1)."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host's address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _types() -> dict[str, type]:
    return {field.name: type(field.default) for field in fields(Settings)}


def _from_file(file: Path | None, types: Mapping[str, type]) -> dict[str, Any]:
    path = file or Path(FILE)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file is None:
            return {}
        raise InvalidConfig(f"There is no configuration file {file}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"{path} cannot be read as TOML: {error}.") from error
    if found := [name for name in _ONCE_ONLY if name in content]:
        raise InvalidConfig(f"{path} has {found[0]!r}, which is for one start: use --{found[0].replace('_', '-')}.")
    known = [name for name in types if name not in (*_TABLES_ONLY, *_ONCE_ONLY)]
    _check_known(path, "", content, [*known, *_TABLES, "redaction", "tls_clients"])
    if "redaction" in content:
        content["redaction"] = parse_policies("redaction", content["redaction"])
    if "tls_clients" in content:
        content["tls_clients"] = _tls_clients(path, content["tls_clients"])
    for table, names in _TABLES.items():
        content[table] = _table(path, table, content.get(table, {}), names)
    archive = content.pop("archive")
    if "lake" in archive:
        content["lake"] = archive["lake"]
    if "options" in archive:
        content["lake_options"] = tuple(archive["options"].items())
    return content


def _table(path: Path, table: str, given: Any, names: Sequence[str]) -> dict[str, Any]:
    """A table of the file: texts, and tables of what others call options or settings."""
    if not isinstance(given, dict):
        raise InvalidConfig(f"{path} has {table} as {given!r}; it must be a table: [{table}]")
    _check_known(path, f"{table}.", given, names)
    found: dict[str, Any] = {}
    for name, value in given.items():
        is_table = name in ("options", "spark")
        if not isinstance(value, dict if is_table else str):
            wanted = f"a table: [{table}.{name}]" if is_table else "a text"
            raise InvalidConfig(f"{path} has {table}.{name} as {value!r}; it must be {wanted}.")
        if isinstance(value, dict):
            found[name] = {key: _text(path, f"{table}.{name}.{key}", one) for key, one in value.items()}
        else:
            found[name] = value
    return found


def _tls_clients(path: Path, given: Any) -> tuple[TlsClient, ...]:
    """The rows of [[tls_clients]]."""
    rows = given if isinstance(given, list) else [given]
    found: list[TlsClient] = []
    for number, row in enumerate(rows, 1):
        name = f"tls_clients (row {number})"
        if not isinstance(row, dict):
            raise InvalidConfig(f"{path} has {name} as {row!r}; write rows as [[tls_clients]].")
        _check_known(path, "tls_clients.", row, ("san", "tenant", "scopes"))
        scopes = row.get("scopes", [])
        texts = [row.get("san", ""), row.get("tenant", ""), *(scopes if isinstance(scopes, list) else [None])]
        if not all(isinstance(text, str) for text in texts) or not row.get("san"):
            raise InvalidConfig(
                f'{path} has {name} as {row!r}; it must look like san = "worker.acme.internal", tenant = "acme",'
                ' scopes = ["worker"].'
            )
        found.append(TlsClient(row["san"], row.get("tenant", ""), tuple(scopes)))
    return tuple(found)


def _check_known(path: Path, prefix: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {prefix + close[0]!r}?" if close else f" Known are {', '.join(known)}."
            raise InvalidConfig(f"{path} has the unknown key {prefix + name!r}.{hint}")


def _text(path: Path, name: str, value: Any) -> str:
    """A setting of Spark or of an object store, which are texts; true and 4 are taken as they are written."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise InvalidConfig(f"{path} has {name} as {value!r}; it must be a text or a number.")
    return str(value)


def _from_env(env: Mapping[str, str], types: Mapping[str, type]) -> dict[str, str]:
    aliased = {name: env[alias] for alias, name in _ENV_ALIASES.items() if alias in env}
    names = [name for name in types if name not in _TABLES_ONLY]
    return aliased | {name: env[f"TAPE_{name.upper()}"] for name in names if f"TAPE_{name.upper()}" in env}


def _convert(name: str, value: Any, wanted: type, source: str) -> Any:
    if source == "file" and isinstance(value, bool) is not (wanted is bool):
        raise InvalidConfig(f"{name} is {value!r} in tape.toml; it must be {wanted.__name__}.")
    try:
        return _to_bool(value) if wanted is bool else wanted(value)
    except (TypeError, ValueError) as error:
        where = {"file": "tape.toml", "env": f"TAPE_{name.upper()}"}.get(source, f"--{name.replace('_', '-')}")
        raise InvalidConfig(f"{name} is {value!r} ({where}); it must be {wanted.__name__}.") from error


def _to_bool(value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    try:
        return words[str(value).lower()]
    except KeyError:
        raise ValueError(value) from None
