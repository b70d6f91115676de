"""`GET /v1/artifacts/{id}`: a large field, for callers that may read its entry."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tape.engine.security.artifacts import Artifacts
from tape.engine.security.audit import Audit
from tape.server.http.access import HttpAccess, require_widening


class ArtifactRoutes:
    """The route of artifacts."""

    def __init__(self, artifacts: Artifacts, access: HttpAccess, audit: Audit) -> None:
        self._artifacts = artifacts
        self._access = access
        self._audit = audit

    async def get(self, request: Request) -> Response:
        """The content. `?tenant=`, `?user=` and `?session=` name another session, which needs a scope."""
        caller = await self._access.caller_of(request)
        names = ("tenant", "user", "session")
        tenant, user, session = (
            request.query_params.get(name, own) for name, own in zip(names, caller.triple, strict=True)
        )
        identity = (tenant, user, session)
        if identity != caller.triple:
            require_widening(caller, "another session's artifacts require a verified `admin` or `console:fleet` scope")
            await self._audit.admin_scope_used(caller, "artifacts.get")
        artifact = await self._artifacts.get(identity, request.path_params["name"])
        headers = {"Cache-Control": "private, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(artifact.content, media_type=artifact.mime, headers=headers)
