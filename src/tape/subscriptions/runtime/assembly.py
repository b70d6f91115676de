"""Builds the runtime of a subscription: source, spool, circuits, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tape.base.hosts import has_address, hosts_of
from tape.base.telemetry.metrics import Metrics
from tape.brokers import Source, open_source
from tape.brokers.addresses import PORTS
from tape.brokers.settings import source_hosts
from tape.errors import ApiRefused, SecretNotBound, SecretNotFound
from tape.subscriptions.dispatch.assembly import forwarder_of
from tape.subscriptions.dispatch.holds import ReadinessCheck
from tape.subscriptions.dispatch.ordered import Dispatch
from tape.subscriptions.dispatch.outcomes import Downstreams
from tape.subscriptions.document.spec import CONNECTION_KEYS, Subscription, SubscriptionSpec
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.runtime.runtime import Runtime
from tape.subscriptions.secrets import Reveal
from tape.subscriptions.spool.locations import spool_hosts


async def assemble(
    subscription: Subscription,
    ref: SubscriptionRef,
    dispatch: Dispatch,
    *,
    reveal: Reveal,
    reporter: EventReporter,
    metrics: Metrics,
    downstreams: Downstreams | None = None,
    readiness: ReadinessCheck | None = None,
    **more: Any,
) -> Runtime:
    """A runtime that is not started. `reveal` reads the secret of an alias; `more` are arguments of Runtime."""
    source = await source_of(subscription.spec, reveal)
    spool = subscription.spec.spool
    is_used = spool.credential and spool.mode != "off"
    credential = await reveal(spool.credential, spool_hosts(spool)) if is_used else None
    # With a spool, events that cannot be written are stored there; without one they are buffered in memory.
    emit = reporter.emit if subscription.spec.spool.mode == "off" else reporter.write
    forwarder = forwarder_of(
        subscription,
        ref,
        dispatch,
        emit,
        metrics=metrics,
        credential=credential,
        reveal=reveal,
        downstreams=downstreams,
        readiness=readiness,
    )
    return Runtime(subscription, ref, source, forwarder, reporter=reporter, metrics=metrics, **more)


async def source_of(spec: SubscriptionSpec, reveal: Reveal) -> Source:
    """The source of a spec, with its credential."""
    secrets, credential = await secrets_of(spec, reveal)
    # Brokers that push messages send no more than this without an acknowledgement.
    window = {"max_in_flight": spec.max_in_flight} if spec.max_in_flight and spec.source in PORTS else {}
    return open_source(spec.source, connection_of(spec) | secrets | window, credential)


async def secrets_of(spec: SubscriptionSpec, reveal: Reveal) -> tuple[dict[str, str], Any]:
    """The secrets of a spec's connection by key, and the credential that `auth` names."""
    connection = connection_of(spec)
    hosts = source_hosts(spec.source, connection)
    credential = await reveal(spec.auth, hosts) if spec.auth else None
    if isinstance(credential, Mapping) and has_address(credential):
        hosts = hosts_of(credential)
    secrets = {
        name: await _secret_or_text(name, connection[name], hosts, reveal)
        for name in ("password", "token")
        if connection.get(name)
    }
    return secrets, credential


def connection_of(spec: SubscriptionSpec) -> dict[str, Any]:
    """The connection settings of a spec that differ from their defaults."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(SubscriptionSpec)}
    found = {}
    for key in CONNECTION_KEYS:
        value = getattr(spec, key)
        if value != defaults[key]:
            found[key] = msgspec.to_builtins(value)
    if isinstance(tls := found.get("tls"), Mapping):
        found["tls"] = {name: value for name, value in tls.items() if value}
    return found


async def _secret_or_text(name: str, alias: str, hosts: Sequence[str], reveal: Reveal) -> str:
    """The secret of an alias, or the text itself if no secret has that name."""
    try:
        held = await reveal(alias, hosts)
    except SecretNotFound:
        return alias
    except ApiRefused as error:
        if error.http_status in (404, 422):
            return alias
        raise
    if isinstance(held, str):
        return held
    if has_address(held) and not set(hosts) <= set(hosts_of(held)):
        raise SecretNotBound(alias, hosts, hosts_of(held))
    return str(held.get(name, alias))
