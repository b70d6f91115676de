"""The listeners of a database: push subscriptions that were activated, their states and secrets.

A document in the catalog, registered or not, opens no listener: activation does. The name of a listener is qualified
with the tenant of its subscription.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from tape.engine.catalog import Resource, list_latest
from tape.engine.security.wallet import Wallet, text_of
from tape.errors import InvalidDocument, InvalidInput, SecretNotFound
from tape.model.tenant_names import name_within, tenant_of
from tape.store import Database, Reader, Transaction
from tape.subscriptions import lifecycle
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import KIND, parse_subscription
from tape.subscriptions.ingress.listeners import Listener
from tape.subscriptions.lifecycle import Registration

log = logging.getLogger(__name__)

PAGE = 1_000


class _Opened(NamedTuple):
    versions: tuple[tuple[int, int], ...]
    secrets: tuple[str, ...]


class CatalogListeners:
    """Listeners of activated push subscriptions. Documents and secrets are cached until they change."""

    def __init__(self, database: Database, wallet: Wallet) -> None:
        self._database = database
        self._wallet = wallet
        self._newest = -1
        self._parsed: dict[int, Subscription | None] = {}
        self._by_name: dict[str, list[Subscription]] = {}
        self._opened: dict[str, _Opened] = {}
        database.on_rollback(self._forget)

    def _forget(self) -> None:
        """Read everything again: the database is in an older state, and gives its numbers to other documents."""
        self._newest = -1
        self._parsed.clear()
        self._opened.clear()

    async def names(self) -> frozenset[str]:
        """The names of all listeners whose subscription was activated."""
        by_name = await self._subscriptions()
        activated = await self._database.read(lifecycle.list_activated_paths)
        return frozenset(name for name, found in by_name.items() if any(each.path in activated for each in found))

    async def fetch(self, name: str) -> Listener | None:
        """The current state of a listener; None if no subscription of that name was activated."""
        subscriptions = (await self._subscriptions()).get(name)
        if subscriptions is None:
            return None
        found = await self._database.read(lambda reader: _find_activated(reader, subscriptions))
        if found is None:
            return None
        subscription, registration = found
        assert subscription.spec.ingress is not None
        verify = subscription.spec.ingress.verify
        return Listener(
            name=name,
            subscription=subscription,
            subscription_id=registration.subscription_id,
            state=registration.state,
            secrets=await self._secrets(subscription, verify.aliases),
            handshake_secrets=await self._secrets(subscription, (verify.verify_token,) if verify.verify_token else ()),
        )

    async def _subscriptions(self) -> dict[str, list[Subscription]]:
        """The push subscriptions of the catalog by the name of their listener, in the order of their paths."""
        newest = await self._database.read(_newest)
        if newest == self._newest:
            return self._by_name
        parsed: dict[int, Subscription | None] = {}
        by_name: dict[str, list[Subscription]] = {}
        after = ""
        while page := await self._database.read(lambda reader, after=after: list_latest(reader, KIND, after, PAGE)):  # type: ignore[misc]
            for resource in page:
                known = resource.catalog_id in self._parsed
                found = self._parsed[resource.catalog_id] if known else _parse(resource)
                parsed[resource.catalog_id] = found
                if found is None or found.spec.ingress is None:
                    continue
                name = name_within(tenant_of(found.path), found.spec.ingress.listener)
                by_name.setdefault(name, []).append(found)
            after = page[-1].path
        for name, sharing in by_name.items():
            if len(sharing) > 1:
                paths = ", ".join(each.path for each in sharing)
                log.warning("%s have the listener %r: the first active one gets all deliveries", paths, name)
        self._newest, self._parsed, self._by_name = newest, parsed, by_name
        return by_name

    async def _secrets(self, subscription: Subscription, names: Sequence[str]) -> tuple[str, ...]:
        """The secrets of aliases in their order, each newest first. Without any, every delivery is rejected."""
        return tuple([text for name in names for text in await self._secrets_of(subscription, name)])

    async def _secrets_of(self, subscription: Subscription, name: str) -> tuple[str, ...]:
        alias = name_within(tenant_of(subscription.path), name)
        versions = await self._wallet.versions(alias)
        known = self._opened.get(alias)
        if known is None or known.versions != versions:
            try:
                texts = tuple(text_of(alias, secret) for secret in await self._wallet.reveal_all(alias))
            except (SecretNotFound, InvalidInput) as error:
                log.warning("%s does without the secret %s: %s", subscription.path, alias, error)
                return ()
            known = self._opened[alias] = _Opened(versions, texts)
        return known.secrets


def _newest(reader: Reader | Transaction) -> int:
    row = reader.one("SELECT MAX(catalog_id) FROM tape_catalog")
    return (row[0] or 0) if row else 0


def _find_activated(
    reader: Reader | Transaction, subscriptions: list[Subscription]
) -> tuple[Subscription, Registration] | None:
    """The first subscription with a live registration that was activated, else the first deactivated one."""
    found = [
        (each, registration)
        for each in subscriptions
        if (registration := lifecycle.find_activated(reader, each.path)) is not None
    ]
    return next((each for each in found if each[1].is_live), found[0] if found else None)


def _parse(resource: Resource) -> Subscription | None:
    try:
        return parse_subscription(resource.content, resource.path)
    except InvalidDocument as error:  # registered by an older version
        log.warning("%s: no listener, the document is invalid: %s", resource.path, error)
        return None
