"""The routes below `/api`, all behind one guard."""

from __future__ import annotations

from tape.playbooks.spec import read_playbook
from tape.security.wallet import Wallet
from tape.server.http.app import App
from tape.server.http.catalog import CatalogDoor, Check
from tape.server.http.credentials import CredentialDoor
from tape.server.http.internal import Internal
from tape.store import Database
from tape.subscriptions.validation import read_subscription

# The kinds of documents, and what checks each.
KINDS: dict[str, Check] = {"playbook": read_playbook, "subscription": read_subscription}


class Api:
    """What stands behind the routes below `/api`."""

    def __init__(self, database: Database, internal: Internal, wallet: Wallet) -> None:
        self._internal = internal
        self._catalog = CatalogDoor(database, KINDS)
        self._credentials = CredentialDoor(wallet, internal)

    def add_to(self, app: App) -> None:
        """Add the routes to the application."""
        guard = self._internal.guard
        app.add("POST", "/api/catalog/register", guard(self._catalog.register))
        app.add("POST", "/api/catalog/resource", guard(self._catalog.resource))
        app.add("POST", "/api/catalog/list", guard(self._catalog.list))
        app.add("GET", "/api/credentials/", guard(self._credentials.get))
