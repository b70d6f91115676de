"""What an error of a database means: only proven damage is damage, what may pass is retryable."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest
from psycopg import errors

from tape.errors import InvalidInput, StoreBusy, StoreDamaged, StoreError, StoreFull, StoreUnavailable, TapeError
from tape.store import postgres, sqlite
from tape.store.sqlite import SqliteConnection

SQLITE = {
    StoreDamaged: "CORRUPT CORRUPT_INDEX CORRUPT_VTAB NOTADB IOERR_CORRUPTFS IOERR_SHORT_READ IOERR_DATA",
    StoreUnavailable: (
        "IOERR IOERR_READ IOERR_WRITE IOERR_FSYNC IOERR_FSTAT IOERR_SHMMAP IOERR_LOCK IOERR_NOMEM IOERR_IN_PAGE NOMEM"
        " CANTOPEN CANTOPEN_ISDIR READONLY READONLY_DBMOVED PERM"
    ),
    StoreBusy: "BUSY BUSY_RECOVERY BUSY_SNAPSHOT BUSY_TIMEOUT LOCKED LOCKED_SHAREDCACHE PROTOCOL INTERRUPT",
    StoreFull: "FULL",
    StoreError: "ERROR CONSTRAINT_UNIQUE MISUSE",
}
POSTGRES = {
    StoreDamaged: "XX000 XX001 XX002",
    StoreUnavailable: (
        "58000 58030 58P01 57P01 57P02 57P03 57P04 57P05 53000 53200 53300 53400 08000 08001 08003 08006 08P01"
        " 25006 25P03 25P04"
    ),
    StoreBusy: "57014 55P03 40001 40P01",
    StoreFull: "53100",
    InvalidInput: "22021 22003",
    StoreError: "42P01 23505",
}


def cases(table: dict[type[TapeError], str]) -> list[tuple[str, type[TapeError]]]:
    return [(name, kind) for kind, names in table.items() for name in names.split()]


@pytest.mark.parametrize(("name", "kind"), cases(SQLITE))
def test_an_error_of_sqlite_says_whether_to_retry(name: str, kind: type[TapeError], tmp_path: Path) -> None:
    error = apsw.exception_for(getattr(apsw, f"SQLITE_{name}"))
    assert type(sqlite.translate(error, tmp_path / "tape.db")) is kind


@pytest.mark.parametrize(("state", "kind"), cases(POSTGRES))
def test_an_error_of_postgresql_says_whether_to_retry(state: str, kind: type[TapeError]) -> None:
    assert type(postgres.translate(errors.lookup(state)("it failed"))) is kind


@pytest.mark.parametrize("error", [psycopg.OperationalError("server closed the connection"), psycopg.InterfaceError()])
def test_a_lost_connection_is_unavailability(error: psycopg.Error) -> None:
    assert type(postgres.translate(error)) is StoreUnavailable


def test_what_may_pass_is_retryable_and_damage_is_not() -> None:
    assert [kind.retryable for kind in (StoreUnavailable, StoreBusy, StoreFull)] == [True] * 3
    assert not StoreDamaged.retryable


def test_damage_is_named_even_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "has_free_space", lambda path: False)
    found = [sqlite.translate(apsw.exception_for(code), tmp_path) for code in (apsw.SQLITE_CORRUPT, apsw.SQLITE_IOERR)]
    assert [type(error) for error in found] == [StoreDamaged, StoreFull]


def test_a_reader_creates_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        SqliteConnection(tmp_path / "tape.db", read_only=True, durable=True)
    assert not list(tmp_path.iterdir())


def test_a_file_of_other_bytes_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "tape.db"
    path.write_bytes(b"no database " * 1_000)
    with pytest.raises(StoreDamaged, match="tape verify"):
        SqliteConnection(path, read_only=False, durable=True)
