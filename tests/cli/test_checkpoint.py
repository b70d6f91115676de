"""`tape checkpoint`, and `tape verify` with what is kept outside of the database."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tape.cli.main import app
from tape.journal.journal import Journal
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.store import open_database


@pytest.fixture
async def filled(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    await fill(store_url)
    return store_url


async def fill(url: str, count: int = 10) -> None:
    async with open_database(url) as database:
        for _ in range(count):
            await Journal(database).append([Draft(subject="/tape/order/created", run_id="r", payload_json="{}")])


def tape(*arguments: str) -> Result:
    with ThreadPoolExecutor(1) as thread:  # which has no event loop
        return thread.submit(CliRunner().invoke, app, list(arguments)).result()


def checkpoint(store: str, *arguments: str) -> dict[str, Any]:
    result = tape("checkpoint", "--store", store, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def run_sql(url: str, *statements: str) -> None:
    async with open_database(url, witness="off") as database:
        for statement in statements:
            await database.write(lambda tx, sql=statement: tx.execute(sql))  # type: ignore[misc]


CUT = (
    "DELETE FROM tape_journal WHERE global_seq > 7",
    "UPDATE tape_head SET global_seq = 7, chain = (SELECT chain FROM tape_journal WHERE global_seq = 7)",
)


async def test_a_checkpoint_is_signed_and_holds(filled: str, tmp_path: Path) -> None:
    made = checkpoint(filled)
    assert made["global_seq"] == 10
    kept = tmp_path / "checkpoint.json"
    kept.write_text(json.dumps(made))
    key = tmp_path / "tape-checkpoint.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert checkpoint(filled)["public_key"] == made["public_key"]
    await fill(filled)
    result = tape("verify", "--store", filled, "--checkpoint", str(kept), "--public-key", f"{key}.pub")
    assert result.exit_code == 0, result.output
    assert "entry 10 is the one" in result.output
    assert "known from the checkpoint alone" not in result.output


async def test_without_a_public_key_the_output_says_what_is_not_proven(filled: str, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoint.json"
    kept.write_text(json.dumps(checkpoint(filled)))
    result = tape("verify", "--store", filled, "--checkpoint", str(kept))
    assert result.exit_code == 0
    assert "known from the checkpoint alone" in " ".join(result.output.split())


async def test_a_cut_journal_fails_against_the_witness_a_checkpoint_and_an_expectation(
    filled: str, tmp_path: Path
) -> None:
    kept = tmp_path / "checkpoint.json"
    made = checkpoint(filled)
    kept.write_text(json.dumps(made))
    await run_sql(filled, *CUT)
    for arguments in ((), ("--checkpoint", str(kept)), ("--expect", f"10:{made['chain']}")):
        result = tape("verify", "--store", filled, "--output", "json", *arguments)
        assert result.exit_code == 1
        findings = json.loads(result.stdout)["findings"]
        found = [(one["global_seq"], one["last"]) for one in findings if one["problem"] == "tail"]
        assert found == [(8, 10)] * (1 + bool(arguments))
    assert "lost the tail" in str(tape("checkpoint", "--store", filled).exception)


async def test_a_checkpoint_of_another_journal_does_not_hold(filled: str, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoint.json"
    kept.write_text(json.dumps(checkpoint(filled)))
    other = f"sqlite:{tmp_path / 'other.db'}"
    await fill(other, 20)
    result = tape("verify", "--store", other, "--checkpoint", str(kept))
    assert result.exit_code == 1
    assert "journal" in result.output


@pytest.mark.parametrize("field", ["global_seq", "chain", "journal_id", "epoch", "ts_ms", "signature", "public_key"])
async def test_a_changed_checkpoint_is_refused(sqlite_url: str, tmp_path: Path, field: str) -> None:
    await fill(sqlite_url, 1)
    made = checkpoint(sqlite_url, "--key", str(tmp_path / "key"))
    value = made[field]
    made[field] = value + 1 if isinstance(value, int) else value[:-4] + ("0000" if value[-4:] != "0000" else "1111")
    kept = tmp_path / "checkpoint.json"
    kept.write_text(json.dumps(made))
    for extra in ((), ("--public-key", str(tmp_path / "key.pub"))):
        result = tape("verify", "--store", sqlite_url, "--checkpoint", str(kept), *extra)
        if field == "public_key" and extra:  # the key that is given counts, not the one in the file
            assert result.exit_code == 0
        else:
            assert "not signed" in str(result.exception) or "was not signed" in str(result.exception)


async def test_a_checkpoint_that_was_signed_anew_is_refused_with_the_public_key(
    sqlite_url: str, tmp_path: Path
) -> None:
    await fill(sqlite_url, 3)
    checkpoint(sqlite_url, "--key", str(tmp_path / "key"))
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(checkpoint(sqlite_url, "--key", str(tmp_path / "other"))))
    assert tape("verify", "--store", sqlite_url, "--checkpoint", str(forged)).exit_code == 0
    arguments = ("--checkpoint", str(forged), "--public-key", str(tmp_path / "key.pub"))
    assert "was not signed with the key" in str(tape("verify", "--store", sqlite_url, *arguments).exception)


async def test_a_pruned_entry_is_not_proven_without_the_archive(filled: str, tmp_path: Path) -> None:
    made = checkpoint(filled)
    await fill(filled)
    async with open_database(filled) as database:
        await prune(database, before_seq=15)
    result = tape("verify", "--store", filled, "--expect", f"10:{made['chain']}")
    assert result.exit_code == 1
    assert "pruned" in result.output
    assert "✓" not in result.output


@pytest.mark.parametrize("text", ["", "10", "10:", "x:" + "0" * 64, "0:" + "0" * 64, "10:" + "0" * 63, "9" * 30 + ":0"])
def test_a_malformed_expectation_is_refused(sqlite_url: str, text: str) -> None:
    assert "--expect" in str(tape("verify", "--store", sqlite_url, "--expect", text).exception)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"journal_id": 1}', "\x00\xff"])
def test_a_file_that_is_no_checkpoint_is_refused(sqlite_url: str, tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert "--checkpoint" in str(tape("verify", "--store", sqlite_url, "--checkpoint", str(path)).exception)


def test_a_key_that_others_can_read_or_of_another_kind_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).migrate()
    key = tmp_path / "key"
    checkpoint(sqlite_url, "--key", str(key))
    key.chmod(0o644)
    assert "chmod 600" in str(tape("checkpoint", "--store", sqlite_url, "--key", str(key)).exception)
    key.write_text("no key")
    key.chmod(0o600)
    assert "no private key" in str(tape("checkpoint", "--store", sqlite_url, "--key", str(key)).exception)


async def test_a_moved_head_is_not_signed(sqlite_url: str, tmp_path: Path) -> None:
    await fill(sqlite_url, 5)
    (tmp_path / "tape.db-witness").unlink()
    with apsw.Connection(str(tmp_path / "tape.db")) as file:
        file.execute("UPDATE tape_head SET global_seq = 4")
    assert "not that of the newest entry" in str(tape("checkpoint", "--store", sqlite_url).exception)
