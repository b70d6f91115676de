"""A Spark session for jobs and tests: the right Java, quick to start, Tape's format known."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tape.errors import JavaMissing, MissingExtra
from tape.pipeline import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
# A small heap's collector and a quick compiler: for jobs that live seconds the start is shorter.
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
DEFAULT_MASTER = "local[*]"

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # On one machine a shuffle over 200 partitions is 200 tiny tasks.
    "spark.sql.shuffle.partitions": "4",
    # A query that is told to stop has this long to end.
    "spark.sql.streaming.stopTimeout": "30s",
}


def open_session(
    name: str, master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None, *, quick: bool = False
) -> SparkSession:
    """A session that knows `format("tape")`; `quick` starts faster and computes slower.

    Raises MissingExtra without PySpark, JavaMissing without a Java that it can use.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as missing:
        raise MissingExtra("The data pipeline", "spark") from missing
    os.environ.setdefault("JAVA_HOME", str(find_java().parent.parent))
    builder = SparkSession.builder.appName(f"tape-{name}").master(master)
    chosen = dict(_SETTINGS)
    if not master.startswith("local"):
        del chosen["spark.sql.shuffle.partitions"]
    else:
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        # Workers on this machine run where this process runs, also from a virtual environment.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if quick:
        chosen["spark.driver.extraJavaOptions"] = QUICK_JVM
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def find_java() -> Path:
    """The Java that Spark will run on. Raises JavaMissing with the remedy."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if not found.is_file():
        where = f"JAVA_HOME is {home!r}, where there is none" if home else "there is none on the PATH"
        raise JavaMissing(f"Spark needs Java {OLDEST_JAVA} or later: {where}. {_remedy()}")
    version = java_version(found)
    if version < OLDEST_JAVA:
        raise JavaMissing(f"Spark needs Java {OLDEST_JAVA} or later; {found} is Java {version}. {_remedy()}")
    return found.resolve()


def java_version(java: Path) -> int:
    """The main number of a Java's version; 0 if it does not say one."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr  # noqa: S603  (the Java that the user chose)
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0


def _remedy() -> str:
    return "Install one (Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME to it."
