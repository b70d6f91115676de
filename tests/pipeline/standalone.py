"""A standalone Spark cluster of this machine: a master and workers as processes of their own, on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tape.pipeline.java import find_java
from tests.services import free_port, wait_for

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Standalone:
    """`with Standalone(folder, workers=2) as cluster`: `cluster.url` is what to give to `--master`."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._wanted = folder, workers
        self._port, self._page = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start("master.Master", "--port", str(self._port), "--webui-port", str(self._page))
            wait_for(lambda: self.workers() == 0, "the master", 120)
            for number in range(self._wanted):
                work = self._folder / f"worker-{number}"
                limits = ("--cores", "1", "--memory", "1g", "--webui-port", str(free_port()))
                self._start("worker.Worker", *limits, "--work-dir", str(work), self.url)
            wait_for(lambda: self.workers() == self._wanted, "the workers", 120)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def workers(self) -> int:
        """How many workers the master knows; -1 while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as page:
                return sum(worker["state"] == "ALIVE" for worker in json.load(page)["workers"])
        except OSError:
            return -1

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        found = []
        for process in self._processes:
            children = Path(f"/proc/{process.pid}/task").glob("*/children")
            pids = {int(pid) for file in children for pid in _text(file).split()}
            found += [pid for pid in pids if "CoarseGrainedExecutorBackend" in _text(Path(f"/proc/{pid}/cmdline"))]
        return sorted(found)

    def _start(self, what: str, *arguments: str) -> None:
        env = os.environ | {
            "JAVA_HOME": str(find_java().parent.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1", *arguments]
        with (self._folder / f"{what}-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, process_group=0)
        self._processes.append(process)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
