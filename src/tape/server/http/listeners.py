"""Listeners of this server: deliveries start executions here; `/api/internal/ingress…` serves gateways."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.base import structs
from tape.engine.executions.execute import ExecuteRequest, checked_request, execute_batch
from tape.engine.security.wallet import Wallet
from tape.errors import NotFound, TapeError
from tape.journal.journal import Journal
from tape.model.dispatch_result import RunDispatchResult
from tape.model.tenant_names import display, is_visible, name_within, qualify, tenant_of
from tape.server.http.execute import RUN_OVERHEAD_BYTES
from tape.server.http.internal import answer
from tape.subscriptions.dispatch.in_server import WriterDispatch
from tape.subscriptions.dispatch.request import request_of
from tape.subscriptions.ingress.ingress import AdmittedMessage
from tape.subscriptions.ingress.listeners import Listener, ListenerSource

# Seconds between two audit entries for the same secrets and the same gateway.
NOTE_S = 3_600.0

EMITTER = "ingress"


class RunStarter:
    """Starts executions in this process; concurrent deliveries share one commit."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def __call__(self, listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult:
        body = request_of(listener.ref, admitted.plan, EMITTER)
        request = checked_request(structs.convert(body, ExecuteRequest), self._max_bytes)
        size = len(admitted.message.body or b"") * 2 + RUN_OVERHEAD_BYTES
        result = await self._database.write_bulk(execute_batch, request, size)
        if isinstance(result, TapeError):
            raise result
        return result

    def replays(self, listener: Listener) -> WriterDispatch:
        """The dispatch that replays spooled messages of a listener."""
        return WriterDispatch(self._database, listener.ref, self._max_bytes, emitter=EMITTER)


class ListenerRoutes:
    """Routes for gateways. Answers contain secrets, so they need the internal token."""

    def __init__(self, source: ListenerSource, wallet: Wallet) -> None:
        self._source = source
        self._wallet = wallet
        self._noted: dict[tuple[str, str, tuple[str, ...]], float] = {}

    async def names(self, request: Request) -> Response:
        """The names of all listeners."""
        return answer({"listeners": sorted(display(name) for name in await self._source.names() if is_visible(name))})

    async def show(self, request: Request) -> Response:
        """A listener: its subscription, state and signing secrets."""
        name = request.path_params["name"]
        listener = await self._source.fetch(qualify(name))
        if listener is None:
            raise NotFound(f"No push subscription for ingress listener '{name}'")
        where = request.client.host if request.client else ""
        await self._note(listener, where)
        response = answer(shown(listener))
        response.headers["cache-control"] = "no-store"
        return response

    async def _note(self, listener: Listener, where: str) -> None:
        assert listener.subscription.spec.ingress is not None
        tenant, now = tenant_of(listener.subscription.path), time.monotonic()
        verify = listener.subscription.spec.ingress.verify
        shown_secrets = (*listener.secrets, *listener.handshake_secrets)
        for name in (*verify.aliases, verify.verify_token) if shown_secrets else ():
            alias = name_within(tenant, name)
            key = (alias, where, shown_secrets)
            if name and now - self._noted.get(key, -NOTE_S) >= NOTE_S:
                await self._wallet.record_reveal(alias, to=f"/api/internal/ingress/{listener.name} from {where}")
                self._noted = {each: at for each, at in self._noted.items() if now - at < NOTE_S} | {key: now}


def shown(listener: Listener) -> dict[str, Any]:
    """A listener as JSON; a gateway rebuilds it from `subscription`, `state`, `subscription_id` and `secrets`."""
    subscription = msgspec.structs.replace(listener.subscription, path=display(listener.subscription.path))
    spec = subscription.spec
    assert spec.ingress is not None
    verify = msgspec.to_builtins(spec.ingress.verify)
    verify.pop("secret", None)
    if listener.secrets:
        verify["secret"] = listener.secrets[0]
    if spec.ingress.verify.header:
        verify["header"] = spec.ingress.verify.header.lower()
    return {
        "listener": display(listener.name),
        "catalog_path": subscription.path,
        "source": spec.source,
        "subscription_id": str(listener.subscription_id),
        "verify": verify,
        "dispatch": {"payload_from": spec.dispatch.payload_from, **msgspec.to_builtins(spec.dispatch)},
        "directives": msgspec.to_builtins(spec.headers),
        "state": listener.state,
        "secrets": listener.secrets,
        "handshake_secrets": listener.handshake_secrets,
        "subscription": msgspec.to_builtins(subscription),
    }
