"""Shell scripts that start Java and Python for Spark, kept in the user's cache."""

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
    """Write an executable script below the cache folder of Tape unless it is there; return its path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "tape" / name
    if not (path.is_file() and path.read_text(encoding="utf-8") == text):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be executing the file, so it is replaced and never overwritten.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as written:
            written.write(text)
        Path(written.name).chmod(0o755)
        Path(written.name).replace(path)
    return path


def fast_python() -> Path:
    """Return a script that starts this Python for Spark's workers without Spark's zipped PySpark on the path.

    Modules in a zip file are compiled at every start: a worker then needs three times as long, and Spark waits at most
    ten seconds for it.
    """
    import pyspark

    if not Path(pyspark.__file__).is_file():
        return Path(sys.executable)  # only the zipped PySpark is installed
    # One script for each Python that uses this cache.
    name = f"python/{zlib.crc32(sys.executable.encode()):08x}/python"
    try:
        return script(name, _PYTHON % shlex.quote(sys.executable))
    except OSError:
        return Path(sys.executable)  # the cache is not writable: slower, but correct
