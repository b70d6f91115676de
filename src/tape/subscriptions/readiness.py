"""Readiness: whether a subscription of this database can start runs, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tape.base.clock import now_ms
from tape.engine.catalog import fetch
from tape.engine.executions.execute import KIND as PLAYBOOK
from tape.engine.reactions import registry
from tape.engine.security.wallet import has_secret
from tape.errors import InvalidDocument
from tape.model.tenant_names import name_within, tenant_of
from tape.playbooks.library import known_playbook
from tape.playbooks.pools import default_pool, reaction_id
from tape.store import Database, Reader, Transaction
from tape.subscriptions import lifecycle
from tape.subscriptions.dispatch.holds import ConfigurationProblem
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription


class SubscriptionReadiness(NamedTuple):
    """What prevents runs from starting, and what only delays them."""

    problems: tuple[ConfigurationProblem, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        """Why no run can start, one sentence each."""
        return [each.reason for each in self.problems]


class DatabaseReadiness:
    """The check of a runtime or listener in the server's process."""

    asks_server = True

    def __init__(self, database: Database, path: str, subscription_id: int, emitter: str = "") -> None:
        self._database = database
        self._path = path
        self._subscription_id = subscription_id
        self._emitter = emitter

    async def find_problems(self) -> Sequence[ConfigurationProblem]:
        """What prevents runs from starting."""
        return (await self._database.read(lambda reader: check_path(reader, self._path))).problems

    async def report(self, reasons: Sequence[str]) -> None:
        """Record why the subscription is held."""
        await self._database.write(
            lambda tx: lifecycle.set_hold(tx, self._subscription_id, reasons, emitter=self._emitter)
        )


def check_path(reader: Reader | Transaction, path: str) -> SubscriptionReadiness:
    """The readiness of the newest document of a path."""
    resource = fetch(reader, path)
    if resource is None:
        return SubscriptionReadiness(
            (ConfigurationProblem("document", path, f"The catalog has no document {path!r}."),)
        )
    try:
        subscription = parse_subscription(resource.content, path)
    except InvalidDocument as error:  # registered by an older version
        return SubscriptionReadiness(
            (ConfigurationProblem("document", path, f"The document {path!r} is invalid: {error}"),)
        )
    return check_subscription(reader, subscription)


def check_subscription(reader: Reader | Transaction, subscription: Subscription) -> SubscriptionReadiness:
    """Look for every playbook and secret that the document names, and for the pools of its runs."""
    tenant = tenant_of(subscription.path)
    problems: list[ConfigurationProblem] = []
    pools: dict[str, None] = dict.fromkeys(_named_pools(subscription))
    for name in subscription.playbooks:
        resource = fetch(reader, name_within(tenant, name))
        if resource is None:
            reason = f"The catalog has no playbook {name!r}. Register it with: tape playbooks register FILE"
            problems.append(ConfigurationProblem("playbook", name, reason))
        elif resource.kind != PLAYBOOK:
            reason = f"The document {name!r} of the catalog is of kind {resource.kind!r}, not {PLAYBOOK!r}."
            problems.append(ConfigurationProblem("playbook", name, reason))
        elif not subscription.spec.dispatch.execution_pool:
            pools[known_playbook(resource.content).playbook.pool or default_pool(name)] = None
    for field, alias in _secrets(subscription):
        if not has_secret(reader, name_within(tenant, alias), now_ms()):
            reason = f"The wallet has no secret {alias!r}, which {field} names. Set it with: tape wallet set {alias}"
            problems.append(ConfigurationProblem("secret", alias, reason))
    warnings = [
        f"No worker has served the pool {pool!r} yet: runs wait there until `tape worker --pool {pool}` is started."
        for pool in pools
        if not _is_known_pool(reader, pool)
    ]
    return SubscriptionReadiness(tuple(problems), tuple(warnings))


def _named_pools(subscription: Subscription) -> Iterator[str]:
    if subscription.spec.dispatch.execution_pool:
        yield subscription.spec.dispatch.execution_pool
    for rule in subscription.spec.headers.directives:
        if rule.controls == "dispatch.execution_pool":
            yield from rule.allowed
        elif rule.controls == "priority":
            yield from rule.map.values()


def _secrets(subscription: Subscription) -> Iterator[tuple[str, str]]:
    """The field and the alias of every secret that the document needs."""
    spec = subscription.spec
    if spec.auth:
        yield "auth", spec.auth
    if spec.spool.mode != "off" and spec.spool.credential:
        yield "spool.credential", spec.spool.credential
    if spec.ingress is not None:
        verify = spec.ingress.verify
        yield from (("ingress.verify", alias) for alias in verify.aliases)
        if verify.verify_token:
            yield "ingress.verify.verify_token", verify.verify_token


def _is_known_pool(reader: Reader | Transaction, pool: str) -> bool:
    # For a caller of one tenant every pool exists, so that it does not learn which pools others use.
    found = registry.find(reader, reaction_id(pool))
    return found is not None and not found.deleted
