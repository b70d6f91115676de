"""Service keys: who may make them, what they open, and how they end, on both protocols and on every server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tape.base.clock import now_ms
from tape.client import AsyncTapeClient
from tape.engine.security import key_ring, service_keys
from tape.engine.security.key_ring import KeyRing
from tape.engine.security.service_keys import IssuedKey, KeyRequest
from tape.errors import (
    IdentityRequired,
    InvalidConfig,
    InvalidInput,
    KeyExists,
    NotFound,
    ScopeRequired,
    TokenRejected,
    TooManyKeys,
)
from tape.journal.reader import EVERYTHING
from tape.model.principal import ADMIN, ALL_TENANTS, Principal, acting_as
from tape.model.service_key import PREFIX, digest_of, has_key_prefix, key_id_of, make_key
from tape.server.server import Server
from tape.store import Database
from tests.conftest import settings_for
from tests.services import ServerProcess
from tests.web import Answer, Stream, call

HOUR_MS = 3_600_000
ADMIN_OF_A = Principal(tenant="a", user="ann", session="s", scopes=frozenset({ADMIN}), key_id="jwt:k")


async def issue(database: Database, name: str = "svc", tenant: str = "a", *scopes: str, **more: Any) -> IssuedKey:
    request = KeyRequest(name, tenant, scopes, **more)
    return await database.write(lambda tx: service_keys.create(tx, request, by="operator"))


async def rotate(database: Database, name: str, overlap_ms: int, **more: Any) -> IssuedKey:
    return await database.write(lambda tx: service_keys.rotate(tx, name, overlap_ms=overlap_ms, **more))


async def revoke(database: Database, name: str, tenant: str | None = None) -> None:
    await database.write(lambda tx: service_keys.revoke(tx, name, tenant))


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def post(server: Server, path: str, body: Any, text: str = "") -> Answer:
    return await call(server.http_address, "POST", path, body, **(bearer(text) if text else {}))


async def status(server: Server, text: str) -> int:
    return (await post(server, "/v1/events/list", {}, text)).status


def client_of(server: Server, text: str) -> AsyncTapeClient:
    return AsyncTapeClient(f"tape://{server.grpc_address}", id_token=text)


async def audit_entries(server: Server, *types: str) -> list[Any]:
    subscription = await server.hub.subscribe(EVERYTHING, 0)
    head, found, seen = (await server.journal.head()).global_seq, [], 0
    while seen < head:
        for entry in (await subscription.next()).entries:
            seen = entry.global_seq
            found += [entry] if entry.type in types else []
    subscription.close()
    return found


@pytest.fixture
async def guarded(store_url: str) -> AsyncIterator[Server]:
    """A server that demands keys, on each kind of database."""
    async with Server(settings_for(store_url, require_keys=True)) as server:
        yield server


# ── the text of a key ────────────────────────────────────────────────────────────────────────────


def test_a_key_names_its_id_and_has_a_checksum() -> None:
    made = make_key()
    assert has_key_prefix(made.text)
    assert made.text.startswith(f"{PREFIX}{made.key_id}_")
    assert key_id_of(made.text) == made.key_id
    assert made.digest == digest_of(made.text)
    assert make_key().text != made.text


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: text + "a",
        lambda text: text.replace("_", "-"),
        lambda text: text[:30] + ("a" if text[30] != "a" else "b") + text[31:],
        lambda text: PREFIX,
        lambda text: text[:-1] + "é",
        lambda text: text + "\n",
        lambda text: PREFIX + "x" * 100_000,
    ],
)
def test_a_damaged_key_is_recognized_without_the_database(damage: Callable[[str], str]) -> None:
    assert key_id_of(damage(make_key().text)) == ""


# ── who may make which key ───────────────────────────────────────────────────────────────────────


async def test_a_name_is_unique_in_its_tenant_and_free_again_after_a_revoke(database: Database) -> None:
    first = await issue(database, "svc", "a", "agent")
    with pytest.raises(KeyExists, match="rotate"):
        await issue(database, "svc", "a", "agent")
    await issue(database, "svc", "b", "agent")
    await revoke(database, "svc", "a")
    assert (await issue(database, "svc", "a", "agent")).key.key_id != first.key.key_id


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (KeyRequest("svc", "b", ["agent"]), "tenant 'b' is not the caller's"),
        (KeyRequest("svc", "a", ["system"]), "`system`"),
        (KeyRequest("svc", "a", ["agent", "tenant:*"]), "`tenant:\\*`"),
        (KeyRequest("svc", "a", ["console:fleet"]), "`console:fleet`"),
        (KeyRequest("svc", "a", ["runtime"]), "`runtime`"),
        (KeyRequest("svc", "a", ["gateway"]), "`gateway`"),
    ],
)
async def test_no_key_gets_more_than_its_creator_has(database: Database, request_: KeyRequest, named: str) -> None:
    with acting_as(ADMIN_OF_A), pytest.raises(ScopeRequired, match=named):
        await database.write(lambda tx: service_keys.create(tx, request_))
    assert await database.read(service_keys.list_keys) == []


async def test_an_admin_makes_keys_for_what_it_may_do_itself(database: Database) -> None:
    with acting_as(ADMIN_OF_A):
        made = await issue(database, "svc", "", "agent", "worker", "approver", "operator", "admin")
    assert made.key.tenant == "a"
    assert made.key.created_by == "ann"


async def test_a_rotation_does_not_give_its_caller_a_secret_with_more_scopes(database: Database) -> None:
    await issue(database, "svc", "a", "runtime", "tenant:*")
    with acting_as(ADMIN_OF_A):
        with pytest.raises(ScopeRequired, match="`runtime`, `tenant:\\*`"):
            await rotate(database, "svc", HOUR_MS)
        await revoke(database, "svc")  # ending it is the tenant's right


async def test_patterns_of_a_key_lie_within_those_of_its_creator(database: Database) -> None:
    limited = Principal(
        tenant="a", scopes=frozenset({ADMIN}), read=("/tape/order/**", "/tape/*/paid"), write=("/tape/order/**",)
    )
    with acting_as(limited):
        await issue(database, "none", "a", read=[], write=[])
        inherited = await issue(database, "inherited", "a", "agent")
        assert inherited.key.principal().read == limited.read
        await issue(database, "narrower", "a", read=["/tape/order/paid/*", "/tape/x/paid"], write=["/tape/order/*"])
        for read in (["/tape/**"], ["/tape/*/*"]):
            with pytest.raises(ScopeRequired, match="reaches beyond"):
                await issue(database, "wider", "a", read=read)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "a/b"}, "name 'a/b'"),
        ({"name": ""}, "name ''"),
        ({"name": "x" * 129}, "at most 128"),
        ({"scopes": ["sudo"]}, "scope 'sudo' is not known"),
        ({"tenant": ""}, "tenant is empty"),
        ({"tenant": "a\0b"}, "NUL"),
        ({"user": "u" * 5000}, "more than"),
        ({"lifetime_ms": 0}, "expires must be after now"),
        ({"lifetime_ms": 1 << 62}, "10 years"),
        ({"read": ["/tape/**/x"]}, "may only stand at the end"),
        ({"write": [f"/{number}" for number in range(65)]}, "64 is the limit"),
        ({"write": ["/" + "x" * 2000]}, "1 to 1024"),
    ],
)
async def test_a_bad_field_is_named(database: Database, fields: dict[str, Any], named: str) -> None:
    request = KeyRequest(**({"name": "svc", "tenant": "a"} | fields))
    with pytest.raises(InvalidInput, match=named):
        await database.write(lambda tx: service_keys.create(tx, request))


async def test_the_number_of_keys_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_keys, "MAX_KEYS_OF_TENANT", 2)
    await issue(database, "one")
    await rotate(database, "one", HOUR_MS)
    with pytest.raises(TooManyKeys, match="tenant 'a' has 2 service keys"):
        await issue(database, "two")
    with pytest.raises(TooManyKeys):
        await rotate(database, "one", HOUR_MS)
    await issue(database, "one", "b")
    monkeypatch.setattr(service_keys, "MAX_KEYS", 3)
    with pytest.raises(TooManyKeys, match="database has 3"):
        await issue(database, "two", "c")


async def test_keys_are_listed_page_by_page_without_digests(database: Database) -> None:
    for tenant in ("b", "a"):
        for name in ("two", "one"):
            await issue(database, name, tenant, "agent")
    first = await database.read(lambda reader: service_keys.list_keys(reader, limit=3))
    after = service_keys.page_key(first[-1])
    rest = await database.read(lambda reader: service_keys.list_keys(reader, after=after, limit=3))
    assert [(key.tenant, key.name) for key in first + rest] == [("a", "one"), ("a", "two"), ("b", "one"), ("b", "two")]
    assert first[0].digest not in str(first[0].describe(now_ms()))
    with acting_as(ADMIN_OF_A):
        assert {key.tenant for key in await database.read(service_keys.list_keys)} == {"a"}
        with pytest.raises(ScopeRequired):
            await database.read(lambda reader: service_keys.list_keys(reader, "b"))
    with pytest.raises(InvalidInput, match="is not a cursor"):
        await database.read(lambda reader: service_keys.list_keys(reader, after="x"))


async def test_ended_keys_are_listed_on_request_and_deleted_after_30_days(database: Database) -> None:
    await issue(database, "gone")
    await issue(database, "kept")
    await revoke(database, "gone")
    assert [key.name for key in await database.read(service_keys.list_keys)] == ["kept"]
    every = await database.read(lambda reader: service_keys.list_keys(reader, with_ended=True))
    assert {key.name: key.state_at(now_ms()) for key in every} == {"gone": "revoked", "kept": "valid"}
    assert await database.write(lambda tx: service_keys.delete_ended(tx, now_ms() + 29 * 24 * HOUR_MS)) == 0
    assert await database.write(lambda tx: service_keys.delete_ended(tx, now_ms() + 31 * 24 * HOUR_MS)) == 1


# ── what a key opens ─────────────────────────────────────────────────────────────────────────────


async def test_a_key_gives_its_principal_on_both_protocols(guarded: Server) -> None:
    text = (await issue(guarded.database, "svc", "a", "agent", user="ada")).text
    assert await status(guarded, text) == 200
    async with client_of(guarded, text) as client:
        await client.append("/tape/order/paid/1", {"n": 1}, user="ada", session="svc")
        entry = await anext(client.follow("/tape/order/**"))
        assert (entry.tenant, entry.user) == ("a", "ada")
        with pytest.raises(ScopeRequired):
            await client.claim_tasks(reaction_id="r", owner="me")
    page = (await post(guarded, "/v1/events/list", {}, text)).json()
    assert [event["session"] for event in page["events"] if event["type"] == "order.paid"] == ["svc"]


async def test_a_call_without_a_key_is_refused_where_keys_are_required(guarded: Server) -> None:
    assert (await post(guarded, "/v1/events/list", {})).status == 401
    assert await status(guarded, "eyJhbGciOiJFUzI1NiJ9.e30.AA") == 401
    assert (await call(guarded.http_address, "GET", "/v1/events")).status == 401
    async with AsyncTapeClient(f"tape://{guarded.grpc_address}") as client:
        with pytest.raises(IdentityRequired):
            await client.head()


@pytest.mark.parametrize("wrong", ["unknown", "damaged", "other_secret", "prefix_only"])
async def test_a_wrong_key_is_refused_on_an_open_server_too(server: Server, wrong: str) -> None:
    good = (await issue(server.database)).text
    text = {
        "unknown": make_key().text,
        "damaged": good[:-1],
        "other_secret": f"{good[:18]}{make_key().text[18:]}",
        "prefix_only": PREFIX,
    }[wrong]
    answer = await post(server, "/v1/events/list", {}, text)
    assert (answer.status, answer.json()["code"]) == (401, "auth_rejected")
    assert text not in answer.body.decode() or wrong == "prefix_only"
    assert (await call(server.http_address, "GET", f"/v1/events?access_token={text}")).status == 401
    async with client_of(server, text) as client:
        with pytest.raises(TokenRejected) as caught:
            await client.head()
    assert str(caught.value).startswith("key rejected: ")
    assert server.metrics.registry.get_sample_value("tape_auth_rejected_total", {"reason": caught.value.args[0][14:]})


async def test_an_open_server_stays_open_and_gives_a_key_its_own_tenant(server: Server) -> None:
    text = (await issue(server.database, "svc", "a", "agent")).text
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as owner, client_of(server, text) as bound:
        await owner.append("/tape/order/paid/1", {"n": 1})
        await bound.append("/tape/order/paid/2", {"n": 2})
        assert [(await anext(feed)).payload for feed in (bound.follow("/tape/order/**"),)] == [{"n": 2}]
        assert (await anext(owner.follow("/tape/order/**"))).payload == {"n": 1}
    assert (await post(server, "/v1/events/list", {})).status == 200


async def test_a_key_of_a_runtime_fetches_what_anonymous_callers_of_an_open_server_cannot(server: Server) -> None:
    text = (await issue(server.database, "gw", "", "gateway", "tenant:*")).text
    assert (await call(server.http_address, "GET", "/api/internal/ingress")).status == 503
    assert (await call(server.http_address, "GET", "/api/internal/ingress", **bearer(text))).status == 200
    assert (await call(server.http_address, "GET", "/api/internal/ingress", **bearer(make_key().text))).status == 401


async def test_a_public_address_is_allowed_where_keys_are_required() -> None:
    with pytest.raises(InvalidConfig, match="require_keys"):
        settings_for("memory", listen="0.0.0.0:0", insecure=True)
    settings_for("memory", listen="0.0.0.0:0", insecure=True, require_keys=True)


# ── how a key ends ───────────────────────────────────────────────────────────────────────────────


async def test_an_expired_key_is_refused_and_its_streams_end(guarded: Server) -> None:
    text = (await issue(guarded.database, "svc", "a", "agent", lifetime_ms=1_500)).text
    async with client_of(guarded, text) as client:
        feed = client.follow("/tape/order/**")
        async with asyncio.timeout(20):
            with pytest.raises(TokenRejected):
                await anext(feed)
        with pytest.raises(TokenRejected, match="key_expired"):
            await client.head()
    assert await status(guarded, text) == 401


async def test_both_secrets_are_valid_during_the_overlap(guarded: Server) -> None:
    old = (await issue(guarded.database, "svc", "a", lifetime_ms=10 * HOUR_MS)).text
    issued = await rotate(guarded.database, "svc", HOUR_MS)
    assert issued.key.expires_at_ms == issued.key.created_at_ms + 10 * HOUR_MS
    assert [await status(guarded, text) for text in (old, issued.text)] == [200, 200]
    again = await rotate(guarded.database, "svc", HOUR_MS, lifetime_ms=HOUR_MS)
    assert again.key.expires_at_ms == again.key.created_at_ms + HOUR_MS


async def test_a_replaced_secret_ends_with_the_overlap_and_so_do_its_streams(guarded: Server) -> None:
    old = (await issue(guarded.database, "svc", "a", "agent")).text
    async with client_of(guarded, old) as client:
        feed = client.follow("/tape/order/**")
        await client.append("/tape/order/paid/1")
        await anext(feed)
        new = (await rotate(guarded.database, "svc", 500)).text
        async with asyncio.timeout(20):
            with pytest.raises(TokenRejected):
                await anext(feed)
        with pytest.raises(TokenRejected, match="key_replaced"):
            await client.head()
    assert await status(guarded, new) == 200


async def test_a_revoke_ends_the_secret_that_was_replaced_too(guarded: Server) -> None:
    old = (await issue(guarded.database, "svc", "a")).text
    new = (await rotate(guarded.database, "svc", HOUR_MS)).text
    assert [await status(guarded, text) for text in (old, new)] == [200, 200]
    await revoke(guarded.database, "svc")
    await guarded.keys.refresh()
    for text in (old, new):
        answer = await post(guarded, "/v1/events/list", {}, text)
        assert (answer.status, answer.json()["message"]) == (401, "key rejected: key_revoked")


async def test_an_ended_key_with_another_secret_is_just_unknown(guarded: Server) -> None:
    text = (await issue(guarded.database)).text
    await revoke(guarded.database, "svc")
    await guarded.keys.refresh()
    answer = await post(guarded, "/v1/events/list", {}, text[:-49] + make_key().text[-49:])
    assert answer.json()["message"] in ("key rejected: unknown_key", "key rejected: key_malformed")


def test_a_revoke_ends_streams_on_every_server_of_the_database(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ServerProcess(store_url, "--require-keys") as one,
        ServerProcess(store_url, "--require-keys") as two,
    ):
        asyncio.run(_revoke_across(store_url, one, two))


async def _revoke_across(store_url: str, one: ServerProcess, two: ServerProcess) -> None:
    from tape.store import open_database

    async with open_database(store_url) as database:
        root = (await issue(database, "root", "a", "admin")).text
        addresses = [each.http_url.removeprefix("http://") for each in (one, two)]
        created = await call(addresses[0], "POST", "/api/keys", {"name": "svc", "scopes": ["agent"]}, **bearer(root))
        text = created.json()["key"]
        async with (
            Stream(addresses[0], **bearer(text)) as first,
            Stream(addresses[1], **bearer(text)) as second,
            AsyncTapeClient(one.url, id_token=text) as here,
            AsyncTapeClient(two.url, id_token=text) as there,
        ):
            await here.append("/tape/order/paid/1", user="svc", session="svc")
            feeds = [here.follow("/tape/order/**"), there.follow("/tape/order/**")]
            for feed in feeds:
                await anext(feed)
            for stream in (first, second):
                await stream.frames(1)
            answer = await call(addresses[0], "POST", "/api/keys/svc/revoke", {}, **bearer(root))
            assert (answer.status, answer.json()["state"]) == (200, "revoked")
            async with asyncio.timeout(15):
                for feed in feeds:
                    with pytest.raises(TokenRejected):
                        await anext(feed)
                for stream in (first, second):
                    while await stream.frame() is not None:
                        pass
            for client in (here, there):
                with pytest.raises(TokenRejected, match="key_revoked"):
                    await client.head()


async def test_revocations_arrive_after_an_unexpected_error_too(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (await issue(guarded.database)).text
    assert await status(guarded, text) == 200
    original, failed = guarded.keys.refresh, asyncio.Event()

    async def fail_once() -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        await original()

    monkeypatch.setattr(guarded.keys, "refresh", fail_once)
    async with asyncio.timeout(30):
        await failed.wait()
        await revoke(guarded.database, "svc")
        while await status(guarded, text) == 200:
            await asyncio.sleep(0.01)


# ── the routes ───────────────────────────────────────────────────────────────────────────────────


async def test_keys_are_managed_through_the_server_and_every_change_is_an_audit_entry(guarded: Server) -> None:
    root = (await issue(guarded.database, "root", "a", "admin")).text
    created = await post(guarded, "/api/keys", {"name": "svc", "scopes": ["worker"], "expires_in_s": 60}, root)
    assert created.headers["cache-control"] == "no-store"
    shown = created.json()
    assert (shown["tenant"], shown["scopes"], shown["created_by"]) == ("a", ["worker"], "root")
    assert await status(guarded, shown["key"]) == 200
    rotated = (await post(guarded, "/api/keys/svc/rotate", {"overlap_s": 60}, root)).json()
    assert rotated["key"] != shown["key"]
    listed = (await call(guarded.http_address, "GET", "/api/keys", **bearer(root))).json()["keys"]
    states = sorted((key["name"], key["state"]) for key in listed)
    assert states == [("root", "valid"), ("svc", "replaced soon"), ("svc", "valid")]
    assert (await post(guarded, "/api/keys/svc/revoke", {}, root)).status == 200
    assert [await status(guarded, each["key"]) for each in (shown, rotated)] == [401, 401]
    types = ("audit.key_created", "audit.key_rotated", "audit.key_revoked")
    entries = await audit_entries(guarded, *types)
    assert [entry.type for entry in entries] == [types[0], *types]
    assert {entry.tenant for entry in entries} == {"a"}
    assert entries[1].payload["By"] == "root"
    for text in (shown["key"], rotated["key"], root):
        secret = text.rpartition("_")[2]
        assert not any(secret in str(entry.payload) for entry in entries)
        assert secret not in str(listed)


async def test_the_keys_of_another_tenant_do_not_exist(guarded: Server) -> None:
    mine = (await issue(guarded.database, "root", "a", "admin")).text
    theirs = (await issue(guarded.database, "svc", "b", "agent")).text
    for action in ("rotate", "revoke"):
        for body in ({}, {"tenant": "b"}):
            foreign = await post(guarded, f"/api/keys/svc/{action}", body, mine)
            unknown = await post(guarded, f"/api/keys/nix/{action}", body, mine)
            assert foreign.status == unknown.status == 404
            assert foreign.body.replace(b"svc", b"nix") == unknown.body
    for tenant in ("b", "nowhere"):
        refused = await post(guarded, "/api/keys", {"name": "x", "tenant": tenant, "scopes": ["agent"]}, mine)
        listed = await call(guarded.http_address, "GET", f"/api/keys?tenant={tenant}", **bearer(mine))
        assert (refused.status, listed.status) == (403, 403)
        assert listed.json()["error"].replace(tenant, "T") == (
            "tenant 'T' is not the caller's; that needs the scope tenant:*."
        )
    listed = await call(guarded.http_address, "GET", "/api/keys", **bearer(mine))
    assert [key["name"] for key in listed.json()["keys"]] == ["root"]
    assert await status(guarded, theirs) == 200


async def test_only_an_admin_manages_keys(guarded: Server) -> None:
    worker = (await issue(guarded.database, "svc", "a", "agent", "worker", "operator", "runtime")).text
    for path, body in (
        ("/api/keys", {"name": "x"}),
        ("/api/keys/svc/revoke", {}),
        ("/api/keys/svc/rotate", {}),
        ("/api/tokens/revoke", {"jti": "x"}),
    ):
        assert (await post(guarded, path, body, worker)).status == 403
    assert (await call(guarded.http_address, "GET", "/api/keys", **bearer(worker))).status == 403


async def test_a_caller_of_all_tenants_names_the_tenant(guarded: Server) -> None:
    root = (await issue(guarded.database, "root", "", ADMIN, ALL_TENANTS)).text
    for tenant in ("a", "b"):
        created = await post(guarded, "/api/keys", {"name": "svc", "tenant": tenant, "scopes": ["agent"]}, root)
        assert (created.status, created.json()["tenant"]) == (200, tenant)
    ambiguous = await post(guarded, "/api/keys/svc/revoke", {}, root)
    assert (ambiguous.status, "'a', 'b'" in ambiguous.json()["error"]) == (422, True)
    assert (await post(guarded, "/api/keys/svc/revoke", {"tenant": "b"}, root)).json()["tenant"] == "b"
    assert (await post(guarded, "/api/keys", {"name": "x", "tenant": "a", "scopes": ["system"]}, root)).status == 403


@pytest.mark.parametrize(
    ("body", "answered"),
    [
        (b"{", 400),
        ({"name": 7}, 422),
        ({"name": "x", "scopes": "agent"}, 422),
        ({"name": "x", "expires_in_s": -1}, 422),
        ({"name": "x", "expires_in_s": 1e300}, 422),
        (b'{"name": "x", "expires_in_s": 1e999}', 422),
        ({"name": "x", "scopes": ["admin"] * 100_000}, 200),
        ({"name": "x\n"}, 422),
        ({"name": "x", "tenant": "a\0"}, 403),
    ],
)
async def test_a_bad_request_for_a_key_gets_a_clear_error(guarded: Server, body: Any, answered: int) -> None:
    root = (await issue(guarded.database, "root", "a", "admin")).text
    headers = bearer(root) | {"content_type": "application/json"}
    answer = await call(guarded.http_address, "POST", "/api/keys", body, **headers)
    assert answer.status == answered, answer.body
    assert answered == 200 or answer.json()["error"]


async def test_names_that_no_database_can_hold_are_unknown(guarded: Server) -> None:
    root = (await issue(guarded.database, "root", "", ADMIN, ALL_TENANTS)).text
    for name in ("%00", "a%00b", "%ff", "x" * 9_000, "%2e%2e", "'%20OR%201=1"):
        assert (await post(guarded, f"/api/keys/{name}/revoke", {}, root)).status == 404
    for query in ("tenant=%00", "after=a%00/b/c", "after=x", "limit=0", "limit=1e3", f"limit={'9' * 5000}"):
        answer = await call(guarded.http_address, "GET", f"/api/keys?{query}", **bearer(root))
        assert answer.status == 422, query


async def test_anonymous_callers_of_the_network_make_no_keys(store_url: str) -> None:
    async with Server(settings_for(store_url, anonymous="network")) as server:
        root = (await issue(server.database, "root", "a", "admin")).text
        assert (await post(server, "/api/keys", {"name": "x", "tenant": "a"})).status == 403
        assert (await call(server.http_address, "GET", "/api/keys")).status == 403
        assert (await post(server, "/api/keys", {"name": "x"}, root)).status == 200


async def test_the_owner_of_an_open_server_on_this_host_makes_keys_without_special_scopes(server: Server) -> None:
    made = await post(server, "/api/keys", {"name": "x", "tenant": "a", "scopes": ["admin", "worker"]})
    assert made.status == 200
    for scope in ("system", "tenant:*", "gateway"):
        assert (await post(server, "/api/keys", {"name": "y", "tenant": "a", "scopes": [scope]})).status == 403


# ── cost and secrecy ─────────────────────────────────────────────────────────────────────────────


async def test_a_verified_key_needs_no_look_at_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (await issue(database)).text
    keys = KeyRing(database)
    await keys.refresh()
    monkeypatch.setattr(database, "read", None)
    monkeypatch.setattr(database, "write", None)
    for _ in range(1_000):
        assert (await keys.verify(text, "mine")).session == "mine"
    assert (await keys.verify(text)).session == "svc"


async def test_unknown_keys_share_few_looks_at_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyRing(database)
    await keys.refresh()
    reads, original = 0, database.read

    async def count(question: Any) -> Any:
        nonlocal reads
        reads += 1
        return await original(question)

    monkeypatch.setattr(database, "read", count)
    guesses = [keys.verify(make_key().text) for _ in range(1_000)]
    results = await asyncio.gather(*guesses, return_exceptions=True)
    assert {str(result) for result in results} == {"key rejected: unknown_key"}
    assert reads == 1
    issued = await issue(database)
    assert (await keys.verify(issued.text)).tenant == "a"  # a new key is found by the next look


async def test_what_is_remembered_of_ended_keys_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "MAX_ENDED", 3)
    for number in range(6):
        await issue(database, f"svc{number}")
        await revoke(database, f"svc{number}")
    keys = KeyRing(database)
    await keys.refresh()
    assert (len(keys), len(keys._ended)) == (0, 3)


async def test_a_database_that_was_restored_from_a_backup_is_read_anew(database: Database) -> None:
    text = (await issue(database)).text
    keys = KeyRing(database)
    await keys.refresh()
    await issue(database, "other")
    await keys.refresh()

    def restore(tx: Any) -> None:
        tx.execute("DELETE FROM tape_service_keys WHERE name = 'other'")
        tx.execute("UPDATE tape_access_version SET version = 1")

    await database.write(restore)
    await keys.refresh()
    assert len(keys) == 1
    assert (await keys.verify(text)).tenant == "a"


async def test_the_last_use_is_written_apart_from_calls(guarded: Server) -> None:
    text = (await issue(guarded.database)).text
    assert await status(guarded, text) == 200
    assert (await guarded.database.read(service_keys.list_keys))[0].last_used_at_ms == 0
    await guarded.keys._write_use()
    assert (await guarded.database.read(service_keys.list_keys))[0].last_used_at_ms > now_ms() - HOUR_MS


async def test_refused_keys_are_audited_at_most_once_a_second_with_their_number(guarded: Server) -> None:
    ended = await issue(guarded.database)
    await revoke(guarded.database, "svc")
    await guarded.keys.refresh()
    for _ in range(20):
        assert await status(guarded, make_key().text) == 401
        assert await status(guarded, ended.text) == 401
    await guarded.audit.close()
    entries = await audit_entries(guarded, "auth.rejected")
    counts: dict[tuple[str, str], int] = {}
    for entry in entries:
        which = (entry.payload["Reason"], entry.payload.get("KeyID", ""))
        counts[which] = counts.get(which, 0) + entry.payload["Count"]
    assert counts == {("unknown_key", ""): 20, ("key_revoked", ended.key.key_id): 20}
    assert len(entries) < 30


async def test_the_secret_is_nowhere_in_the_database_and_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with Server(settings_for(f"sqlite:{tmp_path / 'tape.db'}", require_keys=True)) as server:
            root = (await issue(server.database, "root", "a", "admin")).text
            texts = [root]
            for path in ("/api/keys", "/api/keys/svc/rotate"):
                texts.append((await post(server, path, {"name": "svc"}, root)).json()["key"])
            assert await status(server, root[:-1]) == 401
            other = "1" if texts[1].endswith("0") else "0"  # one key in 62 ends with the character it is to differ in
            assert await status(server, texts[1][:-1] + other) == 401
            await server.audit.close()
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert digest_of(root).encode() in stored
    for text in texts:
        secret = text.rpartition("_")[2][:-6]
        assert secret.encode() not in stored
        assert secret not in caplog.text


async def test_revoking_an_unknown_key_changes_nothing(database: Database) -> None:
    with pytest.raises(NotFound, match="no such service key: 'svc'"):
        await revoke(database, "svc")
    with pytest.raises(NotFound):
        await rotate(database, "svc", 0)
    await issue(database)
    with pytest.raises(InvalidInput, match="overlap"):
        await rotate(database, "svc", -1)
