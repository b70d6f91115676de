"""`tape access check`: whether a token may make a call, and by which rule."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tape.cli.access import app
from tape.engine.ledgers import values
from tape.engine.security.dev_certificates import DevAuthority
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import InvalidInput, NotFound
from tape.store import open_database


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_key(tmp_path / "dev.key")[0]


@pytest.fixture
def jwks(tmp_path: Path, key: SigningKey) -> str:
    return str(jwks_path(tmp_path / "dev.key"))


def mint(key: SigningKey, *scopes: str, session: str = "s1") -> str:
    return key.mint(tenant="shop", user="ada", session=session, scopes=scopes)


def check(token: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", "--as", "-", *arguments], input=token)


def check_json(token: str, *arguments: str) -> Any:
    result = check(token, *arguments, "--output", "json")
    answer = json.loads(result.stdout)
    assert result.exit_code == (0 if answer["allowed"] else 1)
    return answer


def test_an_allowed_call_names_the_scope_that_allows_it(key: SigningKey, jwks: str) -> None:
    answer = check_json(mint(key, "worker"), "BeginRun", "--auth-jwks", jwks)
    assert answer["allowed"]
    assert answer["verified"]
    assert answer["rule"].startswith("the token has worker;")
    assert answer["scopes_needed"] == ["admin", "agent", "system", "worker"]
    assert answer["scopes_held"] == ["worker"]
    assert (answer["tenant"], answer["user"], answer["session"]) == ("shop", "ada", "s1")
    assert answer["all_tenants"] is False


def test_a_call_without_the_scope_is_explained(key: SigningKey) -> None:
    result = check(mint(key, "worker"), "POST", "/api/catalog/register")
    assert result.exit_code == 1
    assert "POST /api/catalog/register: not allowed" in result.stdout
    assert "one of these scopes is needed: admin, operator, system; the token has worker" in result.stdout
    assert "not verified" in result.stdout
    assert "shop (this tenant only)" in result.stdout


def test_all_tenants_are_reached_with_the_scope_for_it(key: SigningKey) -> None:
    assert check_json(mint(key, "agent", "tenant:*"), "GetRun")["all_tenants"]


def test_no_person_may_fetch_secrets(key: SigningKey) -> None:
    token = mint(key, "admin")
    assert check_json(token, "GET", "/api/credentials/stripe")["allowed"]
    assert not check_json(token, "GET /api/credentials/stripe?include_data=true")["allowed"]


def test_calls_for_every_token_and_for_none(key: SigningKey) -> None:
    assert check_json(mint(key), "Append")["rule"].startswith("every valid token")
    assert check_json(mint(key), "GET /healthz")["rule"] == "no token is needed"
    assert not check_json(mint(key), "GET /v1/events?admin=1")["allowed"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--auth-issuer", "another"], "issuer_mismatch"),
        (["--auth-audience", "another"], "audience_mismatch"),
    ],
)
def test_a_token_that_the_server_would_reject_is_not_allowed(key: SigningKey, options: list[str], reason: str) -> None:
    answer = check_json(mint(key, "admin"), "Append", *options)
    assert not answer["allowed"]
    assert answer["rule"] == f"the server rejects the token: {reason}"
    assert answer["scopes_held"] is None


def test_an_expired_token_is_not_allowed(key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> None:
    token = key.mint(tenant="shop", user="ada", session="s1", lifetime_s=1)
    monkeypatch.setattr("tape.engine.security.identity.time.time", lambda: 1e11)
    assert check_json(token, "Append")["rule"].endswith("token_expired")


def test_a_token_of_another_key_is_rejected_only_where_it_is_verified(jwks: str, tmp_path: Path) -> None:
    stranger = mint(load_key(tmp_path / "stranger.key")[0], "agent")
    assert check_json(stranger, "BeginRun")["allowed"]
    answer = check_json(stranger, "BeginRun", "--auth-jwks", jwks)
    assert answer["rule"].endswith("unknown_key")
    assert not answer["verified"]


def test_a_session_may_be_named_beside_the_token(key: SigningKey) -> None:
    assert "identity_claim_missing (session)" in check_json(mint(key, session=""), "Append")["rule"]
    assert check_json(mint(key, session=""), "Append", "--session", "s7")["session"] == "s7"


@pytest.mark.parametrize("token", ["abc", "a.b.c", "e30.e30.e30"])
def test_a_text_that_is_no_token_is_rejected(token: str) -> None:
    assert not check_json(token, "Append")["allowed"]


def test_an_unknown_call_is_an_error_with_near_matches(key: SigningKey) -> None:
    result = check(mint(key), "BeginRuns")
    assert isinstance(result.exception, NotFound)
    assert "Near matches: BeginRun" in str(result.exception)
    assert isinstance(check("", "BeginRun").exception, InvalidInput)


def test_migrate_moves_what_belongs_to_no_tenant(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'tape.db'}"

    async def prepare() -> None:
        async with open_database(store) as database:
            await database.write(lambda tx: values.write(tx, "n", "k", "1"))

    asyncio.run(prepare())
    arguments = ["migrate", "--to", "shop", "--store", store, "--output", "json"]
    assert json.loads(CliRunner().invoke(app, arguments).stdout)["tape_values"] == 1
    assert json.loads(CliRunner().invoke(app, arguments).stdout)["tape_values"] == 0


GRANTS = {"read": ["/tape/order/**"], "write": ["/tape/order/paid/*"]}


@pytest.mark.parametrize(
    ("call", "subject", "is_allowed", "rule"),
    [
        ("Append", "/tape/order/paid/1", True, "the write grants include it: /tape/order/paid/*"),
        ("Append", "/tape/order/shipped/1", False, "the subject is not among the write grants: /tape/order/paid/*"),
        ("AppendStream", "/tape/order/**", False, "not every subject of the pattern is among the write grants"),
        ("Follow", "/tape/order/shipped/1", True, "the read grants include it: /tape/order/**"),
        ("Follow", "**", True, "the read grants include a part of it"),
        ("Follow", "/tape/user/**", False, "not every subject of the pattern is among the read grants"),
        ("RegisterReaction", "**", False, "not every subject of the pattern is among the read grants"),
        ("BeginRun", "/tape/user/made/1", True, "grants do not hold for this call; its scopes decide"),
    ],
)
def test_grants_are_explained_for_a_subject(
    key: SigningKey, call: str, subject: str, is_allowed: bool, rule: str
) -> None:
    token = key.mint(tenant="shop", user="ada", session="s1", scopes=["service"], **GRANTS)
    answer = check_json(token, call, "--subject", subject)
    assert answer["allowed"] is is_allowed
    assert answer["grant"].startswith(rule)
    assert {name: answer[name] for name in GRANTS} == GRANTS


def test_a_scope_that_lacks_is_named_before_the_grants(key: SigningKey) -> None:
    token = key.mint(tenant="shop", user="ada", session="s1", read=[])
    result = check(token, "Follow", "--subject", "**")
    assert result.exit_code == 1
    assert "one of these scopes is needed" in result.stdout
    assert "no subject" in result.stdout


def test_a_subject_that_is_not_valid_is_refused(key: SigningKey) -> None:
    assert isinstance(check(mint(key), "Append", "--subject", "order").exception, InvalidInput)


def test_a_client_certificate_is_explained_by_the_table_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = DevAuthority(tmp_path / "certs").client("w1.acme.internal")
    (tmp_path / "tape.toml").write_text(
        'tls_cert = "a"\ntls_key = "b"\ntls_client_ca = "c"\n'
        '[[tls_clients]]\nsan = "*.acme.internal"\ntenant = "acme"\nscopes = ["worker"]\n'
    )
    monkeypatch.setenv("TAPE_CONFIG", str(tmp_path / "tape.toml"))
    answer = check_json(f"cert:{pair.cert}", "ClaimTasks")
    assert (answer["allowed"], answer["tenant"], answer["user"]) == (True, "acme", "w1.acme.internal")
    assert not answer["verified"]
    assert not check_json(f"cert:{pair.cert}", "RegisterResource")["allowed"]
    stranger = DevAuthority(tmp_path / "certs").client("stranger.example.com")
    assert check_json(f"cert:{stranger.cert}", "ClaimTasks")["rule"].endswith("certificate_unknown")
    for damaged in (pair.key, tmp_path / "none.crt"):
        assert isinstance(check(f"cert:{damaged}", "ClaimTasks").exception, InvalidInput)
