"""Rows of files and streams become entries, each once; what cannot is kept and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession

from tape.errors import CheckpointRefused, PipelineInput
from tape.pipeline import batch_writer
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.ingest import IngestJob, ingest
from tape.pipeline.jobs.ingest_stream import StreamInput, ingest_stream
from tape.pipeline.row_mapping import FieldMapping, read_mapping
from tape.store import open_database
from tests.pipeline.test_journal_source import entries_in

ORDERS = FieldMapping({"run_id": "who", "tenant": "'shop'"}, {"subject": "/tape/order/imported/{id}"})


def write(path: Path, rows: list[Any]) -> str:
    """A file of JSON lines; a text is a line as it is."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def numbers_in(store: str) -> list[int]:
    return sorted(int(entry.subject.rpartition("/")[2]) for entry in entries_in(store))


def rejects_in(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()]


def rows(*numbers: int) -> list[dict[str, object]]:
    return [{"id": number, "who": f"w{number}"} for number in numbers]


def test_rows_are_known_by_their_id_within_a_run_and_in_every_other(
    spark: SparkSession, store_url: str, tmp_path: Path
) -> None:
    open_database(store_url).migrate()
    job = IngestJob(store_url, ORDERS, unique="id", rejects=str(tmp_path / "bad"))
    first = write(tmp_path / "a.jsonl", rows(*range(30), *range(10)))
    done = ingest(spark, job, first)
    assert (done.rows, done.entries, done.duplicates, done.rejected) == (40, 30, 10, 0)
    assert ingest(spark, job, first).entries == 0
    write(tmp_path / "a.jsonl", rows(*range(35)))  # it has grown
    assert ingest(spark, job, first).entries == 5
    second = write(tmp_path / "b.jsonl", rows(*range(20, 50)))
    assert ingest(spark, job, second).entries == 15
    assert numbers_in(store_url) == list(range(50))
    forgetful = msgspec.structs.replace(job, unique_days=1)
    assert ingest(spark, forgetful, second).forgotten == 0
    batch_writer.transact(store_url, lambda tx: tx.execute("UPDATE tape_ingested SET ts_ms = 0 WHERE row_id = '7'"))
    assert ingest(spark, forgetful, second).forgotten == 1
    entries = entries_in(store_url)
    assert {entry.tenant for entry in entries} == {"shop"}
    assert all(entry.payload == {"id": int(entry.run_id[1:]), "who": entry.run_id} for entry in entries)


def test_without_ids_a_batch_is_known_by_its_name(spark: SparkSession, sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).migrate()
    job = IngestJob(sqlite_url, ORDERS, rejects=str(tmp_path / "bad"))
    path = write(tmp_path / "a.jsonl", rows(1, 1, 2))
    assert ingest(spark, job, path).entries == 3
    again = ingest(spark, job, path)
    assert (again.entries, again.is_repeated) == (0, True)
    assert numbers_in(sqlite_url) == [1, 1, 2]


def test_a_run_that_was_killed_while_it_appended_is_finished_by_the_next(
    spark: SparkSession, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(sqlite_url).migrate()
    job = IngestJob(sqlite_url, ORDERS, unique="id", rejects=str(tmp_path / "bad"))
    write(tmp_path / "a1.jsonl", rows(*range(12)))
    write(tmp_path / "a2.jsonl", rows(*range(12, 25)))
    path = f"{tmp_path}/a*.jsonl"
    plan, steps = batch_writer._append_step, iter((True, False))

    class Died(Exception):
        pass

    def mortal(*arguments: Any) -> Any:
        if next(steps):
            return plan(*arguments)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(batch_writer, "_append_step", mortal)
        with pytest.raises(Died):
            ingest(spark, job, path)
    half = len(numbers_in(sqlite_url))
    ingest(spark, job, path)
    assert half in (12, 13)
    assert numbers_in(sqlite_url) == list(range(25))


def test_bad_rows_are_kept_with_their_reason_and_secrets_are_taken_out(
    spark: SparkSession, sqlite_url: str, tmp_path: Path
) -> None:
    open_database(sqlite_url).migrate()
    lines = [
        {"id": 1, "kind": "order", "verb": "paid", "password": "hush"},
        "{broken",
        {"id": 2, "kind": "order", "verb": None},
        {"id": None, "kind": "order", "verb": "paid"},
        {"id": 4, "kind": "or der\u0000", "verb": "paid"},
        {"id": 5, "kind": "metric", "verb": "taken", "password": "kept"},
    ]
    path = write(tmp_path / "a.jsonl", lines)
    mapping = FieldMapping({"kind": "kind", "verb": "verb", "dims": "id"})
    bad = tmp_path / "bad"
    job = IngestJob(sqlite_url, mapping, unique="id", rejects=str(bad), safe_types=("metric.*",))
    done = ingest(spark, job, path)
    assert (done.rows, done.entries, done.rejected) == (6, 2, 4)
    entries = {entry.subject: entry.payload for entry in entries_in(sqlite_url)}
    assert entries["/tape/order/paid/1"]["password"] == "***"
    assert entries["/tape/metric/taken/5"]["password"] == "kept"
    kept = {one["row"]: one["reason"] for one in rejects_in(bad)}
    assert len(kept) == 4
    assert "cannot be parsed" in kept["{broken"]
    reasons = " ".join(kept.values())
    assert "subject is null" in reasons
    assert "id is null" in reasons
    ingest(spark, job, path, batch_id="again")
    ingest(spark, job, path, batch_id="again")
    assert len(list(bad.iterdir())) == 2, "a repeated batch has its rejects once"


def test_a_stream_goes_on_where_it_was_and_refuses_other_options(
    spark: SparkSession, store_url: str, tmp_path: Path, checkpoint: str
) -> None:
    open_database(store_url).migrate()
    folder = tmp_path / "in"
    at = {"at": "2026-01-31T12:00:00Z"}
    write(folder / "a.jsonl", [row | at for row in rows(1, 2, 2, 3)])
    job = IngestJob(store_url, ORDERS, unique="id", rejects=str(tmp_path / "bad"))
    how = StreamInput(watermark="at=10 minutes")
    running = JobContext("ingest", quiet=True)
    done = ingest_stream(spark, job, str(folder), checkpoint, running, how)
    assert (done.entries, done.rejected) == (3, 0)
    write(folder / "b.jsonl", [*(row | at for row in rows(3, 4)), "{broken"])
    done = ingest_stream(spark, job, str(folder), checkpoint, running, how)
    assert (done.entries, done.rejected) == (1, 1)
    assert ingest_stream(spark, job, str(folder), checkpoint, running, how).rows == 0
    # Another stream over the same files, as after a lost checkpoint: the ids are known.
    assert ingest_stream(spark, job, str(folder), f"{checkpoint}-2", running, how).entries == 0
    assert numbers_in(store_url) == [1, 2, 3, 4]
    figures = generate_latest(running.registry).decode()
    assert 'what="rejected"} 2.0' in figures
    assert 'tape_pipeline_entries_total{job="ingest"} 14.0' in figures, "every row that was read, by Spark's own count"
    other = IngestJob(store_url, ORDERS, unique="who", rejects=str(tmp_path / "bad"))
    with pytest.raises(CheckpointRefused, match=r"unique was 'id', now it is 'who'.* Give another --checkpoint"):
        ingest_stream(spark, other, str(folder), checkpoint, running, how)


def test_a_bad_mapping_is_named(spark: SparkSession, sqlite_url: str, tmp_path: Path) -> None:
    open_database(sqlite_url).migrate()
    path = write(tmp_path / "a.jsonl", [{"id": 1}])
    for mapping, unique, message in (
        (FieldMapping({"colour": "id"}), "", "names no field of an entry; known are subject"),
        (FieldMapping({"run_id": "id"}), "", "--map subject=… is missing"),
        (FieldMapping({"subject": "nonsense"}), "", "--map subject=nonsense cannot be used: "),
        (FieldMapping({"subject": "id", "verb": "id"}), "", "both define the subject"),
        (
            FieldMapping({"subject": "'/tape/a/b'"}),
            "nothing",
            "--unique 'nothing' is no column of the input; it has id",
        ),
    ):
        with pytest.raises(PipelineInput) as caught:
            ingest(spark, IngestJob(sqlite_url, mapping, unique=unique, rejects=str(tmp_path / "bad")), path)
        assert message in str(caught.value)
    with pytest.raises(PipelineInput, match="cannot be read as json"):
        ingest(spark, IngestJob(sqlite_url, ORDERS), str(tmp_path / "nowhere"))


def test_a_mapping_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text('[map]\ntenant = "\'shop\'"\n[template]\nsubject = "/tape/order/paid/{id}"\n')
    found = read_mapping(str(path)).both(FieldMapping({"subject": "path"}))
    assert found == FieldMapping({"tenant": "'shop'", "subject": "path"}, {})
    path.write_text("[mapp]\n")
    with pytest.raises(PipelineInput, match="unknown field `mapp`"):
        read_mapping(str(path))
