"""`/api/catalog/…`: register, read and list documents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.documents.document import Check, checked_document
from tape.engine import catalog
from tape.engine.catalog import Resource
from tape.errors import InvalidInput
from tape.model.tenant_names import display, qualify, visible_prefix
from tape.server.http.internal import answer, read_request
from tape.server.http.request_bodies import to_time
from tape.store import Database

LATEST = "latest"
MAX_VERSION = (1 << 31) - 1


class RegisterDocumentRequest(msgspec.Struct):
    """A document, plain or base64. `resource_type` is used only if the document has no kind."""

    content: str
    resource_type: str = "Playbook"
    if_changed: bool = False


class ReadDocumentRequest(msgspec.Struct):
    """A path and a version: a number, or `latest`."""

    path: str
    version: str | int = LATEST


class ListDocumentsRequest(msgspec.Struct):
    """A kind, or all; a page starts after a path."""

    resource_type: str = ""
    after: str = ""
    limit: int = 1_000


class CatalogRoutes:
    """Routes of the catalog; `kinds` has the validator of every kind of document."""

    def __init__(self, database: Database, kinds: Mapping[str, Check]) -> None:
        self._database = database
        self._kinds = kinds

    async def register(self, request: Request) -> Response:
        """Validate a document and store it as the next version of its path."""
        wanted = await read_request(request, RegisterDocumentRequest)
        document = await asyncio.to_thread(checked_document, wanted.content, self._kinds, wanted.resource_type)
        resource = await self._database.write(
            lambda tx: catalog.register(tx, document, path=qualify(document.path), if_changed=wanted.if_changed),
            len(document.content) + 256,
        )
        path = display(resource.path)
        return answer(
            {
                "status": "success",
                "message": f"Resource '{path}' version '{resource.version}' registered.",
                "path": path,
                "version": resource.version,
                "catalog_id": str(resource.catalog_id),
                "kind": resource.kind,
            }
        )

    async def resource(self, request: Request) -> Response:
        """A document with its content."""
        wanted = await read_request(request, ReadDocumentRequest)
        version = _version(wanted.version)
        found = await self._database.read(lambda reader: catalog.require(reader, qualify(wanted.path), version))
        return answer({**_summary(found), "content": found.content})

    async def list(self, request: Request) -> Response:
        """The latest version of every path, without contents."""
        wanted = await read_request(request, ListDocumentsRequest)
        limit = min(max(wanted.limit, 1), 1_000)
        kind = wanted.resource_type.lower()
        found = await self._database.read(
            lambda reader: catalog.list_latest(reader, kind, qualify(wanted.after), limit, prefix=visible_prefix())
        )
        return answer({"entries": [_summary(resource) for resource in found]})


def _summary(resource: Resource) -> dict[str, Any]:
    return {
        "path": display(resource.path),
        "version": resource.version,
        "catalog_id": str(resource.catalog_id),
        "kind": resource.kind,
        "labels": resource.labels,
        "created_at": to_time(resource.ts_ms * 1_000_000),
    }


def _version(given: str | int) -> int | None:
    if given == LATEST:
        return None
    text = str(given)
    if len(text) <= len(str(MAX_VERSION)) and text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_VERSION:
        return int(text)
    raise InvalidInput(f"version {text[:40]!r} must be a whole number of at least 1, or 'latest'.")
