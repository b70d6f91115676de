"""Run failed tests again, alone: `python scripts/rerun_failed.py FILE`, with one test id per line.

A test that fails among others and passes alone depends on load or order. It is listed as FLAKY and has to be mended,
but it does not hide what all the other tests say. More than three failures are not run again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MOST = 3


def main(file: str) -> int:
    """Exit with 0 if every failed test passes alone."""
    failed = sorted(set(Path(file).read_text(encoding="utf-8").splitlines()))
    if not 0 < len(failed) <= MOST:
        return 1
    print(f"\n{len(failed)} failed; running them again, alone.", flush=True)
    done = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *failed])
    if done.returncode == 0:
        print("".join(f"FLAKY, to be mended: {test}\n" for test in failed), flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
