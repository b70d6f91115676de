"""The routes below `/api`, all with one access check."""

from __future__ import annotations

from tape.documents.document import Check
from tape.engine.security.wallet import Wallet
from tape.journal.journal import Journal
from tape.playbooks.document import read_playbook
from tape.server.http.catalog import CatalogRoutes
from tape.server.http.credentials import CredentialRoutes
from tape.server.http.execute import ExecuteRoutes
from tape.server.http.internal import InternalAccess
from tape.server.http.listeners import ListenerRoutes
from tape.server.http.offsets import OffsetRoutes
from tape.server.http.pools import PoolRoutes
from tape.server.http.router import App
from tape.server.http.subscriptions import SubscriptionRoutes
from tape.subscriptions.document.validator import read_subscription
from tape.subscriptions.ingress.listeners import ListenerSource

# The kinds of documents, with the validator of each.
KINDS: dict[str, Check] = {"playbook": read_playbook, "subscription": read_subscription}


class ApiRoutes:
    """The routes below `/api`."""

    def __init__(self, journal: Journal, internal: InternalAccess, wallet: Wallet, listeners: ListenerSource) -> None:
        self._internal = internal
        self._catalog = CatalogRoutes(journal.database, KINDS)
        self._execute = ExecuteRoutes(journal)
        self._credentials = CredentialRoutes(wallet, internal)
        self._listeners = ListenerRoutes(listeners, wallet)
        self._pools = PoolRoutes(journal.database)
        self._subscriptions = SubscriptionRoutes(journal)
        self._offsets = OffsetRoutes(journal)

    def add_to(self, app: App) -> None:
        """Add the routes to the application."""
        guard = self._internal.guard
        app.add("POST", "/api/catalog/register", guard(self._catalog.register))
        app.add("POST", "/api/catalog/resource", guard(self._catalog.resource))
        app.add("POST", "/api/catalog/list", guard(self._catalog.list))
        app.add("GET", "/api/credentials/", guard(self._credentials.get))
        app.add("GET", "/api/internal/ingress", guard(self._listeners.names, programs_only=True))
        app.add("GET", "/api/internal/ingress/", guard(self._listeners.show, programs_only=True))
        app.add("POST", "/api/execute", guard(self._execute.execute))
        app.add("POST", "/api/execute/batch", guard(self._execute.execute_batch))
        app.add("GET", "/api/executions/", guard(self._execute.show))
        app.add("POST", "/api/taken", guard(self._offsets.take))
        app.add("GET", "/api/taken", guard(self._offsets.show))
        app.add("GET", "/api/pools/", guard(self._pools.show))
        app.add("POST", "/api/subscriptions", guard(self._subscriptions.register))
        app.add("POST", "/api/subscriptions/register", guard(self._subscriptions.register))
        app.add("GET", "/api/subscriptions", guard(self._subscriptions.list))
        app.add("GET", "/api/subscriptions/", guard(self._subscriptions.show))
        app.add("POST", "/api/subscriptions/{}/", guard(self._subscriptions.act))
        app.add("POST", "/api/events", guard(self._subscriptions.post_events))
