"""No password in output, logs and errors; no file that others can read."""

from __future__ import annotations

import io
import logging
import stat
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tape.base.config import Settings
from tape.base.private_files import is_private
from tape.base.url_mask import MaskingFormatter, mask_urls
from tape.cli import doctor, serve
from tape.cli.options import read_secret_file, warn_of_secret
from tape.engine.security import artifacts
from tape.errors import InvalidInput, SchemaOutdated, StoreError, UnknownStore
from tape.store import open_database
from tape.store.database import Database
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.disk import DiskBackend

PASSWORD = "s3cr3t-Passw0rd"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgres://tape:{PASSWORD}@db:5432/tape", "postgres://tape:***@db:5432/tape"),
        (f"postgres://tape:a@{PASSWORD}@db/tape", "postgres://tape:***@db/tape"),
        (f"postgres://tape:a/{PASSWORD}@db/tape", "postgres://tape:***@db/tape"),
        ("postgres://tape@db/tape", "postgres://tape@db/tape"),
        (f"postgres://db/tape?user=a&password={PASSWORD}&x=1", "postgres://db/tape?user=a&password=***&x=1"),
        (f"nats://{PASSWORD}@broker:4222", "nats://***@broker:4222"),
        (f"nats://a:{PASSWORD}@b:1,nats://a:{PASSWORD}@c:2", "nats://a:***@b:1,nats://a:***@c:2"),
        (f"https://host/hook?access_token={PASSWORD}#x", "https://host/hook?access_token=***#x"),
        (f"https://host/hook?sig={PASSWORD}", "https://host/hook?sig=***"),
        (f"redis://:{PASSWORD}@cache", "redis://:***@cache"),
        (f'cannot open "amqp://u:{PASSWORD}@mq" now', 'cannot open "amqp://u:***@mq" now'),
        ("http://127.0.0.1:7879/a@b?page_size=3", "http://127.0.0.1:7879/a@b?page_size=3"),
        ("tape://[::1]:7878", "tape://[::1]:7878"),
        ("sqlite:tape.db, mail a:b@c", "sqlite:tape.db, mail a:b@c"),
    ],
)
def test_credentials_of_urls_are_masked(url: str, shown: str) -> None:
    assert mask_urls(url) == shown


def test_masking_is_linear_in_the_text() -> None:
    begin = time.thread_time()
    for unit in ("://a:", "://a", "?token", "://a:b/", "&a"):
        mask_urls("http://x" + unit * 40_000)
    assert time.thread_time() - begin < 3


def test_a_log_line_shows_no_password_nor_does_its_traceback() -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(MaskingFormatter("%(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        raise ValueError(f"postgres://tape:{PASSWORD}@db failed")
    except ValueError:
        log.exception("cannot use %s", f"postgres://tape:{PASSWORD}@db")
    assert "cannot use postgres://tape:***@db" in output.getvalue()
    assert PASSWORD not in output.getvalue()


def test_the_banner_of_the_server_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    serve._greet(Settings(store=f"postgres://tape:{PASSWORD}@db/tape"), "127.0.0.1:7878", "127.0.0.1:7879")
    assert "postgres://tape:***@db/tape" in capsys.readouterr().out


def test_the_doctor_and_the_errors_of_a_store_show_no_password() -> None:
    url = f"postgres://tape:{PASSWORD}@127.0.0.1:1/tape?connect_timeout=1"
    check = doctor._store(url)
    assert check.verdict == "problem"
    assert PASSWORD not in check.found + check.remedy
    with pytest.raises(UnknownStore) as unknown:
        open_database(f"mysql://tape:{PASSWORD}@db/tape")
    assert PASSWORD not in str(unknown.value)
    with pytest.raises(StoreError) as wrong:
        open_database(f"postgres://tape:{PASSWORD}@db:port/tape").connect()
    assert PASSWORD not in str(wrong.value)


def test_an_outdated_database_is_named_without_its_password(tmp_path: Path) -> None:
    database: Database = open_database(f"sqlite:{tmp_path / 'tape.db'}", migrate=False)
    database.url = f"postgres://tape:{PASSWORD}@db/tape"
    with pytest.raises(SchemaOutdated) as raised:
        database._prepare()
    assert "tape migrate --store postgres://tape:***@db/tape" in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_a_token_on_the_command_line_is_accepted_with_a_warning(tmp_path: Path) -> None:
    app = typer.Typer()

    @app.command()
    def show(context: typer.Context, token: str = typer.Option("", envvar="TAPE_TEST_TOKEN")) -> None:
        warn_of_secret(context, "token", "set TAPE_TEST_TOKEN or use --token-file")
        typer.echo(token)

    given = CliRunner().invoke(app, ["--token", "t0p"])
    assert "warning: --token is visible in the process list; set TAPE_TEST_TOKEN" in given.output
    assert CliRunner().invoke(app, [], env={"TAPE_TEST_TOKEN": "t0p"}).output == "t0p\n"
    file = tmp_path / "token"
    file.write_text("t0p\n")
    assert read_secret_file("--token-file", file) == "t0p"
    with pytest.raises(InvalidInput, match="--token-file"):
        read_secret_file("--token-file", tmp_path / "none")


def modes(folder: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


async def test_the_database_and_the_files_beside_it_are_private(tmp_path: Path) -> None:
    path = tmp_path / "tape.db"
    async with open_database(f"sqlite:{path}") as database:
        await database.write(lambda tx: None, 0)
        names = {file.name for file in tmp_path.iterdir()}
        assert {"tape.db", "tape.db-wal", "tape.db-shm"} <= names
        assert modes(tmp_path) == {(False, 0o600)}


async def test_artifacts_and_spools_are_private(tmp_path: Path) -> None:
    await artifacts._open(str(tmp_path / "artifacts")).put("a/b.json", b"{}")
    spool = DiskBackend(tmp_path / "spool" / "orders")
    assert await spool.claim()
    await spool.put(Area.LIVE, [("k", b"{}")])
    await spool.close()
    assert len(list(tmp_path.rglob("*"))) >= 6
    assert modes(tmp_path) == {(True, 0o700), (False, 0o600)}


def test_the_doctor_warns_of_files_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "tape.db"
    path.touch(0o600)
    settings = Settings(store=f"sqlite:{path}")
    assert doctor._files(settings).verdict == "ok"
    path.chmod(0o644)
    assert not is_private(path)
    check = doctor._files(settings)
    assert (check.verdict, check.remedy) == ("warning", f"chmod -R go= {path}")
