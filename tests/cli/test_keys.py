"""`tape keys`, on a database and through a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tape.cli import doctor, serve
from tape.cli import keys as command
from tape.cli.access import app as access
from tape.cli.keys import app
from tape.errors import ApiRefused, InvalidConfig, InvalidInput, NotFound
from tape.model.service_key import key_id_of
from tests.conftest import settings_for
from tests.services import ServerProcess


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TAPE_TOKEN", "TAPE_INTERNAL_API_TOKEN", "TAPE_SERVER_URL", "TAPE_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """A server that demands keys; the commands call it as the admin of the tenant shop."""
    root = run("create", "root", "--tenant", "shop", "--scope", "admin", "--store", store_url).stdout.strip()
    with ServerProcess(store_url, "--require-keys") as server:
        monkeypatch.setenv("TAPE_SERVER_URL", server.http_url)
        monkeypatch.setenv("TAPE_TOKEN", root)
        yield server


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--output", "json").stdout)


def fail(kind: type[Exception], *arguments: str) -> str:
    with pytest.raises(kind) as caught:
        CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    return str(caught.value)


def exercise() -> None:
    """Create, list, rotate and revoke a key of the tenant shop."""
    made = run("create", "w1", "--tenant", "shop", "--scope", "agent,worker", "--scope", "approver", "--expires", "90d")
    assert key_id_of(made.stdout.strip())
    assert made.stdout.strip() not in made.stderr
    assert "Created the service key w1" in made.stderr
    listed = {key["name"]: key for key in run_json("list")}
    assert listed["w1"]["scopes"] == ["agent", "approver", "worker"]
    assert listed["w1"]["expires_at_ms"] - listed["w1"]["created_at_ms"] == 90 * 86_400_000
    assert listed["w1"]["last_used_at_ms"] is None
    assert made.stdout.strip() not in json.dumps(listed)
    fail_text = fail(Exception, "create", "w1", "--tenant", "shop")
    assert "There is a service key 'w1' already" in fail_text
    rotated = run_json("rotate", "w1", "--overlap", "1h")
    assert key_id_of(rotated["key"]) == rotated["key_id"]
    table = run("list", "--tenant", "shop").stdout
    assert "replaced soon" in table
    assert "never" in table
    assert "w1 of tenant shop is revoked" in run("revoke", "w1").stdout
    assert "w1" not in run("list").stdout
    assert [key["state"] for key in run_json("list", "--all") if key["name"] == "w1"] == ["revoked"] * 2
    assert "shop with the jti j-1 are rejected until" in run("revoke-token", "j-1", "--tenant", "shop").stdout
    assert run_json("revoke-token", "j-1", "--tenant", "shop", "--until", "7d")["jti"] == "j-1"


def test_keys_are_managed_on_the_database_by_its_operator(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_STORE", store_url)
    exercise()
    assert "no such service key: 'w1'" in fail(NotFound, "revoke", "w1")
    key = run("create", "limited", "--tenant", "shop", "--user", "ada", "--read", "/tape/order/**", "--read", "/tape/a")
    assert "does not expire" in key.stderr
    limited = run_json("list")[0]
    assert (limited["user"], limited["read"], limited["write"]) == ("ada", ["/tape/order/**", "/tape/a"], None)


def test_keys_are_managed_through_a_server_by_an_admin(server: ServerProcess) -> None:
    exercise()
    assert "no such service key: 'w1'" in fail(ApiRefused, "revoke", "w1")
    assert "`system`" in fail(ApiRefused, "create", "w2", "--scope", "system")
    assert "tenant 'bank' is not the caller's" in fail(ApiRefused, "create", "w2", "--tenant", "bank")
    assert [key["tenant"] for key in run_json("list")] == ["shop"]


def test_the_address_is_an_option_a_variable_or_the_default_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("create", "w1", "--tenant", "shop")
    assert (tmp_path / "tape.db").exists()
    monkeypatch.setenv("TAPE_SERVER_URL", "http://127.0.0.1:1")
    assert len(run_json("list", "--store", "sqlite:tape.db")) == 1  # an option wins over a variable
    assert "exclude each other" in fail(InvalidInput, "list", "--store", "a", "--server", "http://b")
    assert "gRPC address" in fail(InvalidConfig, "list", "--server", "tape://127.0.0.1:7878")


def test_a_list_of_many_keys_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from tape.engine.security import service_keys

    for number in range(5):
        run("create", f"w{number}", "--tenant", "shop")
    monkeypatch.setattr(service_keys, "MAX_PAGE", 2)
    assert len(run_json("list")) == 5


def test_bad_durations_are_named() -> None:
    assert "--expires" in fail(InvalidInput, "create", "w", "--tenant", "t", "--expires", "soon")
    assert "--overlap" in fail(InvalidInput, "rotate", "w", "--overlap", "1y")


def test_access_check_verifies_a_service_key_with_the_database(tmp_path: Path) -> None:
    key = run("create", "w1", "--tenant", "shop", "--scope", "worker").stdout.strip()

    def check(text: str, *call: str) -> Any:
        result = CliRunner().invoke(access, ["check", "--as", "-", *call, "--output", "json"], input=text)
        return json.loads(result.stdout)

    assert check(key, "ClaimTasks")["allowed"]
    assert check(key, "ClaimTasks")["verified"]
    assert check(key, "ClaimTasks")["key_id"] == f"key:{key_id_of(key)}"
    assert not check(key, "RedriveTasks")["allowed"]
    run("revoke", "w1")
    assert check(key, "ClaimTasks")["rule"] == "the server rejects the key: key_revoked"
    assert check(key[:-1], "ClaimTasks")["rule"] == "the server rejects the key: key_malformed"
    shown = CliRunner().invoke(access, ["check", "--as", "-", "ClaimTasks"], input=key).output
    assert key not in shown


def test_the_doctor_warns_of_a_server_that_lets_no_client_in() -> None:
    def warnings() -> list[str]:
        settings = settings_for("sqlite:tape.db", require_keys=True)
        return [check.found for check in doctor._checks(settings) if check.name == "Service keys"]

    assert warnings() == ["require_keys is set and there is no key: no client is let in"]
    run("create", "w1", "--tenant", "shop")
    assert warnings() == []


@pytest.mark.parametrize(
    ("settings", "count", "shown"),
    [
        ({"require_keys": True}, 0, "there is none yet; to make one: "),
        ({"require_keys": True}, 2, "service keys only (2 valid"),
        ({}, 2, "open to clients of this host"),
        ({"auth_jwks": "k.json"}, 2, "tokens verified with k.json"),
    ],
)
def test_the_banner_says_who_is_let_in(
    settings: dict[str, Any], count: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve._greet(settings_for("sqlite:tape.db", **settings), "127.0.0.1:7878", "127.0.0.1:7879", "", count)
    assert shown in capsys.readouterr().out


def test_the_name_of_an_account_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid")

    monkeypatch.setattr(command.getpass, "getuser", nameless)
    run("create", "w1", "--tenant", "shop")
    assert run_json("list")[0]["created_by"] == ""
