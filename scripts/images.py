"""Compares the digests of the container images in deploy/ with those that their tags have now: `make images`.

It asks the registry with `docker buildx imagetools inspect`. With --write it writes the new digests.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parent.parent / "deploy"
FILES = ("Dockerfile", "compose.yaml")
PINNED = re.compile(r"(?P<tag>[a-z0-9./-]+:[A-Za-z0-9._-]+)@(?P<digest>sha256:[0-9a-f]{64})")


def main() -> int:
    """Print every image whose tag has another digest now; exits with 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the new digests into the files")
    is_written = parser.parse_args().write
    if shutil.which("docker") is None:
        print("not checked: docker is not installed.")
        return 0
    is_outdated = False
    for path in (DEPLOY / name for name in FILES):
        text = path.read_text()
        for tag, digest in sorted(set(PINNED.findall(text))):
            current = current_digest(tag)
            if current is None:
                print(f"{tag}: not checked, the registry cannot be reached.")
            elif current != digest:
                print(f"{path.name}: {tag} is {current} now, not {digest}.")
                text = text.replace(f"{tag}@{digest}", f"{tag}@{current}")
                is_outdated = True
        if is_written:
            path.write_text(text)
    return int(is_outdated and not is_written)


def current_digest(tag: str) -> str | None:
    """The digest of a tag in its registry; None if the registry cannot be reached."""
    command = ["docker", "buildx", "imagetools", "inspect", tag, "--format", "{{.Manifest.Digest}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = done.stdout.strip()
    return found if done.returncode == 0 and re.fullmatch(r"sha256:[0-9a-f]{64}", found) else None


if __name__ == "__main__":
    sys.exit(main())
