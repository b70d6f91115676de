"""The catalog: every version of every document, as plain functions on a transaction.

A path is a qualified name: a document of a tenant is stored under the tenant and its `metadata.path`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.documents.document import Document, to_json
from tape.errors import InvalidDocument, Problem, ResourceNotFound
from tape.model.tenant_names import display, is_visible, range_of
from tape.store import Reader, Transaction

_COLUMNS = "catalog_id, path, version, kind, content, labels_json, ts_ms"


class Resource(msgspec.Struct, frozen=True):
    """One version of a document."""

    catalog_id: int
    path: str
    version: int
    kind: str
    content: str
    labels_json: str
    ts_ms: int

    @property
    def labels(self) -> Any:
        """`metadata.labels` of the document."""
        return msgspec.json.decode(self.labels_json)


def register(tx: Transaction, document: Document, *, path: str = "", if_changed: bool = False) -> Resource:
    """Keep a checked document as the next version of a path. With `if_changed`, the same text adds no version.

    A path keeps its kind for ever: what runs under a name does not turn into something that listens.
    """
    path = path or document.path
    before = fetch(tx, path)
    if before is not None and before.kind != document.kind:
        raise InvalidDocument(
            [
                Problem(
                    "kind",
                    document.line_of(("kind",)),
                    f"{document.path!r} is a {before.kind} in the catalog and stays one; use another path",
                    document.kind,
                )
            ]
        )
    if before is not None and if_changed and before.content == document.content:
        return before
    row = tx.one("SELECT COALESCE(MAX(catalog_id), 0) FROM tape_catalog")
    resource = Resource(
        catalog_id=(row[0] if row else 0) + 1,
        path=path,
        version=before.version + 1 if before else 1,
        kind=document.kind,
        content=document.content,
        labels_json=to_json(document.labels),
        ts_ms=now_ms(),
    )
    tx.execute("UPDATE tape_catalog SET is_latest = 0 WHERE path = ? AND is_latest = 1", path)
    tx.insert("tape_catalog", (*Resource.__struct_fields__, "is_latest"), [(*msgspec.structs.astuple(resource), 1)])
    return resource


def fetch(reader: Reader | Transaction, path: str, version: int | None = None) -> Resource | None:
    """A version of a path, the latest unless one is named; None if it is not there."""
    which = "ORDER BY version DESC LIMIT 1" if version is None else "AND version = ?"
    given = () if version is None else (version,)
    return _resource(reader.one(f"SELECT {_COLUMNS} FROM tape_catalog WHERE path = ? {which}", path, *given))


def fetch_id(reader: Reader | Transaction, catalog_id: int) -> Resource | None:
    """The document of a catalog id; None if it is not there."""
    return _resource(reader.one(f"SELECT {_COLUMNS} FROM tape_catalog WHERE catalog_id = ?", catalog_id))


def fetch_many(tx: Transaction, paths: Collection[str], ids: Collection[int]) -> dict[str | int, Resource]:
    """The latest documents of paths, and those of catalog ids, each by what it was asked for with."""
    found: dict[str | int, Resource] = {}
    if wanted := [path for path in paths if path]:
        condition, values = tx.is_any("path", wanted)
        rows = tx.query(f"SELECT {_COLUMNS} FROM tape_catalog WHERE is_latest = 1 AND {condition}", values)
        found |= {row[1]: Resource(*row) for row in rows}
    for catalog_id in ids:
        if catalog_id and (resource := fetch_id(tx, catalog_id)) is not None:
            found[catalog_id] = resource
    return found


def require(reader: Reader | Transaction, path: str, version: int | None = None) -> Resource:
    """A version of a path; ResourceNotFound if it is not there."""
    found = fetch(reader, path, version)
    if found is None:
        wanted = display(path) if version is None else f"{display(path)} version {version}"
        raise ResourceNotFound(f"Resource not found: {wanted}")
    return found


def require_id(reader: Reader | Transaction, catalog_id: int) -> Resource:
    """The document of a catalog id; ResourceNotFound if it does not exist for the caller."""
    found = fetch_id(reader, catalog_id)
    if found is None or not is_visible(found.path):
        raise ResourceNotFound(f"Resource not found: catalog_id {catalog_id}")
    return found


def list_latest(
    reader: Reader | Transaction, kind: str = "", after: str = "", limit: int = 1_000, *, prefix: str = ""
) -> list[Resource]:
    """The latest version of every path after one, in their order; of one kind, or of all; with a prefix, or all."""
    narrowed, given = (" AND kind = ?", [kind]) if kind else ("", [])
    if prefix:
        narrowed, given = f"{narrowed} AND path >= ? AND path < ?", [*given, *range_of(prefix)]
    rows = reader.query(
        f"SELECT {_COLUMNS} FROM tape_catalog WHERE is_latest = 1 AND path > ?{narrowed} ORDER BY path LIMIT ?",
        after,
        *given,
        limit,
    )
    return [Resource(*row) for row in rows]


def versions(reader: Reader | Transaction, path: str) -> list[Resource]:
    """Every version of a path, the newest first."""
    rows = reader.query(f"SELECT {_COLUMNS} FROM tape_catalog WHERE path = ? ORDER BY version DESC", path)
    return [Resource(*row) for row in rows]


def _resource(row: Any) -> Resource | None:
    return None if row is None else Resource(*row)
