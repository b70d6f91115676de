"""Programs from Debian's packages, unpacked into a folder of the temporary directory and installed nowhere."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

DOWNLOAD_S = 180


class NotAvailable(Exception):
    """The packages cannot be had on this machine; the text says why."""


def unpack(package: str) -> Path:
    """The folder with the files of a package and of what it depends on. Raises NotAvailable.

    The folder stays, so that the next process finds it.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotAvailable(f"{package} is not installed, and this machine has no apt-get and dpkg-deb to fetch it")
    release = hashlib.sha256(Path("/etc/os-release").read_bytes()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"tape-{os.getuid()}-{package}-{release}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise NotAvailable(f"{folder} belongs to another user")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            try:
                _fetch(package, folder)
            except (subprocess.SubprocessError, OSError) as error:
                output = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
                raise NotAvailable(
                    f"{package} is not installed and cannot be fetched with apt-get: {output or error}"
                ) from error
            (folder / "complete").touch()
    return folder


def _fetch(package: str, folder: Path) -> None:
    try:
        names = _needed(package)
    except subprocess.CalledProcessError:
        _run("apt-get", "update", folder=folder)  # a fresh image has no lists of packages; needs root
        names = _needed(package)
    for old in folder.glob("*.deb"):
        old.unlink()
    _run("apt-get", "download", *names, folder=folder)
    for archive in folder.glob("*.deb"):
        _run("dpkg-deb", "-x", str(archive), str(folder), folder=folder)
        archive.unlink()


def _needed(package: str) -> list[str]:
    """The package, and what it depends on and is not installed."""
    command = ("apt-get", "-s", "--no-install-recommends", "install", package)
    return re.findall(r"^Inst (\S+)", _run(*command).decode(), re.MULTILINE)


def _run(*command: str, folder: Path | None = None) -> bytes:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_S).stdout
