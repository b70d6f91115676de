"""`tape backup`, `tape restore` and `tape info` as an operator runs them, and the drill of the documentation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import obstore
import pytest

from tape import TapeClient
from tape.backup.location import BucketLocation, FolderLocation
from tape.backup.restore import restore_backup
from tape.backup.writer import create_backup
from tape.store import open_database
from tests.backup.stores import append_entries, files_below
from tests.forked import tape
from tests.objects import S3Server
from tests.services import ServerProcess, free_port

PAGE = Path(__file__).parents[2] / "docs/backup.md"


def test_the_drill_of_the_documentation_works_as_printed(tmp_path: Path) -> None:
    section = PAGE.read_text().split("## The drill", 1)[1]
    (script,) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    ports = {"7878": str(free_port()), "7879": str(free_port())}
    script = re.sub("7878|7879", lambda found: ports[found[0]], script)
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TAPE_URL": f"tape://127.0.0.1:{ports['7878']}",
    }
    done = subprocess.run(
        ["bash", "-euc", f"trap 'kill -9 $(jobs -p) 2> /dev/null || true' EXIT\n{script}"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cursor, resumed = (int((tmp_path / name).read_text()) for name in ("cursor", "resumed"))
    first = re.findall(r"Backed up (\d+) new entries", done.stdout)
    assert len(first) == 2
    restored = int(re.findall(r"Restored (\d+) entries", done.stdout)[0])
    assert restored == sum(map(int, first)) < cursor < 1_000_000 < resumed
    tail = done.stdout.rpartition("(restored from")[2]
    assert f"gap: {restored + 1} to" in tail
    assert "/tape/journal/diverged" in tail
    assert str(resumed) in tail


def test_a_backup_from_the_command_line_says_what_it_has(store_url: str, tmp_path: Path) -> None:
    append_entries(store_url, 30)
    target = str(tmp_path / "backup")
    done = tape("backup", target, "--store", store_url)
    assert done.returncode == 0
    assert "Backed up 30 new entries" in done.stdout
    assert re.search(r"entries +1 to 30, verified", done.stdout)
    report = json.loads(tape("backup", target, "--store", store_url, "-o", "json").stdout)
    assert (report["entries"], report["global_seq"], report["artifacts"]["mode"]) == (0, 30, "copy")


def test_info_shows_the_store_and_its_journal(store_url: str, tmp_path: Path) -> None:
    append_entries(store_url, 30)
    found = json.loads(tape("info", "--store", store_url, "-o", "json").stdout)
    assert (found["found_by"], found["oldest"], found["head"], found["entries"]) == ("--store", 1, 30, 30)
    assert (found["epoch"], found["pending_migrations"], found["backups"], found["damage"]) == (1, [], [], [])
    assert found["size_bytes"] > 0
    tape("backup", str(tmp_path / "backup"), "--store", store_url)
    text = tape("info", "--store", store_url).stdout
    assert re.search(r"entries +30 \(1 to 30\)", text)
    assert re.search(rf"last backup +{tmp_path / 'backup'} at 30", text)


def test_info_counts_entries_without_the_ranges_that_epochs_leave_out(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).migrate()
    append_entries(sqlite_url, 30)
    tape("backup", str(tmp_path / "backup"), "--store", sqlite_url)
    restored = f"sqlite:{tmp_path / 'restored.db'}"
    done = json.loads(tape("restore", str(tmp_path / "backup"), "--store", restored, "-o", "json").stdout)
    assert done["resumes_at"] == 1_000_031
    found = json.loads(tape("info", "--store", restored, "-o", "json").stdout)
    assert (found["entries"], found["head"], found["epoch"]) == (31, 1_000_031, 2)
    assert "no entries from 31 to 1000030" in tape("info", "--store", restored).stdout


def test_info_lists_the_points_of_a_backup_and_verify_names_what_a_restored_journal_lacks(
    sqlite_url: str, tmp_path: Path
) -> None:
    open_database(sqlite_url).migrate()
    target = str(tmp_path / "backup")
    for count in (10, 20):
        append_entries(sqlite_url, count)
        tape("backup", target, "--store", sqlite_url)
    shown = tape("info", "--backup", target).stdout
    assert re.findall(r"^ +(\d+)  20\d\d-\d\d-\d\d .* epoch 1 ", shown, re.MULTILINE) == ["10", "30"]
    refused = tape("restore", target, "--store", f"sqlite:{tmp_path / 'x.db'}", "--until", "9")
    assert f"which is at 10. All of them: tape info --backup {target}" in refused.stderr
    restored = f"sqlite:{tmp_path / 'restored.db'}"
    tape("restore", target, "--store", restored, "--until", "12", "--last-known", "35")
    assert "Without entries: 11 to 35. The database lost" in tape("verify", "--store", restored).stdout
    report = json.loads(tape("verify", "--store", restored, "-o", "json").stdout)
    assert (report["ok"], report["lost"]) == (True, [{"first": 11, "last": 35}])


def test_a_database_without_tables_is_named_as_such_by_every_command_that_reads(
    bare_store_url: str, tmp_path: Path
) -> None:
    for command in (["info"], ["verify"], ["backup", str(tmp_path / "backup")]):
        done = tape(*command, "--store", bare_store_url)
        assert (done.returncode, "TAPE-1508" in done.stderr, "0001_" in done.stderr) == (1, True, False), command


def test_a_file_is_no_place_for_a_backup(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).migrate()
    (tmp_path / "file").touch()
    done = tape("backup", str(tmp_path / "file"), "--store", sqlite_url)
    assert (done.returncode, "is a file. Name a folder" in done.stderr) == (1, True)


def test_a_restore_into_memory_is_refused(tmp_path: Path) -> None:
    done = tape("restore", str(tmp_path), "--store", "memory")
    assert done.returncode == 1
    assert "ends with this process" in done.stderr


def test_a_folder_without_a_backup_is_refused_and_no_store_is_made(tmp_path: Path) -> None:
    done = tape("restore", str(tmp_path), "--store", f"sqlite:{tmp_path / 'x.db'}")
    assert done.returncode == 1
    assert "holds no backup" in done.stderr
    assert not list(tmp_path.glob("x.db*"))


def test_artifacts_are_copied_once_and_restored_beside_the_new_store(tmp_path: Path) -> None:
    store, target = f"sqlite:{tmp_path / 'tape.db'}", str(tmp_path / "backup")
    with ServerProcess(store) as server, TapeClient(server.url) as client:
        client.append("/tape/order/created/1", {"text": "x" * 100_000})
        assert "1 copied (100,000 bytes)" in tape("backup", target, "--store", store).stdout
        client.append("/tape/order/created/2", {"text": "y" * 100_000})
        assert "2 copied (200,000 bytes)" in tape("backup", target, "--store", store).stdout
    restored = tmp_path / "other" / "tape.db"
    restored.parent.mkdir()
    done = tape("restore", target, "--store", f"sqlite:{restored}")
    assert "2 restored" in done.stdout
    folder = restored.with_name("tape.db.artifacts")
    assert files_below(folder) == files_below(tmp_path / "tape.db.artifacts")
    assert len(files_below(folder)) == 2


def test_a_damaged_journal_ends_the_command_with_1(sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).migrate()
    append_entries(sqlite_url, 10)
    connection = open_database(sqlite_url).connect()
    connection.execute("DELETE FROM tape_journal WHERE global_seq = 4")
    connection.close()
    done = tape("backup", str(tmp_path / "backup"), "--store", sqlite_url)
    assert done.returncode == 1
    assert "TAPE-1504" in done.stderr
    accepted = tape("backup", str(tmp_path / "backup"), "--store", sqlite_url, "--accept-damage")
    assert accepted.returncode == 0
    assert "entries 4 to 4 of the journal: missing" in accepted.stderr


def test_secrets_name_the_key_that_they_need(sqlite_url: str, tmp_path: Path) -> None:
    tape("wallet", "set", "crm", "--store", sqlite_url, stdin="hunter2hunter2")
    done = tape("backup", str(tmp_path / "backup"), "--store", sqlite_url)
    assert re.search(r"wallet key +\S+ for 1 secrets, not in the backup", done.stdout)
    for path in files_below(tmp_path / "backup"):
        assert b"hunter2" not in (tmp_path / "backup" / path).read_bytes()
    restored = tape("restore", str(tmp_path / "backup"), "--store", f"sqlite:{tmp_path / 'restored.db'}")
    assert re.search(r"wallet key +\S+ for 1 secrets", restored.stdout)


@pytest.fixture(scope="module")
def s3() -> object:
    with S3Server() as server:
        yield server


def test_a_backup_in_a_bucket_is_restored(
    sqlite_url: str, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(sqlite_url).migrate()
    append_entries(sqlite_url, 30)
    obstore.put(s3.store("backups"), "other", b"")  # the bucket is there after the first object
    for name, value in {
        "AWS_ACCESS_KEY_ID": s3.credential["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3.credential["secret_access_key"],
        "AWS_ENDPOINT": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    artifacts = FolderLocation(tmp_path / "artifacts")
    name = f"={'a'}/=b%20c/=/{'9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'}.txt"
    artifacts.put(name, b"test")
    location = BucketLocation("s3://backups/shop")
    create_backup(open_database(sqlite_url), location, artifacts=artifacts)
    append_entries(sqlite_url, 5)
    assert create_backup(open_database(sqlite_url), location, artifacts=artifacts).entries == 5
    target = FolderLocation(tmp_path / "restored-artifacts")
    report = restore_backup(location, open_database(f"sqlite:{tmp_path / 'restored.db'}"), artifacts=target)
    assert (report.entries, report.restored_artifacts) == (35, 1)
    assert files_below(target.root) == [name]
