"""Opens a Spark session for jobs and tests, with a suitable Java and Tape's data sources registered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tape.errors import MissingExtra
from tape.pipeline import register
from tape.pipeline.java import find_java
from tape.pipeline.launchers import fast_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Serial collector and C1 compiler only: a shorter start for jobs that run for seconds.
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
DEFAULT_MASTER = "local[*]"

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The default of 200 partitions means 200 tiny tasks on one machine.
    "spark.sql.shuffle.partitions": "4",
    # How long stop() waits for a streaming query to end.
    "spark.sql.streaming.stopTimeout": "30s",
}


def submitted() -> dict[str, str]:
    """Return the settings of spark-submit; empty if this process was started otherwise."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # the settings are in the JVM of spark-submit
    return dict(SparkConf().getAll())


def open_session(
    name: str, master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None, *, quick: bool = False
) -> SparkSession:
    """Open a session with `format("tape")`; `quick` starts faster and computes slower.

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
        # Local workers use the Python of this process, also from a virtual environment.
        os.environ.setdefault("PYSPARK_PYTHON", str(fast_python()))
    if quick:
        chosen["spark.driver.extraJavaOptions"] = QUICK_JVM
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
