"""A Spark session for jobs and tests: the right Java, quick to start, Tape's format known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tape.errors import MissingExtra
from tape.pipeline import register
from tape.pipeline.java import find_java
from tape.pipeline.scripts import quick_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def submitted() -> dict[str, str]:
    """The settings that spark-submit has given to this process; none if it was started otherwise."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # the settings are in the JVM that submits
    return dict(SparkConf().getAll())


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
    os.environ["JAVA_HOME"] = str(find_java().parent.parent)
    builder = SparkSession.builder.appName(f"tape-{name}").master(master)
    chosen = {key: value for key, value in _SETTINGS.items() if key not in submitted()}
    if not master.startswith("local"):
        chosen.pop("spark.sql.shuffle.partitions", None)
    else:
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        # Workers on this machine run where this process runs, also from a virtual environment.
        os.environ.setdefault("PYSPARK_PYTHON", str(quick_python()))
    if quick:
        chosen["spark.driver.extraJavaOptions"] = QUICK_JVM
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
