"""Settings: where they come from, which wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tape.base.config import Settings, load_pipeline_settings, load_settings, parse_address
from tape.errors import InvalidConfig


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_win_over_variables_over_the_file_over_defaults(empty_folder: Path) -> None:
    assert load_settings({}, {}) == Settings()
    (empty_folder / "tape.toml").write_text('store = "sqlite:file.db"\nreaders = 2\nqueue_operations = 7\n')
    env = {"TAPE_READERS": "3", "TAPE_QUEUE_OPERATIONS": "8"}
    settings = load_settings({"queue_operations": 9, "listen": None}, env)
    assert (settings.store, settings.readers, settings.queue_operations) == ("sqlite:file.db", 3, 9)
    assert settings.listen == Settings().listen


def test_the_file_has_tables_for_the_archive_and_for_spark(empty_folder: Path) -> None:
    (empty_folder / "tape.toml").write_text(
        '[archive]\nlake = "a"\n[archive.options]\naws_region = "x"\naws_allow_http = true\n'
        '[pipeline]\nmaster = "local[3]"\n[pipeline.spark]\n"spark.executor.cores" = 4\n'
    )
    settings = load_settings({}, {})
    assert (settings.lake, dict(settings.lake_options)) == ("a", {"aws_region": "x", "aws_allow_http": "true"})
    assert load_settings({}, {"TAPE_LAKE": "b"}).lake == "b"
    assert load_settings({"lake": "c"}, {"TAPE_LAKE": "b"}).lake == "c"
    pipeline = load_pipeline_settings({})
    assert (pipeline.master, dict(pipeline.spark)) == ("local[3]", {"spark.executor.cores": "4"})
    assert (pipeline.lake, pipeline.lake_options) == ("a", settings.lake_options)
    assert load_pipeline_settings({"TAPE_LAKE": "b"}).lake == "b"
    with pytest.raises(InvalidConfig, match="no configuration file other"):
        load_pipeline_settings({"TAPE_CONFIG": "other.toml"})


def test_older_names_still_work() -> None:
    settings = load_settings({}, {"TAPE_DB": "sqlite:old.db", "TAPE_HEALTHZ_LISTEN": "127.0.0.1:9"})
    assert (settings.store, settings.http_listen) == ("sqlite:old.db", "127.0.0.1:9")
    assert load_settings({}, {"TAPE_DB": "old.db", "TAPE_STORE": "new.db"}).store == "new.db"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('stroe = "x"', "unknown key 'stroe'. Did you mean 'store'?"),
        ('readers = "many"', "readers is 'many' (tape.toml); it must be int"),
        ("readers = true", "readers is True in tape.toml"),
        ("readers = 0", "readers is 0; it must be at least 1"),
        ("shutdown_grace_s = -1", "must not be negative"),
        ("sqlite_wal_bytes = 1048575", "sqlite_wal_bytes is 1048575; it must be at least 1048576, 1 MiB"),
        ("sqlite_cache_bytes = 0", "sqlite_cache_bytes is 0; it must be at least 1048576, 1 MiB"),
        ('server_id = "a#1"', "server_id is 'a#1'; use up to 128 printable characters without #"),
        (f'server_id = "{"a" * 129}"', "use up to 128 printable characters"),
        ('log_level = "loud"', "use debug, info, warning or error"),
        ("readers", "cannot be read as TOML"),
        ('listen = "7878"', "write it as host:port"),
        ('archive = "lake"', "archive as 'lake'; it must be a table: [archive]"),
        ("[archive]\nlaek = 1", "unknown key 'archive.laek'. Did you mean 'archive.lake'?"),
        ("[pipeline]\nmaster = 4", "pipeline.master as 4; it must be a text"),
        ("[pipeline]\nspark = 4", "pipeline.spark as 4; it must be a table: [pipeline.spark]"),
        ('[pipeline.spark]\n"a" = []', "pipeline.spark.a as []; it must be a text or a number"),
        ('lake_options = "x"', "unknown key 'lake_options'"),
    ],
)
def test_an_invalid_file_is_rejected_with_the_key_at_fault(empty_folder: Path, content: str, reason: str) -> None:
    (empty_folder / "tape.toml").write_text(content)
    with pytest.raises(InvalidConfig) as raised:
        load_settings({}, {})
    assert reason in str(raised.value)


def test_nonsense_in_a_variable_is_named() -> None:
    with pytest.raises(InvalidConfig, match=r"readers is 'x' \(TAPE_READERS\)"):
        load_settings({}, {"TAPE_READERS": "x"})


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:1", ("127.0.0.1", 1)), (":7878", ("0.0.0.0", 7878)), ("[::1]:5", ("::1", 5)), ("host:0", ("host", 0))],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address("listen", text) == address
