"""The listeners of a database: push subscriptions of its catalog, their states and secrets."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tape.engine.catalog import list_latest
from tape.engine.security.wallet import Wallet, text_of
from tape.errors import InvalidDocument, InvalidInput, SecretNotFound
from tape.store import Database, Reader, Transaction
from tape.subscriptions import lifecycle
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import KIND, parse_subscription
from tape.subscriptions.ingress.listeners import Listener

log = logging.getLogger(__name__)

PAGE = 1_000


class _Opened(NamedTuple):
    versions: tuple[tuple[int, int], ...]
    secrets: tuple[str, ...]


class CatalogListeners:
    """Listeners from the catalog. Documents and secrets are cached until they change."""

    def __init__(self, database: Database, wallet: Wallet) -> None:
        self._database = database
        self._wallet = wallet
        self._newest = -1
        self._parsed: dict[int, Subscription | None] = {}
        self._by_name: dict[str, Subscription] = {}
        self._opened: dict[str, _Opened] = {}

    async def names(self) -> frozenset[str]:
        """The names of all listeners."""
        return frozenset(await self._subscriptions())

    async def fetch(self, name: str) -> Listener | None:
        """The current state of a listener. Registers its subscription if it is not registered."""
        subscription = (await self._subscriptions()).get(name)
        if subscription is None:
            return None
        path = subscription.path
        registration = await self._database.read(lambda reader: lifecycle.find_latest(reader, path))
        if registration is None:
            registration = await self._database.write(lambda tx: lifecycle.register(tx, path))
        return Listener(
            name=name,
            subscription=subscription,
            subscription_id=registration.subscription_id,
            state=registration.state,
            secrets=await self._secrets(subscription),
        )

    async def _subscriptions(self) -> dict[str, Subscription]:
        newest = await self._database.read(_newest)
        if newest == self._newest:
            return self._by_name
        parsed: dict[int, Subscription | None] = {}
        by_name: dict[str, Subscription] = {}
        after = ""
        while page := await self._database.read(lambda reader, after=after: list_latest(reader, KIND, after, PAGE)):  # type: ignore[misc]
            for resource in page:
                known = resource.catalog_id in self._parsed
                found = self._parsed[resource.catalog_id] if known else _parse(resource.path, resource.content)
                parsed[resource.catalog_id] = found
                if found is None or found.spec.ingress is None:
                    continue
                name = found.spec.ingress.listener
                if by_name.setdefault(name, found) is not found:
                    log.warning(
                        "%s gets no deliveries: %s has the listener %r already", found.path, by_name[name].path, name
                    )
            after = page[-1].path
        self._newest, self._parsed, self._by_name = newest, parsed, by_name
        return by_name

    async def _secrets(self, subscription: Subscription) -> tuple[str, ...]:
        """The secrets of `verify.secret`, newest first. Without any, every delivery is rejected."""
        assert subscription.spec.ingress is not None
        alias = subscription.spec.ingress.verify.secret
        if not alias:
            return ()
        versions = await self._wallet.versions(alias)
        known = self._opened.get(alias)
        if known is None or known.versions != versions:
            try:
                texts = tuple(text_of(alias, secret) for secret in await self._wallet.reveal_all(alias))
            except (SecretNotFound, InvalidInput) as error:
                log.warning("%s rejects all deliveries: %s", subscription.path, error)
                return ()
            known = self._opened[alias] = _Opened(versions, texts)
        return known.secrets


def _newest(reader: Reader | Transaction) -> int:
    row = reader.one("SELECT MAX(catalog_id) FROM tape_catalog")
    return (row[0] or 0) if row else 0


def _parse(path: str, content: str) -> Subscription | None:
    try:
        return parse_subscription(content)
    except InvalidDocument as error:  # registered by an older version
        log.warning("%s: no listener, the document is invalid: %s", path, error)
        return None
