"""The wallet: secrets by alias, encrypted in the database.

An alias is a qualified name: the secret `stripe` of the tenant acme is `~acme/stripe`, and is sealed under that name.
Changes and reveals of secrets are journaled. Their values are never in entries, logs, errors or reprs.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tape.base.clock import now_ms
from tape.base.hosts import check_host, has_address, hosts_of, is_bound
from tape.engine.security.envelope_encryption import MasterKeys, SealedSecret, seal, unseal
from tape.engine.security.keyfile import KeyFile
from tape.engine.security.kms import GoogleKms
from tape.errors import InvalidInput, SecretDamaged, SecretNotBound, SecretNotFound, TapeError
from tape.journal.appender import append
from tape.model.entry import Draft, check_id
from tape.model.subject import build
from tape.model.tenant_names import name_within, plain_name, split_name
from tape.store import Database, Reader, Transaction

log = logging.getLogger(__name__)

KEY_FILE = "tape-wallet.key"
KMS = "gcp-kms://"
MAX_BYTES = 64 << 10
RUN = "wallet"

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Where the text of a secret with several fields is looked for, in this order.
TEXT_FIELDS = ("secret", "token", "value", "key", "password")

Secret = str | dict[str, Any]


class SecretSource(Protocol):
    """A source of secrets: the wallet, or a client of a server that has one."""

    async def reveal(self, alias: str) -> Secret:
        """The secret of an alias: a text, or fields such as `{"url": …, "token": …}`. Raises SecretNotFound."""


class SecretInfo(msgspec.Struct, frozen=True):
    """A secret without its value."""

    alias: str
    version: int
    master_key: str
    set_at_ms: int
    sealed_at_ms: int
    retires_at_ms: int
    # Where it may be sent, as host or host:port; empty if it is not bound to a host.
    hosts: tuple[str, ...] = ()


class ResealedSecret(msgspec.Struct, frozen=True):
    """A secret under its old alias and as it was there, and sealed under a new alias."""

    info: SecretInfo
    before: SealedSecret
    alias: str
    sealed: SealedSecret

    def __repr__(self) -> str:
        return f"ResealedSecret({self.info.alias!r}, {self.alias!r})"


class Wallet:
    """The secrets of one database."""

    def __init__(self, database: Database, keys: MasterKeys) -> None:
        self._database = database
        self._keys = keys

    async def reveal(self, alias: str) -> Secret:
        """The secret of an alias."""
        return (await self.reveal_all(alias))[0]

    async def use(self, alias: str, hosts: Sequence[str], *, to: str) -> Secret:
        """The secret of an alias for a connection to `hosts`; the journal records the use.

        A secret with an address of its own is used for that address alone, which the caller has to take from it.
        Raises SecretNotBound if the secret is bound to other hosts. A secret that is not bound is revealed with a
        warning.
        """
        secret = await self.reveal(alias)
        bound = (await self.find(alias)).hosts
        if isinstance(secret, dict) and has_address(secret):
            hosts = hosts_of(secret)
        elif bound and not (hosts and all(is_bound(host, bound) for host in hosts)):
            raise SecretNotBound(plain_name(alias), hosts, bound)
        elif not bound:
            log.warning(
                "The secret %r is not bound to a host and is used for %s: bind it with tape wallet set %s --host %s."
                " Unbound secrets will be refused by the next minor version.",
                alias,
                ", ".join(hosts) or "an unnamed host",
                _arguments(alias),
                hosts[0] if hosts else "HOST:PORT",
            )
        await self.record_reveal(alias, to=to, hosts=hosts)
        return secret

    async def reveal_all(self, alias: str) -> list[Secret]:
        """The secret, and those before it that may still be used: a sender changes over when it can."""
        try:
            rows = await self._database.read(lambda reader: _rows(reader, alias, now_ms()))
            if not rows:
                raise await self._not_found(alias)
            found = [await asyncio.to_thread(self._open, alias, version, sealed) for version, sealed in rows]
        except TapeError as error:
            self._database.metrics.wallet_reveals.labels(error.code).inc()
            raise
        self._database.metrics.wallet_reveals.labels("ok").inc()
        return found

    async def versions(self, alias: str) -> tuple[tuple[int, int], ...]:
        """Which versions may be used and when each was sealed: as long as that stays, so do the secrets."""
        now = now_ms()
        return await self._database.read(lambda reader: _usable(reader, alias, now))

    async def set(
        self, alias: str, secret: Secret, *, keep_previous_s: float = 0, by: str = "", hosts: Sequence[str] = ()
    ) -> SecretInfo:
        """Store a secret; those before it leave, at once or after so many seconds at most.

        It is bound to `hosts`, else to the address that it has itself, else to the hosts of the version before it.
        """
        check_alias(alias)
        plain = _encoded(secret)
        bound = _bindings(alias, secret, hosts)
        while True:
            now = now_ms()
            version = await self._database.read(lambda reader: _version(reader, alias)) + 1
            kept = bound or await self._database.read(lambda reader: _hosts(reader, alias))
            sealed = await asyncio.to_thread(seal, plain, _binding(alias, version), self._keys)
            info = SecretInfo(alias, version, sealed.master_key, now, now, 0, kept)
            retires_at_ms = now + int(keep_previous_s * 1000)

            def store(
                tx: Transaction, info: SecretInfo = info, sealed: SealedSecret = sealed, until: int = retires_at_ms
            ) -> bool:
                return _store(tx, info, sealed, until, by)

            # Another process may have set it meanwhile; a sealed secret is valid for one version only.
            if await self._database.write(store, size=len(plain)):
                return info

    async def find(self, alias: str) -> SecretInfo:
        """The secret of an alias, without its value. Raises SecretNotFound."""
        info = [each for each in await self.list() if each.alias == alias and not each.retires_at_ms]
        if not info:
            raise await self._not_found(alias)
        return info[0]

    async def record_reveal(self, alias: str, to: str, hosts: Sequence[str] = ()) -> None:
        """Journal that a secret is about to be revealed, to which caller, and for which hosts."""
        payload = {"to": to} | ({"host": ", ".join(hosts)} if hosts else {})
        await self._database.write(lambda tx: _emit(tx, "revealed", alias, payload))

    async def list(self) -> list[SecretInfo]:
        """List the secrets by alias, without their values."""
        return await self._database.read(_list)

    async def delete(self, alias: str, *, by: str = "") -> None:
        """Remove a secret for good."""
        if not await self._database.write(lambda tx: _delete(tx, alias, by)):
            raise await self._not_found(alias)

    async def rotate(self, *, new_master_key: bool = True, by: str = "") -> tuple[int, str]:
        """Seal every secret anew: with a data key of its own, and a new master key. How many, and which key.

        Can be stopped anywhere and begun again; readers are not disturbed.
        """
        await self.delete_retired()
        info = await self.list()
        if new_master_key:
            await asyncio.to_thread(self._keys.renew, frozenset(each.master_key for each in info))
        count, master_key = 0, ""
        for each in info:
            resealed = await self._reseal(each)
            if resealed is not None:
                count, master_key = count + 1, resealed.master_key
        payload = {"resealed": count, "master_key": master_key, "by": by}
        await self._database.write(lambda tx: _emit(tx, "rotated", "", payload))
        return count, master_key

    async def reseal_for(self, old: str, new: str) -> Sequence[ResealedSecret]:
        """The secrets of a tenant (empty: of none), sealed under the aliases of another; nothing is written."""
        found = []
        for info in await self.list():
            tenant, name = split_name(info.alias)
            row = await self._database.read(lambda reader, info=info: _row(reader, info.alias, info.version))  # type: ignore[misc]
            if tenant != old or row is None:
                continue
            plain = await asyncio.to_thread(unseal, row, _binding(info.alias, info.version), self._keys)
            alias = name_within(new, name)
            sealed = await asyncio.to_thread(seal, plain, _binding(alias, info.version), self._keys)
            found.append(ResealedSecret(info, row, alias, sealed))
        return found

    async def delete_retired(self) -> None:
        """Remove the secrets that were replaced and whose time is up."""
        now = now_ms()
        await self._database.write(lambda tx: _delete_retired(tx, now))

    def close(self) -> None:
        """Close the connection to the master keys."""
        self._keys.close()

    async def _reseal(self, info: SecretInfo) -> SealedSecret | None:
        binding = _binding(info.alias, info.version)
        row = await self._database.read(lambda reader: _row(reader, info.alias, info.version))
        if row is None:
            return None  # replaced or removed since; what replaced it is sealed with the new key
        plain = await asyncio.to_thread(unseal, row, binding, self._keys)
        sealed = await asyncio.to_thread(seal, plain, binding, self._keys)
        return sealed if await self._database.write(lambda tx: _replace(tx, info, row, sealed)) else None

    def _open(self, alias: str, version: int, sealed: SealedSecret) -> Secret:
        plain = unseal(sealed, _binding(alias, version), self._keys)
        try:
            secret: Secret = msgspec.json.decode(plain, type=Secret)
        except msgspec.DecodeError:
            raise SecretDamaged(f"The secret {alias!r} opens, but is neither text nor fields. Set it again.") from None
        return secret

    async def _not_found(self, alias: str) -> SecretNotFound:
        tenant, name = split_name(alias)
        aliases = {name for info in await self.list() for owner, name in [split_name(info.alias)] if owner == tenant}
        near = difflib.get_close_matches(name, aliases, n=1)
        hint = f"The nearest is {near[0]!r}. " if near else ""
        remedy = f"Set it with: tape wallet set {_arguments(alias)}"
        return SecretNotFound(f"The wallet has no secret {name!r}. {hint}{remedy}")


def master_keys(location: str, store: str) -> MasterKeys:
    """The master keys that `wallet_key` names: gcp-kms://projects/…, or a file, by default beside the database's."""
    if location.startswith(KMS):
        return GoogleKms(location.removeprefix(KMS))
    scheme, _, path = store.partition(":")
    beside = Path(path).with_name(KEY_FILE) if scheme == "sqlite" and path else Path(KEY_FILE)
    return KeyFile(Path(location) if location else beside)


def text_of(alias: str, secret: Secret) -> str:
    """The one text of a secret; of fields, the first of secret, token, value, key, password."""
    found = secret if isinstance(secret, str) else next(filter(None, map(secret.get, TEXT_FIELDS)), None)
    if not isinstance(found, str):
        raise InvalidInput(f"The secret {alias!r} has none of the fields {', '.join(TEXT_FIELDS)}; one is needed here.")
    return found


def has_secret(reader: Reader | Transaction, alias: str, now_ms: int) -> bool:
    """Whether the wallet has a usable secret of an alias."""
    return bool(_usable(reader, alias, now_ms))


def check_alias(alias: str) -> None:
    """Raise unless the text can be an alias, plain or qualified with a tenant."""
    check_id("alias", alias)
    alias = plain_name(alias)
    if not _ALIAS.fullmatch(alias):
        raise InvalidInput(
            f"alias {alias[:200]!r} must be letters, digits, '.', '_' or '-', at most 128, not beginning with a sign."
        )


def _arguments(alias: str) -> str:
    """The arguments of `tape wallet set` for an alias."""
    tenant, name = split_name(alias)
    return f"{name} --tenant {tenant}" if tenant else name


def _bindings(alias: str, secret: Secret, hosts: Sequence[str]) -> tuple[str, ...]:
    """The hosts that a new secret is bound to. Raises InvalidInput if its own address is not one of those given."""
    given = tuple(dict.fromkeys(check_host(host) for host in hosts))
    own = hosts_of(secret) if isinstance(secret, dict) else ()
    if given and (foreign := [host for host in own if not is_bound(host, given)]):
        raise InvalidInput(f"The secret {alias!r} has the address {', '.join(foreign)}, which --host does not name.")
    return given or own


def _encoded(secret: Secret) -> bytes:
    if not secret:
        raise InvalidInput("The secret is empty; nothing was stored.")
    plain = msgspec.json.encode(secret)
    if len(plain) > MAX_BYTES:
        raise InvalidInput(f"The secret has {len(plain)} bytes; the wallet takes {MAX_BYTES} at most.")
    return plain


def _binding(alias: str, version: int) -> str:
    return f"{alias}/{version}"


# ── what is stored ───────────────────────────────────────────────────────────────────────────────

_SEALED_COLUMNS = "master_key, wrapped_key, sealed"
_INFO_COLUMNS = "alias, version, master_key, set_at_ms, sealed_at_ms, retires_at_ms, hosts"


def _hosts(reader: Reader, alias: str) -> tuple[str, ...]:
    row = reader.one("SELECT hosts FROM tape_secrets WHERE alias = ? ORDER BY version DESC LIMIT 1", alias)
    return _split(row[0]) if row else ()


def _split(hosts: str) -> tuple[str, ...]:
    return tuple(hosts.split(",")) if hosts else ()


def _version(reader: Reader, alias: str) -> int:
    row = reader.one("SELECT MAX(version) FROM tape_secrets WHERE alias = ?", alias)
    return (row[0] or 0) if row else 0


def _list(reader: Reader) -> list[SecretInfo]:
    return [
        SecretInfo(*(*row[:6], _split(row[6])))
        for row in reader.query(f"SELECT {_INFO_COLUMNS} FROM tape_secrets ORDER BY alias, version")
    ]


def _usable(reader: Reader | Transaction, alias: str, now_ms: int) -> tuple[tuple[int, int], ...]:
    rows = reader.query(
        "SELECT version, sealed_at_ms FROM tape_secrets WHERE alias = ? AND (retires_at_ms = 0 OR retires_at_ms > ?)"
        " ORDER BY version DESC",
        alias,
        now_ms,
    )
    return tuple((version, sealed_at_ms) for version, sealed_at_ms in rows)


def _rows(reader: Reader, alias: str, now_ms: int) -> Sequence[tuple[int, SealedSecret]]:
    rows = reader.query(
        f"SELECT version, {_SEALED_COLUMNS} FROM tape_secrets"
        " WHERE alias = ? AND (retires_at_ms = 0 OR retires_at_ms > ?) ORDER BY version DESC",
        alias,
        now_ms,
    )
    return [(version, SealedSecret(key, bytes(wrapped), bytes(sealed))) for version, key, wrapped, sealed in rows]


def _row(reader: Reader | Transaction, alias: str, version: int) -> SealedSecret | None:
    row = reader.one(f"SELECT {_SEALED_COLUMNS} FROM tape_secrets WHERE alias = ? AND version = ?", alias, version)
    return SealedSecret(row[0], bytes(row[1]), bytes(row[2])) if row else None


def _store(tx: Transaction, info: SecretInfo, sealed: SealedSecret, until_ms: int, by: str) -> bool:
    row = tx.one("SELECT MAX(version) FROM tape_secrets WHERE alias = ?", info.alias)
    if row is not None and (row[0] or 0) != info.version - 1:
        return False
    tx.execute(
        "UPDATE tape_secrets SET retires_at_ms = ? WHERE alias = ? AND (retires_at_ms = 0 OR retires_at_ms > ?)",
        until_ms,
        info.alias,
        until_ms,
    )
    _delete_retired(tx, info.set_at_ms)
    columns = (
        *("alias", "version", "master_key", "wrapped_key", "sealed"),
        *("set_at_ms", "sealed_at_ms", "retires_at_ms", "hosts"),
    )
    row = (info.alias, info.version, *sealed, info.set_at_ms, info.sealed_at_ms, 0, ",".join(info.hosts))
    tx.insert("tape_secrets", columns, [row])
    _emit(tx, "set", info.alias, {"version": info.version, "by": by})
    return True


def _delete_retired(tx: Transaction, now_ms: int) -> None:
    tx.execute("DELETE FROM tape_secrets WHERE retires_at_ms > 0 AND retires_at_ms <= ?", now_ms)


def replace_resealed(tx: Transaction, secrets: Sequence[ResealedSecret]) -> int:
    """Store secrets under their new aliases instead of the old ones; how many. InvalidInput if an alias is taken."""
    for each in secrets:
        if _row(tx, each.info.alias, each.info.version) != each.before:
            raise InvalidInput(
                f"The secret {each.info.alias!r} was changed meanwhile; nothing was moved. Run the command again."
            )
        if tx.one("SELECT 1 FROM tape_secrets WHERE alias = ?", each.alias) is not None:
            raise InvalidInput(
                f"The secret {plain_name(each.alias)!r} is in both tenants; nothing was moved. Delete one of them."
            )
    for each in secrets:
        tx.execute(
            "UPDATE tape_secrets SET alias = ?, master_key = ?, wrapped_key = ?, sealed = ?, sealed_at_ms = ?"
            " WHERE alias = ? AND version = ?",
            each.alias,
            *each.sealed,
            now_ms(),
            each.info.alias,
            each.info.version,
        )
    return len(secrets)


def _replace(tx: Transaction, info: SecretInfo, before: SealedSecret, sealed: SealedSecret) -> bool:
    if _row(tx, info.alias, info.version) != before:
        return False
    tx.execute(
        "UPDATE tape_secrets SET master_key = ?, wrapped_key = ?, sealed = ?, sealed_at_ms = ?"
        " WHERE alias = ? AND version = ?",
        *sealed,
        now_ms(),
        info.alias,
        info.version,
    )
    return True


def _delete(tx: Transaction, alias: str, by: str) -> bool:
    if not tx.execute("DELETE FROM tape_secrets WHERE alias = ?", alias):
        return False
    _emit(tx, "deleted", alias, {"by": by})
    return True


def _emit(tx: Transaction, verb: str, alias: str, payload: dict[str, Any]) -> None:
    """Append an entry about a secret, in the tenant of the secret."""
    tenant, name = split_name(alias)
    if alias:
        payload = {"alias": name, **payload}
    subject = build("wallet", verb, *([name] if name else []))
    payload_json = msgspec.json.encode(payload).decode()
    append(tx, [Draft(subject=subject, kind="wallet", run_id=RUN, tenant=tenant, payload_json=payload_json)])
