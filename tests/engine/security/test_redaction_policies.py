"""Redaction policies: each tenant's payloads are hidden as its table of tape.toml says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tape.base.config import Settings, load_redaction, load_settings
from tape.base.redaction_policy import HASH, RedactionPolicy
from tape.engine.security.redaction import Redactor, TenantRedactors
from tape.errors import InvalidConfig

# The tables that the documentation shows.
PAGE = Path(__file__).parents[3] / "docs" / "security.md"
TABLES = re.findall(r"```toml\n(\[redaction\].*?)```", PAGE.read_text(), re.DOTALL)[0]
KEY = "k" * 32
SECRET = "correct-horse-7"


def redactors(tmp_path: Path, text: str = TABLES) -> TenantRedactors:
    file = tmp_path / "tape.toml"
    file.write_text(text)
    policies, key = load_redaction({"TAPE_REDACTION_KEY": KEY}, file)
    return TenantRedactors((), policies, key)


def test_a_tenant_without_a_table_has_the_default_policy(tmp_path: Path) -> None:
    redactor = redactors(tmp_path).of("other")
    stored = redactor.redact(json.dumps({"CSRF_Token": SECRET, "password": SECRET}))
    assert json.loads(stored) == {"CSRF_Token": SECRET, "password": "***"}


def test_what_is_under_an_allowed_key_is_stored_as_it_was_sent(tmp_path: Path) -> None:
    redactor = redactors(tmp_path).of("other")
    payload = (
        '{"csrf_token": {"password": "hunter2",  "n": 1.10}, "pairs": ["csrf_token", "hunter2"],'
        ' "fields": {"name": "csrf_token", "value": "hunter2"}}'
    )
    assert redactor.redact(payload) == payload


def test_a_hash_shows_which_secrets_are_equal_and_never_the_secret(tmp_path: Path) -> None:
    redactor = redactors(tmp_path).of("acme")
    payload = json.dumps({"password": SECRET, "log": f"password={SECRET} ok", "token": "another-1"})
    stored = json.loads(redactor.redact(payload))
    assert SECRET not in json.dumps(stored)
    assert stored["password"].startswith("***:")
    assert stored["log"] == f"password={stored['password']} ok"
    assert stored["token"] != stored["password"]


def test_a_hash_is_stored_unchanged_when_it_is_appended_again(tmp_path: Path) -> None:
    redactor = redactors(tmp_path).of("acme")
    once = redactor.redact(json.dumps({"password": SECRET, "log": f"password={SECRET}"}))
    assert redactor.redact(once) == once


def test_equal_secrets_of_two_tenants_have_different_hashes(tmp_path: Path) -> None:
    all_hash = redactors(tmp_path, '[redaction]\naction = "hash"\n')
    payload = json.dumps({"password": SECRET})
    assert all_hash.of("acme").redact(payload) != all_hash.of("globex").redact(payload)


def test_a_number_and_an_object_are_hashed_as_they_are_written() -> None:
    redactor = Redactor((), RedactionPolicy(action=HASH), KEY.encode())
    stored = json.loads(redactor.redact('{"pin": 1234, "credentials": {"a": "b"}}'))
    assert stored["pin"].startswith("***:")
    assert stored["credentials"].startswith("***:")


def test_a_dry_run_finds_secrets_and_stores_them(tmp_path: Path) -> None:
    redactor = redactors(tmp_path).of("lab")
    payload = json.dumps({"password": SECRET})
    assert [found.path for found in redactor.find(payload)] == ["password"]
    assert redactor.redact(payload) == payload


def test_a_tenant_inherits_what_its_table_leaves_out(tmp_path: Path) -> None:
    redactor = redactors(tmp_path).of("acme")
    assert json.loads(redactor.redact(json.dumps({"csrf_token": SECRET}))) == {"csrf_token": SECRET}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[redaction]\naction = "drop"\n', "redaction.action is 'drop'; use mask or hash"),
        ("[redaction]\nallow_keys = 'token'\n", "redaction.allow_keys is 'token'; it must be a list"),
        ("[redaction.tenants.a]\ndry_run = 1\n", "redaction.tenants.a.dry_run is 1; it must be true or false"),
        ("[redaction]\nallow = ['a']\n", "redaction has the unknown key 'allow'"),
        ("redaction = true\n", "redaction is True; it must be a table"),
        ("[redaction]\ntenants = 3\n", "redaction.tenants is 3; it must be a table"),
    ],
)
def test_a_wrong_table_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tape.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=message.replace(".", r"\.")):
        load_settings({}, {}, file)


@pytest.mark.parametrize("key", ["", "short"])
def test_hashing_needs_a_key_that_cannot_be_guessed(key: str) -> None:
    with pytest.raises(InvalidConfig, match="TAPE_REDACTION_KEY"):
        Settings(redaction=(("", RedactionPolicy(action=HASH)),), redaction_key=key)


def test_the_key_is_not_in_the_text_of_the_settings() -> None:
    assert KEY not in repr(Settings(redaction=(("", RedactionPolicy(action=HASH)),), redaction_key=KEY))
