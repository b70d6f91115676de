"""An MQTT broker for tests: mosquitto, installed or from Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.debian_packages import unpack
from tests.services import free_port, is_listening, wait_for

_INSTALLED = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"


def find_mosquitto() -> tuple[str, dict[str, str]]:
    """The program, and the environment it runs in. Raises NotAvailable."""
    if found := shutil.which("mosquitto") or shutil.which("mosquitto", path=_INSTALLED):
        return found, {}
    folder = unpack("mosquitto")
    libraries = [str(each) for each in folder.glob("**/*-linux-gnu*") if each.is_dir()]
    return str(folder / "usr/sbin/mosquitto"), {"LD_LIBRARY_PATH": ":".join(libraries)}


class Mosquitto:
    """mosquitto on a free port with its usual limits; it keeps sessions on disk and can be stopped and started."""

    def __init__(self, config: str = "allow_anonymous true", listener: str = "") -> None:
        self._config, self._listener = config, listener

    def __enter__(self) -> Mosquitto:
        self._program, more = find_mosquitto()
        self._environment = os.environ | more
        self._folder = tempfile.TemporaryDirectory(prefix="tape-mqtt-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)
        self._folder.cleanup()

    def start(self) -> None:
        """Start it on its port; nothing if it runs."""
        if self._process is not None:
            return
        folder = Path(self._folder.name)
        user = "user root\n" if os.getuid() == 0 else ""
        (folder / "mosquitto.conf").write_text(
            f"{user}persistence true\npersistence_location {folder}/\nlistener {self.port} 127.0.0.1\n"
            f"{self._listener}\n{self._config}\n"
        )
        log = (folder / "log").open("ab")
        command = [self._program, "-c", str(folder / "mosquitto.conf")]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        log.close()
        wait_for(lambda: is_listening(self.address), "mosquitto")

    def stop(self) -> None:
        """Shut it down; sessions and their messages are written to disk."""
        self._end(signal.SIGTERM)

    def forget(self) -> None:
        """Delete the sessions of the stopped broker."""
        (Path(self._folder.name) / "mosquitto.db").unlink()

    def _end(self, sent: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sent)
            self._process.wait()
            self._process = None
