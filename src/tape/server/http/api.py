"""The routes below `/api`, all behind one guard."""

from __future__ import annotations

from tape.documents.document import Check
from tape.engine.security.wallet import Wallet
from tape.journal.journal import Journal
from tape.playbooks.document import read_playbook
from tape.server.http.catalog import CatalogDoor
from tape.server.http.credentials import CredentialDoor
from tape.server.http.execute import ExecuteDoor
from tape.server.http.internal import Internal
from tape.server.http.listeners import ListenerDoor
from tape.server.http.offsets import TakingDoor
from tape.server.http.pools import PoolDoor
from tape.server.http.router import App
from tape.server.http.subscriptions import SubscriptionsDoor
from tape.subscriptions.document.validator import read_subscription
from tape.subscriptions.ingress.listeners import ListenerSource

# The kinds of documents, and what checks each.
KINDS: dict[str, Check] = {"playbook": read_playbook, "subscription": read_subscription}


class Api:
    """What stands behind the routes below `/api`."""

    def __init__(self, journal: Journal, internal: Internal, wallet: Wallet, listeners: ListenerSource) -> None:
        self._internal = internal
        self._catalog = CatalogDoor(journal.database, KINDS)
        self._execute = ExecuteDoor(journal)
        self._credentials = CredentialDoor(wallet, internal)
        self._listeners = ListenerDoor(listeners, wallet)
        self._pools = PoolDoor(journal.database)
        self._subscriptions = SubscriptionsDoor(journal)
        self._taking = TakingDoor(journal)

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
        app.add("POST", "/api/taken", guard(self._taking.take))
        app.add("GET", "/api/taken", guard(self._taking.show))
        app.add("GET", "/api/pools/", guard(self._pools.show))
        app.add("POST", "/api/subscriptions", guard(self._subscriptions.register))
        app.add("POST", "/api/subscriptions/register", guard(self._subscriptions.register))
        app.add("GET", "/api/subscriptions", guard(self._subscriptions.list))
        app.add("GET", "/api/subscriptions/", guard(self._subscriptions.show))
        app.add("POST", "/api/subscriptions/{}/", guard(self._subscriptions.act))
        app.add("POST", "/api/events", guard(self._subscriptions.post_events))
