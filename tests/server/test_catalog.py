"""`/api/catalog/…` over HTTP, and who may call what stands below `/api`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tape.engine.security.tokens import jwks_path, load_key
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import Answer, call

GOOD = """\
kind: Playbook
metadata: {path: domain/ingest_order, labels: {team: orders}}
inputs: {order_id: string}
workflow:
  - step: greet
    tool: {kind: value, value: "order {{ order_id }}"}
"""


async def post(server: Server, path: str, body: Any, **headers: str) -> Answer:
    return await call(server.http_address, "POST", path, body, **headers)


async def test_documents_are_registered_and_read_back(server: Server) -> None:
    first = await post(server, "/api/catalog/register", {"content": GOOD})
    assert (first.status, first.json()) == (
        200,
        {
            "status": "success",
            "message": "Resource 'domain/ingest_order' version '1' registered.",
            "path": "domain/ingest_order",
            "version": 1,
            "catalog_id": "1",
            "kind": "playbook",
        },
    )
    packed = base64.b64encode(GOOD.encode()).decode()
    again = await post(server, "/api/catalog/register", {"content": packed, "resource_type": "Playbook"})
    assert again.json()["version"] == 2
    for version, expected in (("latest", 2), ("1", 1), (2, 2)):
        found = await post(server, "/api/catalog/resource", {"path": "domain/ingest_order", "version": version})
        assert (found.status, found.json()["version"], found.json()["content"]) == (200, expected, GOOD)
    assert found.json()["labels"] == {"team": "orders"}
    listed = await post(server, "/api/catalog/list", {"resource_type": "playbook"})
    assert [(each["path"], each["version"]) for each in listed.json()["entries"]] == [("domain/ingest_order", 2)]


async def test_every_problem_of_a_document_is_in_one_answer(server: Server) -> None:
    bad = GOOD.replace("string", "strnig").replace("kind: value", "kind: valeu").replace("workflow", "workflows")
    refused = await post(server, "/api/catalog/register", {"content": bad})
    answer = refused.json()
    assert (refused.status, answer["status"], answer["code"]) == (422, 422, "TAPE-2100")
    assert [(each["path"], each["line"], each["value"]) for each in answer["problems"]] == [
        ("workflow", 1, None),
        ("inputs.order_id", 3, "strnig"),
        ("workflows", 4, None),
    ]
    assert "did you mean 'string'?" in answer["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("register", b"{", 400, "the request is not JSON"),
        ("register", b'{"resource_type": 7}', 422, "the request cannot be decoded"),
        ("register", {"content": "kind: Nonsense\nmetadata: {path: x}"}, 422, "kind: 'Nonsense' must be one of"),
        ("register", {"content": "kind: [x"}, 422, "line 1"),
        ("resource", {"path": "nowhere"}, 404, "Resource not found: nowhere"),
        ("resource", {"path": "nowhere", "version": "newest"}, 422, "version 'newest' must be a whole number"),
        ("resource", b"[" * 3_000_000, 413, "more than 2097152 bytes"),
    ],
)
async def test_invalid_input_is_named(server: Server, path: str, body: Any, status: int, reason: str) -> None:
    refused = await post(server, f"/api/catalog/{path}", body, content_type="application/json")
    assert (refused.status, refused.json()["status"]) == (status, status)
    assert reason in refused.json()["error"]


async def test_an_internal_token_or_an_admin_opens_the_routes_below_api(tmp_path: Path) -> None:
    key, _ = load_key(tmp_path / "key")

    def token(*scopes: str) -> str:
        return key.mint(tenant="t", user="u", session="s", scopes=list(scopes), lifetime_s=60)

    store = f"sqlite:{tmp_path / 'tape.db'}"
    async with Server(settings_for(store, internal_token="hush", auth_jwks=str(jwks_path(tmp_path / "key")))) as server:

        async def status(*shown: str) -> int:
            headers = {"authorization": f"Bearer {shown[0]}"} if shown else {}
            return (await post(server, "/api/catalog/list", {}, **headers)).status

        assert [await status("hush"), await status(token("admin"))] == [200, 200]
        assert [await status(), await status("wrong"), await status(token())] == [401, 401, 403]
    async with Server(settings_for(store, internal_token="hush")) as server:
        assert [await status("hush"), await status("wrong"), await status()] == [200, 403, 403]
    async with Server(settings_for(store)) as server:
        assert await status() == 200


def test_the_internal_token_is_not_shown_with_the_settings() -> None:
    assert "hush" not in repr(settings_for("memory", internal_token="hush"))
