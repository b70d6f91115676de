"""A web page of another origin cannot use the server through a visitor's browser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import call

FORM_TYPES = ["text/plain", "text/plain; charset=utf-8", "multipart/form-data; boundary=x"]
FORM_TYPES += ["application/x-www-form-urlencoded", "TEXT/PLAIN", ""]
EVENT = b'{"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created"}'
EVIL = "https://evil.example"


@pytest.fixture
async def server(sqlite_url: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url, cors_origins="https://console.example")) as server:
        yield server


@pytest.mark.parametrize("media", FORM_TYPES)
@pytest.mark.parametrize("path", ["/api/catalog/register", "/api/execute", "/api/subscriptions/a/pause", "/v1/events"])
async def test_a_type_that_a_form_can_send_is_answered_with_415(server: Server, path: str, media: str) -> None:
    answer = await call(server.http_address, "POST", path, EVENT, **({"content_type": media} if media else {}))
    assert answer.status == 415
    assert "form" in str(answer.json())
    assert (await server.journal.head()).global_seq == 0


async def test_other_types_are_accepted(server: Server) -> None:
    address = server.http_address
    assert (await call(address, "POST", "/v1/events", EVENT, content_type="application/cloudevents+json")).status == 200
    assert (await call(address, "POST", "/api/catalog/list", {})).status == 200
    assert (await call(address, "POST", "/api/subscriptions/missing/pause")).status not in (403, 415)  # no body


async def test_a_binary_cloudevent_may_have_text_as_its_data(server: Server) -> None:
    attributes = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/shop", "ce_type": "order.noted"}
    answer = await call(server.http_address, "POST", "/v1/events", b"a note", content_type="text/plain", **attributes)
    assert (answer.status, answer.json()) == (200, {"global_seqs": [1]})


@pytest.mark.parametrize("path", ["/v1/events/list", "/v1/events/aggregate", "/v1/control/runtime.info"])
async def test_reads_by_post_take_any_type(server: Server, path: str) -> None:
    body = b'{"window": 3600000000000, "bucket": 900000000000}' if path.endswith("aggregate") else b"{}"
    for media in ("application/x-www-form-urlencoded", "text/plain"):
        assert (await call(server.http_address, "POST", path, body, content_type=media)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"origin": EVIL, "sec_fetch_site": "cross-site"},
        {"origin": EVIL, "sec_fetch_site": "same-site"},
    ],
    ids=str,
)
async def test_a_request_of_a_foreign_page_is_answered_with_403(server: Server, headers: dict[str, str]) -> None:
    for method, path in (
        ("GET", "/v1/events"),
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("POST", "/v1/events/list"),
        ("POST", "/v1/events"),
        ("POST", "/api/catalog/list"),
        ("GET", "/api/subscriptions"),
    ):
        body = EVENT if method == "POST" else b""
        answer = await call(
            server.http_address, method, path, body, content_type="application/cloudevents+json", **headers
        )
        assert (path, answer.status) == (path, 403)
        assert "access-control-allow-origin" not in answer.headers
    assert (await server.journal.head()).global_seq == 0


async def test_own_pages_allowed_pages_and_programs_are_answered(server: Server) -> None:
    address = server.http_address
    for headers in (
        {},
        {"origin": f"http://{address}"},
        {"origin": f"http://{address}", "sec_fetch_site": "same-origin"},
        {"origin": "https://console.example", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "none"},
        {"host": "localhost", "origin": "http://localhost"},
        {"host": "localhost:443", "origin": "https://localhost"},
        {"host": "localhost", "origin": "https://public.example", "sec_fetch_site": "same-origin"},
    ):
        answer = await call(address, "POST", "/v1/events/list", {}, **headers)
        assert (headers, answer.status) == (headers, 200)


async def test_deliveries_are_exempt(server: Server) -> None:
    answer = await call(
        server.http_address, "POST", "/ingress/missing", b"a=b", content_type=FORM_TYPES[3], origin=EVIL
    )
    assert answer.status == 404  # there is no such listener


async def test_a_refusal_is_counted_by_route_and_status(server: Server) -> None:
    await call(server.http_address, "POST", "/api/execute", b"{}", content_type="text/plain", origin=EVIL)
    await call(server.http_address, "POST", "/api/execute", b"{}", content_type="text/plain")
    metrics = (await call(server.http_address, "GET", "/metrics")).body.decode()
    for status in (403, 415):
        assert f'tape_http_requests_total{{route="/api/execute",status="{status}"}} 1.0' in metrics
