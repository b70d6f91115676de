"""`tape redact test`: what would be hidden, by which rule, and never the secret itself."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from tape.cli.redact import app

LINES = (
    '{"price": 1.10, "user": {"password": "S3CR3T-1"}}',
    "",
    '{"usage": {"total_tokens": 12}}',
    '{"log": "Authorization: Bearer S3CR3T-2abc"}',
)


def redact(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(app, ["test", *arguments], input=text or None)


def test_findings_are_listed_with_line_path_and_rule_and_without_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "payloads.jsonl"
    file.write_text("\n".join(LINES))
    found = redact(str(file))
    assert found.exit_code == 0
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["line", "path", "rule", "chars"],
        ["1", "user.password", "key", "10"],
        ["4", "log", "bearer", "35"],
        ["2", "of", "3", "payloads", "would", "be", "changed."],
    ]
    assert "S3CR3T" not in found.stdout


def test_the_policy_of_a_tenant_is_read_from_the_configuration_file(tmp_path: Path) -> None:
    config = tmp_path / "tape.toml"
    config.write_text('[redaction.tenants.acme]\nallow_keys = ["password"]\n')
    arguments = ("-", "--config", str(config))
    assert "1 of 1 payloads" in redact(*arguments, text=LINES[0]).stdout
    assert "Nothing would be hidden." in redact(*arguments, "--tenant", "acme", text=LINES[0]).stdout


def test_json_output_has_one_line_for_each_payload_as_it_would_be_stored() -> None:
    found = redact("-", "--output", "json", text="\n".join(LINES))
    results = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(each["line"], len(each["hidden"])) for each in results] == [(1, 1), (3, 0), (4, 1)]
    assert results[0]["payload"] == '{"price": 1.10, "user": {"password": "***"}}'
    assert results[0]["hidden"] == [{"path": "user.password", "rule": "key", "chars": 10}]
    assert "S3CR3T" not in found.stdout


def test_a_payload_that_would_be_rejected_fails_the_command() -> None:
    found = redact("-", "-o", "json", text='{"a": nope}\n{"a": 1}\n')
    assert found.exit_code == 1
    results = [json.loads(line) for line in found.stdout.splitlines()]
    assert results[0]["error"]
    assert results[1]["error"] == ""


def test_nothing_to_hide_is_a_sentence() -> None:
    assert "Nothing would be hidden." in redact("-", text='{"a": 1}').stdout
