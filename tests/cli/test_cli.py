"""The command line, used as a person or a script would."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tape.cli.commands import COMMANDS
from tape.store.connection import Dialect
from tape.store.migrations import known_migrations
from tests.forked import tape
from tests.services import ServerProcess, wait_for

TAPE = [sys.executable, "-m", "tape"]


@pytest.fixture
def running(sqlite_url: str) -> Iterator[ServerProcess]:
    with ServerProcess(sqlite_url) as server:
        yield server


@pytest.fixture
def filled(running: ServerProcess) -> ServerProcess:
    lines = "\n".join(json.dumps({"subject": f"/tape/order/created/{n}", "payload": {"n": n}}) for n in range(100))
    done = tape("append", "--url", running.url, stdin=lines)
    assert done.returncode == 0, done.stderr
    return running


def test_help_lists_every_command_with_a_sentence() -> None:
    text = tape("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"│ {command}\s+[A-Z]", text), command
    assert "tape 0." in tape("--version").stdout


def test_help_shows_defaults_and_other_text_in_brackets() -> None:
    def words(command: str) -> str:
        return re.sub(r"[│\s]+", " ", tape(command, "--help").stdout)

    assert "[default: 127.0.0.1:7879]" in words("serve")
    assert "[default: the folder of SPEC.yaml]" in words("subscribe")


def test_one_event_is_appended_and_tailed(running: ServerProcess) -> None:
    done = tape("append", "/tape/order/created/1", '{"total": 9.5}', "--run-id", "r1", "--url", running.url)
    assert (done.returncode, done.stdout) == (0, "1\n")
    done = tape("append", "/tape/order/created/2", "--tenant", "acme", "-o", "json", env={"TAPE_URL": running.url})
    assert json.loads(done.stdout) == {"global_seq": 2}
    shown = tape("tail", "--from", "start", "--no-follow", "--url", running.url, "--output", "json")
    first, second = map(json.loads, shown.stdout.splitlines())
    assert (first["global_seq"], first["run_id"], first["payload"]) == (1, "r1", {"total": 9.5})
    assert (second["tenant"], second["kind"], second["payload"]) == ("acme", "order", {})
    text = tape("tail", "--from", "1", "--no-follow", "--url", running.url).stdout
    assert "/tape/order/created/2" in text
    assert "/tape/order/created/1 " not in text


def test_lines_are_appended_in_order(running: ServerProcess) -> None:
    lines = "".join(
        json.dumps({"subject": f"/tape/order/created/{n}", "payload": {"n": n}, "run_id": "bulk"}) + "\n"
        for n in range(2_000)
    )
    done = tape("append", "--url", running.url, "-o", "json", stdin=lines)
    assert json.loads(done.stdout) == {"appended": 2_000, "skipped": 0, "first": 1, "last": 2_000}
    shown = tape("tail", "--from", "start", "--no-follow", "--url", running.url, "-o", "json").stdout.splitlines()
    assert [json.loads(line)["payload"]["n"] for line in shown] == list(range(2_000))


def test_where_decides_what_is_appended_and_what_is_shown(running: ServerProcess) -> None:
    lines = "".join(json.dumps({"subject": "/tape/order/made", "payload": {"n": n}}) + "\n" for n in range(10))
    lines += json.dumps({"subject": "/tape/order/made", "payload": {}}) + "\n"
    done = tape("append", "--where", "payload.n >= 4", "--url", running.url, stdin=lines)
    assert "Appended 6 events: 1 to 6" in done.stdout
    assert "Skipped 5 that do not match --where, 1 of them because of errors" in done.stdout
    shown = tape(
        "tail", "--from", "start", "--no-follow", "-w", "payload.n % 2 == 0", "-o", "json", "--url", running.url
    )
    assert [json.loads(line)["payload"]["n"] for line in shown.stdout.splitlines()] == [4, 6, 8]
    one = tape("append", "/tape/order/made", '{"n": 1}', "--where", "payload.n > 1", "--url", running.url)
    assert one.stdout.startswith("Skipped 1")
    for command in (["tail"], ["append", "/tape/a/b"]):
        bad = tape(*command, "--where", "payload.n >", "--url", running.url)
        assert bad.returncode == 1
        assert "TAPE-1006" in bad.stderr
    assert "compiles" in tape("cel", "check", "payload.n > 1").stdout


def test_payloads_alone_are_appended_to_one_subject(running: ServerProcess) -> None:
    done = tape("append", "/tape/sensor/read/7", "-", "--url", running.url, stdin='{"t": 1}\n\n{"t": 2}\n')
    assert done.stdout == "Appended 2 events: 1 to 2\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "line 2: JSON is malformed"),
        ('{"subject": "/tape/a/b", "colour": 1}', "line 2: Object contains unknown field `colour`"),
        ('{"payload": {}}', "line 2: Object missing required field `subject`"),
        ('{"subject": "/tape/a/*"}', "line 2: .*'\\*'"),
    ],
)
def test_an_invalid_line_is_named_and_the_lines_before_it_are_appended(
    running: ServerProcess, line: str, reason: str
) -> None:
    lines = '{"subject": "/tape/a/b"}\n' + line + '\n{"subject": "/tape/a/c"}\n'
    done = tape("append", "--url", running.url, stdin=lines)
    assert done.returncode == 1
    assert re.search(reason, done.stderr)
    assert "Appended 1 events before the invalid line" in done.stderr
    shown = tape("tail", "--from", "start", "--no-follow", "--url", running.url, "-o", "json").stdout.splitlines()
    assert [json.loads(entry)["subject"] for entry in shown] == ["/tape/a/b"]


def test_tail_narrows_counts_and_follows(filled: ServerProcess) -> None:
    done = tape("tail", "-s", "/tape/order/created/7", "--from", "start", "-n", "1", "--url", filled.url, "-o", "json")
    assert json.loads(done.stdout)["payload"] == {"n": 7}
    following = subprocess.Popen(
        [*TAPE, "tail", "--kind", "later", "--url", filled.url, "-o", "json", "-n", "2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: "tape_subscriptions 1.0" in metrics(filled), "the subscription")
    for n in range(2):
        tape("append", f"/tape/later/sent/{n}", "--url", filled.url)
    out, _ = following.communicate(timeout=120)
    assert [json.loads(line)["subject"] for line in out.splitlines()] == ["/tape/later/sent/0", "/tape/later/sent/1"]


def test_tail_ends_quietly_when_interrupted(filled: ServerProcess) -> None:
    process = subprocess.Popen([*TAPE, "tail", "--url", filled.url], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: "tape_subscriptions 1.0" in metrics(filled), "the subscription")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["tail", "--from", "yesterday"], "TAPE-1001", "must be a global_seq, 'start' or 'now'"),
        (["tail", "--from", "999"], "TAPE-1101", "beyond the head"),
        (["tail", "-s", "/tape/**/x"], "TAPE-1003", "only stand at the end"),
        (["append", "/tape/a/b", "{"], "TAPE-1004", "is not JSON"),
        (["append", "/a/b", "{}"], "TAPE-1002", "must begin with /tape/"),
    ],
)
def test_errors_are_one_sentence_with_a_code(
    running: ServerProcess, arguments: list[str], code: str, reason: str
) -> None:
    done = tape(*arguments, "--url", running.url)
    assert done.returncode == 1
    assert f"error {code}: " in done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_server_is_reported_at_once() -> None:
    for arguments in (["tail"], ["append", "/tape/a/b"]):
        done = tape(*arguments, "--url", "tape://127.0.0.1:1")
        assert done.returncode == 1
        assert "TAPE-1602" in done.stderr
        assert "tape serve" in done.stderr


def test_verify_and_prune_work_beside_a_running_server(filled: ServerProcess, sqlite_url: str) -> None:
    done = tape("verify", "--store", sqlite_url)
    assert done.returncode == 0
    assert "100 entries (1 to 100) are exactly what was written" in done.stdout
    assert json.loads(tape("prune", "--before", "41", "--dry-run", "--store", sqlite_url, "-o", "json").stdout) == {
        "removed": 40,
        "oldest": 41,
        "dry_run": True,
    }
    assert tape("prune", "--before", "41", "--store", sqlite_url, stdin="n\n").returncode == 1
    done = tape("prune", "--before", "41", "--yes", "--store", sqlite_url)
    assert done.stdout == "Removed 40 entries; the oldest is now 41.\n"
    report = json.loads(tape("verify", "--store", sqlite_url, "-o", "json").stdout)
    assert report == {"ok": True, "oldest": 41, "head": 101, "entries": 61, "findings": []}
    assert "TAPE-1102" in tape("tail", "--from", "5", "--url", filled.url).stderr
    done = tape("prune", "--before", "1d", "--yes", "--store", sqlite_url)
    assert done.stdout == "Removed 0 entries; the oldest is now 41.\n"
    assert tape("prune", "--before", "soon", "--store", sqlite_url).returncode == 1


def test_verify_names_damage_and_fails(filled: ServerProcess, sqlite_url: str) -> None:
    filled.terminate()
    import apsw

    with apsw.Connection(sqlite_url.removeprefix("sqlite:")) as database:
        database.execute("UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = 17")
    done = tape("verify", "--store", sqlite_url)
    assert done.returncode == 1
    assert re.search(r"17\s+│\s+altered", done.stdout)
    found = json.loads(tape("verify", "--store", sqlite_url, "-o", "json").stdout)
    assert [finding["global_seq"] for finding in found["findings"]] == [17]


def test_migrate_checks_and_applies(bare_store_url: str) -> None:
    dialect: Dialect = "sqlite" if bare_store_url.startswith("sqlite") else "postgres"
    names = ", ".join(map(str, known_migrations(dialect)))
    done = tape("migrate", "--check", "--store", bare_store_url)
    assert (done.returncode, done.stdout) == (1, f"Pending: {names}\n")
    done = tape("migrate", "--store", bare_store_url)
    assert (done.returncode, done.stdout) == (0, f"Applied: {names}\n")
    done = tape("migrate", "--check", "--store", bare_store_url, "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"pending": []})


def test_an_unmigrated_store_is_reported_with_the_remedy(sqlite_url: str) -> None:
    done = tape("verify", "--store", sqlite_url)
    assert done.returncode == 1
    assert f"tape migrate --store {sqlite_url}" in done.stderr


def test_doctor_reports_what_is_installed(filled: ServerProcess, sqlite_url: str) -> None:
    listen = filled.url.removeprefix("tape://")
    done = tape("doctor", "--store", sqlite_url, "--listen", listen, "-o", "json")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 0
    assert "100 entries up to 100" in checks["Store"]["found"]
    assert "a server is running" in checks["gRPC port"]["found"]
    assert {"Tape", "SQLite", "Java", "PySpark", "psycopg"} <= set(checks)
    done = tape("doctor", "--store", "sqlite:/no/such/folder/x.db")
    assert done.returncode == 1
    assert "→ mkdir -p /no/such/folder" in done.stdout


def test_serve_rejects_invalid_settings_in_one_sentence(tmp_path: Path) -> None:
    for arguments, reason in (
        (["--store", "mysql://x"], "known are sqlite:<path>"),
        (["--listen", "nowhere"], "write it as host:port"),
        (["--store", "memory", "--queue-bytes", "1"], "queue_bytes (1) must be at least max_payload_bytes"),
        (["--config", "missing.toml"], "There is no configuration file missing.toml"),
    ):
        done = tape("serve", *arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert reason in done.stderr


def test_serve_takes_its_settings_from_file_variables_and_flags(tmp_path: Path) -> None:
    (tmp_path / "tape.toml").write_text('store = "sqlite:from-file.db"\nlisten = "127.0.0.1:1"\n')
    process = subprocess.Popen(
        [*TAPE, "serve", "--http-listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"TAPE_LISTEN": "127.0.0.1:0"},
    )
    try:
        assert process.stdout is not None
        greeting = [process.stdout.readline() for _ in range(9)]
        assert "sqlite:from-file.db" in greeting[1]
        assert (tmp_path / "from-file.db").exists()
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_a_terminal_shows_colour_and_progress(filled: ServerProcess, sqlite_url: str) -> None:
    assert "\x1b[" in in_a_terminal("tail", "--from", "start", "--no-follow", "--url", filled.url)
    assert "Verifying" in in_a_terminal("verify", "--store", sqlite_url)


def in_a_terminal(*arguments: str) -> str:
    """What a command writes when a person is looking."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*TAPE, *arguments], stdin=child, stdout=child, stderr=child, env=os.environ | {"TERM": "xterm-256color"}
    )
    os.close(child)
    seen = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([parent], [], [], 0.1)[0]:
            try:
                seen += os.read(parent, 65_536)
            except OSError:
                break
        elif process.poll() is not None:
            break
    os.close(parent)
    assert process.wait(120) == 0
    return seen.decode()


def metrics(server: ServerProcess) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=120) as response:
        text: str = response.read().decode()
        return text


def test_a_line_is_appended_while_the_input_is_still_open(running: ServerProcess) -> None:
    process = subprocess.Popen(
        [*TAPE, "append", "--url", running.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    for n in range(1, 4):
        process.stdin.write(json.dumps({"subject": "/tape/a/b", "payload": {"n": n}}) + "\n")
        process.stdin.flush()
        wait_for(lambda n=n: f"tape_journal_head {n}.0" in metrics(running), "the entry")  # type: ignore[misc]
    out, _ = process.communicate(timeout=120)
    assert out == "Appended 3 events: 1 to 3\n"


@pytest.mark.parametrize("option", ["--url", "--server"])
def test_commands_accept_both_names_for_the_address_of_the_server(running: ServerProcess, option: str) -> None:
    assert tape("playbooks", "list", option, running.url).returncode == 0
    assert tape("subscriptions", "list", option, running.http_url).returncode == 0


@pytest.mark.parametrize("option", ["--url", "--server"])
def test_the_address_of_the_wrong_port_is_rejected_with_the_right_one(option: str) -> None:
    done = tape("playbooks", "list", option, "http://127.0.0.1:7879")
    assert (done.returncode, done.stdout) == (1, "")
    assert "'http://127.0.0.1:7879' is an HTTP address; this command needs the gRPC address" in done.stderr
    assert "tape://127.0.0.1:7878 (--url or TAPE_URL; the gRPC port is 7878 by default)" in done.stderr
    done = tape("subscriptions", "list", option, "tape://127.0.0.1:7878")
    assert (done.returncode, done.stdout) == (1, "")
    assert "'tape://127.0.0.1:7878' is a gRPC address; this command needs the HTTP address" in done.stderr
    assert "http://127.0.0.1:7879 (--server or TAPE_SERVER_URL; the HTTP port is 7879 by default)" in done.stderr


def test_an_outage_is_read_from_both_ports(running: ServerProcess) -> None:
    done = tape("subscriptions", "outage", "shop/orders", "--server", running.http_url, "--url", running.url)
    assert "no subscription 'shop/orders' is registered" in done.stderr
    help_text = tape("subscriptions", "outage", "--help").stdout
    assert "GRPC_URL" in help_text
    assert "HTTP_URL" in help_text
