"""The catalog in the store: versions, the latest one, listings."""

from __future__ import annotations

import pytest

from tape.documents.document import Document
from tape.engine import catalog
from tape.engine.catalog import Resource
from tape.errors import InvalidDocument, ResourceNotFound
from tape.store import Database


def playbook(path: str, note: str = "") -> Document:
    return Document(f"kind: Playbook\nmetadata: {{path: {path}, labels: {{note: '{note}'}}}}\n")


async def register(database: Database, document: Document, *, if_changed: bool = False) -> Resource:
    return await database.write(lambda tx: catalog.register(tx, document, if_changed=if_changed))


async def test_every_registration_is_a_version_and_the_latest_counts(database: Database) -> None:
    first = await register(database, playbook("a/one", "x"))
    second = await register(database, playbook("a/one", "x"))
    other = await register(database, playbook("a/two"))
    assert [(each.version, each.path) for each in (first, second, other)] == [(1, "a/one"), (2, "a/one"), (1, "a/two")]
    assert len({first.catalog_id, second.catalog_id, other.catalog_id}) == 3
    assert await database.read(lambda reader: catalog.fetch(reader, "a/one")) == second
    assert await database.read(lambda reader: catalog.fetch(reader, "a/one", 1)) == first
    assert await database.read(lambda reader: catalog.fetch_id(reader, other.catalog_id)) == other
    assert await database.read(lambda reader: catalog.versions(reader, "a/one")) == [second, first]
    assert first.labels == {"note": "x"}


async def test_an_unchanged_document_need_not_be_a_new_version(database: Database) -> None:
    first = await register(database, playbook("a/one"), if_changed=True)
    assert await register(database, playbook("a/one"), if_changed=True) == first
    assert (await register(database, playbook("a/one", "new"), if_changed=True)).version == 2


async def test_listings_have_the_latest_of_each_path_in_order_page_by_page(database: Database) -> None:
    for path in ("b", "a", "c", "a"):
        await register(database, playbook(path))
    await register(database, Document("kind: Subscription\nmetadata: {path: aa}"))

    async def listed(kind: str = "", after: str = "", limit: int = 10) -> list[tuple[str, int]]:
        found = await database.read(lambda reader: catalog.list_latest(reader, kind, after, limit))
        return [(each.path, each.version) for each in found]

    assert await listed() == [("a", 2), ("aa", 1), ("b", 1), ("c", 1)]
    assert await listed("playbook") == [("a", 2), ("b", 1), ("c", 1)]
    assert await listed("playbook", limit=2) == [("a", 2), ("b", 1)]
    assert await listed("playbook", after="b") == [("c", 1)]


async def test_a_path_keeps_its_kind(database: Database) -> None:
    await register(database, playbook("a/one"))
    with pytest.raises(InvalidDocument, match=r"kind: 'subscription' 'a/one' is a playbook in the catalog"):
        await register(database, Document("kind: Subscription\nmetadata: {path: a/one}"))


async def test_what_is_not_there_is_named(database: Database) -> None:
    assert await database.read(lambda reader: catalog.fetch(reader, "nowhere")) is None
    with pytest.raises(ResourceNotFound, match="nowhere version 3"):
        await database.read(lambda reader: catalog.require(reader, "nowhere", 3))
