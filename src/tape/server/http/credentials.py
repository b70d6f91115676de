"""`GET /api/credentials/{alias}`: metadata of a secret, and with `include_data=true` the secret itself.

The secret is for programs that hold the internal token (remote runtimes), never for an admin's browser.
`host`, which may be repeated, names the hosts that the caller will send it to: a secret that is bound to other hosts is
refused. The journal records the access.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tape.engine.security.wallet import Wallet
from tape.model.tenant_names import qualify
from tape.server.http.internal import InternalAccess, answer
from tape.server.http.request_bodies import to_time


class CredentialRoutes:
    """The route of secrets."""

    def __init__(self, wallet: Wallet, internal: InternalAccess) -> None:
        self._wallet = wallet
        self._internal = internal

    async def get(self, request: Request) -> Response:
        """Alias, version and age of a secret; its data for a holder of the internal token."""
        name = request.path_params["name"]
        alias = qualify(name)
        wants_data = request.query_params.get("include_data", "").lower() == "true"
        if wants_data:
            await self._internal.admit(request, "GET /api/credentials/?include_data")
        held = await self._wallet.find(alias)
        shown = {"alias": name, "version": held.version, "set_at": to_time(held.set_at_ms * 1_000_000)}
        if wants_data:
            where = request.client.host if request.client else ""
            hosts = request.query_params.getlist("host")
            shown["data"] = await self._wallet.use(alias, hosts, to=f"/api/credentials from {where}")
        response = answer(shown)
        response.headers["cache-control"] = "no-store"
        return response
