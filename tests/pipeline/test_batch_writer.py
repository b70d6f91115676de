"""A batch is appended once, across retries and kills of tasks and drivers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tape.errors import BatchOutOfOrder, InvalidSubject, PipelineInput
from tape.journal.verifier import verify
from tape.model.entry import Draft, checked
from tape.pipeline import batch_writer
from tape.pipeline.batch_writer import STEP_ENTRIES, append_batch, append_once, discard, stage
from tape.pipeline.journal_reader import query_store_once
from tape.store import open_database
from tests.pipeline.conftest import fill
from tests.pipeline.test_journal_source import entries_in


def drafts(count: int, run_id: str = "r") -> list[Draft]:
    return [checked(Draft(subject=f"/tape/order/created/{n}", run_id=run_id)) for n in range(count)]


@pytest.fixture
def store(store_url: str) -> str:
    open_database(store_url).migrate()
    return store_url


def subjects(store: str) -> list[str]:
    return [entry.subject for entry in entries_in(store)]


def staged(store: str) -> int:
    row = query_store_once(store, lambda reader: reader.one("SELECT count(*) FROM tape_staged"))
    assert row is not None
    return int(row[0])


def test_a_batch_keeps_the_order_of_its_tasks_and_rows(store: str) -> None:
    fill(store, drafts(3, "before"))
    one, two = stage(store, drafts(STEP_ENTRIES + 5)), stage(store, drafts(2))
    appended = append_batch(store, "p", "b", [one, two])
    assert appended == batch_writer.Appended(STEP_ENTRIES + 7, is_repeated=False)
    found = entries_in(store)[3:]
    assert [entry.seq for entry in found] == list(range(1, STEP_ENTRIES + 8))
    assert [entry.subject for entry in found] == [d.subject for d in (*drafts(STEP_ENTRIES + 5), *drafts(2))]
    assert staged(store) == 0
    assert query_store_once(store, verify).ok


def test_large_payloads_are_appended_in_smaller_steps(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_writer, "STEP_BYTES", 100)
    large = [checked(Draft(subject="/tape/a/b", payload_json=json.dumps("x" * 60))) for _ in range(6)]
    made = stage(store, large)
    assert made.steps == 3
    append_batch(store, "p", "b", [made])
    assert len(entries_in(store)) == 6


def test_a_repeated_batch_appends_nothing(store: str) -> None:
    append_batch(store, "p", "b", [stage(store, drafts(3))])
    again = append_batch(store, "p", "b", [stage(store, drafts(3))])
    assert again == batch_writer.Appended(3, is_repeated=True)
    assert len(entries_in(store)) == 3
    assert staged(store) == 0
    append_batch(store, "p", "c", [stage(store, drafts(1))])
    append_batch(store, "q", "b", [stage(store, drafts(1))])
    assert len(entries_in(store)) == 5


def test_what_was_sealed_first_is_what_is_appended(store: str) -> None:
    first = [stage(store, drafts(STEP_ENTRIES * 2, "first"))]
    batch_writer.transact(store, lambda tx: batch_writer._seal(tx, "p", "7", 7, first))
    batch_writer.transact(store, lambda tx: batch_writer._append_step(tx, "p", "7"))
    append_batch(store, "p", "7", [stage(store, drafts(10, "second"))], number=7)
    assert {entry.run_id for entry in entries_in(store)} == {"first"}
    assert len(entries_in(store)) == STEP_ENTRIES * 2
    assert staged(store) == 0


_KILLED = """
import os, signal, sys
from tape.pipeline import batch_writer
from tests.pipeline.test_batch_writer import drafts
store, kill_at = sys.argv[1], int(sys.argv[2])
real, done = batch_writer.transact, 0
def transact(store, operation):
    global done
    result = real(store, operation)
    done += 1
    if done == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
batch_writer.transact = transact
staged = batch_writer.stage(store, drafts(2 * batch_writer.STEP_ENTRIES + 1))
batch_writer.append_batch(store, "p", "0", [staged], number=0)
"""


@pytest.mark.parametrize("kill_at", [2, 4, 5, 6])
def test_a_driver_killed_at_any_commit_appends_its_batch_once(store: str, kill_at: int) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, store, str(kill_at)], check=False)
    assert killed.returncode == -signal.SIGKILL
    everything = drafts(2 * STEP_ENTRIES + 1)
    append_batch(store, "p", "0", [stage(store, everything)], number=0)
    assert subjects(store) == [draft.subject for draft in everything]
    assert query_store_once(store, verify).ok


def test_a_batch_of_another_stream_is_refused_and_not_swallowed(store: str) -> None:
    append_batch(store, "p", "5", [stage(store, drafts(1))], number=5)
    with pytest.raises(BatchOutOfOrder, match="has appended batch 5 already; batch 0 is older"):
        append_batch(store, "p", "0", [stage(store, drafts(1))], number=0)


def test_an_empty_batch_is_remembered_too(store: str) -> None:
    assert append_batch(store, "p", "0", [], number=0) == batch_writer.Appended(0, is_repeated=False)
    assert append_batch(store, "p", "0", [], number=0).is_repeated


def test_a_bad_row_leaves_nothing_behind(store: str) -> None:
    def rows() -> object:
        yield from drafts(STEP_ENTRIES + 1)
        raise InvalidSubject("Row 2002")

    with pytest.raises(InvalidSubject):
        stage(store, rows())  # type: ignore[arg-type]
    assert staged(store) == 0


def test_stages_can_be_thrown_away_and_nameless_batches_leave_no_trace(store: str) -> None:
    discard(store, [stage(store, drafts(2)).name])
    append_once(store, [stage(store, drafts(2))])
    assert staged(store) == 0
    assert query_store_once(store, lambda reader: reader.query("SELECT * FROM tape_batches")) == []
    assert len(entries_in(store)) == 2


def test_what_killed_tasks_left_is_dropped_after_a_day(store: str) -> None:
    stage(store, drafts(2))
    batch_writer.transact(store, lambda tx: tx.execute("UPDATE tape_staged SET ts_ms = 5"))
    append_batch(store, "p", "0", [stage(store, drafts(1))])
    assert staged(store) == 0


def test_ids_are_forgotten_when_they_are_old_enough_and_those_of_others_are_not(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "EXPIRED_IDS_PER_STEP", 2)
    remembered = [("mine", str(n), n) for n in range(10)] + [("theirs", "0", 0)]
    columns = ("producer", "row_id", "ts_ms")
    batch_writer.transact(store, lambda tx: tx.insert("tape_ingested", columns, remembered))
    assert batch_writer.expire_ids(store, "mine", before_ms=7) == 7
    assert batch_writer.expire_ids(store, "mine", before_ms=7) == 0
    left = query_store_once(
        store, lambda reader: reader.query("SELECT producer, row_id FROM tape_ingested ORDER BY 1, 2")
    )
    assert left == [("mine", "7"), ("mine", "8"), ("mine", "9"), ("theirs", "0")]


def test_an_outdated_database_raises_an_error_that_names_the_migration(sqlite_url: str) -> None:
    connection = open_database(sqlite_url).connect()
    connection.close()
    with pytest.raises(PipelineInput, match="tape migrate"):
        append_once(sqlite_url, [])
