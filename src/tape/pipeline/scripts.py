"""Small programs that Spark is started with, kept in the user's cache."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import zlib
from pathlib import Path

_PYTHON = """\
#!/bin/sh
IFS=:
kept=
for one in $PYTHONPATH; do
  case $one in */pyspark.zip | */py4j-*-src.zip) ;; *) kept=$kept${kept:+:}$one ;; esac
done
unset IFS
PYTHONPATH=$kept exec %s "$@"
"""


def script(name: str, text: str) -> Path:
    """A program of that name and text below the cache of Tape."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "tape" / name
    if not (path.is_file() and path.read_text(encoding="utf-8") == text):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be starting it: it is replaced, never written to.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as written:
            written.write(text)
        Path(written.name).chmod(0o755)
        Path(written.name).replace(path)
    return path


def quick_python() -> Path:
    """This Python for Spark's workers, without the zipped PySpark that Spark puts before the installed one.

    What is in a zip file is compiled at every start: a worker then takes three times as long to begin, and Spark waits
    ten seconds for it at most.
    """
    import pyspark

    if not Path(pyspark.__file__).is_file():
        return Path(sys.executable)  # there is only the zipped one
    # One for each Python that uses this cache.
    name = f"python/{zlib.crc32(sys.executable.encode()):08x}/python"
    try:
        return script(name, _PYTHON % shlex.quote(sys.executable))
    except OSError:
        return Path(sys.executable)  # a home that cannot be written to: slower, and right
