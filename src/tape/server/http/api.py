"""The routes below `/api`, all with one access check."""

from __future__ import annotations

from tape.engine.security.wallet import Wallet
from tape.journal.journal import Journal
from tape.server.document_kinds import KINDS
from tape.server.http.catalog import CatalogRoutes
from tape.server.http.credentials import CredentialRoutes
from tape.server.http.deliveries import DeliveryRoutes
from tape.server.http.downstreams import DownstreamRoutes, OutcomeRoutes
from tape.server.http.execute import ExecuteRoutes
from tape.server.http.holds import HoldRoutes
from tape.server.http.internal import InternalAccess
from tape.server.http.keys import KeyRoutes
from tape.server.http.listeners import ListenerRoutes
from tape.server.http.offsets import OffsetRoutes
from tape.server.http.pools import PoolRoutes
from tape.server.http.router import App, Handler
from tape.server.http.subscriptions import SubscriptionRoutes
from tape.subscriptions.ingress.listeners import ListenerSource


class ApiRoutes:
    """The routes below `/api`."""

    def __init__(
        self,
        journal: Journal,
        internal: InternalAccess,
        wallet: Wallet,
        listeners: ListenerSource,
        keys: KeyRoutes,
    ) -> None:
        self._internal = internal
        self._catalog = CatalogRoutes(journal.database, KINDS)
        self._execute = ExecuteRoutes(journal)
        self._credentials = CredentialRoutes(wallet, internal)
        self._listeners = ListenerRoutes(listeners, wallet)
        self._pools = PoolRoutes(journal.database)
        self._downstreams = DownstreamRoutes(journal.database)
        self._holds = HoldRoutes(journal.database)
        self._outcomes = OutcomeRoutes(journal.database)
        self._subscriptions = SubscriptionRoutes(journal)
        self._deliveries = DeliveryRoutes(journal)
        self._offsets = OffsetRoutes(journal)
        self._keys = keys

    def add_to(self, app: App) -> None:
        """Add the routes to the application."""

        def add(method: str, path: str, handler: Handler) -> None:
            app.add(method, path, self._internal.guard(f"{method} {path}", handler))

        add("POST", "/api/catalog/register", self._catalog.register)
        add("POST", "/api/catalog/resource", self._catalog.resource)
        add("POST", "/api/catalog/list", self._catalog.list)
        add("GET", "/api/credentials/", self._credentials.get)
        add("GET", "/api/internal/ingress", self._listeners.names)
        add("GET", "/api/internal/ingress/", self._listeners.show)
        add("POST", "/api/execute", self._execute.execute)
        add("POST", "/api/execute/batch", self._execute.execute_batch)
        add("GET", "/api/executions/", self._execute.show)
        add("POST", "/api/taken", self._offsets.take)
        add("GET", "/api/taken", self._offsets.show)
        add("GET", "/api/pools/", self._pools.show)
        add("POST", "/api/subscriptions", self._subscriptions.register)
        add("POST", "/api/subscriptions/register", self._subscriptions.register)
        add("GET", "/api/subscriptions", self._subscriptions.list)
        add("GET", "/api/subscriptions/", self._subscriptions.show)
        add("POST", "/api/subscriptions/{}/", self._subscriptions.act)
        add("GET", "/api/deliveries", self._deliveries.list)
        add("POST", "/api/deliveries/resend", self._deliveries.resend)
        add("POST", "/api/events", self._subscriptions.post_events)
        add("POST", "/api/downstreams", self._downstreams.act)
        add("POST", "/api/holds", self._holds.act)
        add("POST", "/api/executions/outcomes", self._outcomes.read)
        add("GET", "/api/keys", self._keys.list)
        add("POST", "/api/keys", self._keys.create)
        add("POST", "/api/keys/{}/", self._keys.act)
        add("POST", "/api/tokens/revoke", self._keys.revoke_token)
