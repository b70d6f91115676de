"""An S3 server for tests: SeaweedFS, a process of its own in a temporary folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.services import free_port

KEY, SECRET = "spooler", "not-so-secret"


def free_ports(count: int) -> list[int]:
    """Return distinct free ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


class S3Server:
    """`store(bucket)` is a client of it; the bucket is made."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        if program is None:
            pytest.skip("no SeaweedFS for this machine")
        self._folder = tempfile.TemporaryDirectory(prefix="tape-s3-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        master, volume, filer, s3, *grpc = free_ports(8)
        self.endpoint = f"http://127.0.0.1:{s3}"
        self._command = [
            program, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
            f"-master.port.grpc={grpc[0]}", f"-volume.port.grpc={grpc[1]}", f"-filer.port.grpc={grpc[2]}",
            f"-s3.port.grpc={grpc[3]}", "-filer", "-s3", f"-s3.config={folder / 's3.json'}",
            "-s3.port.iceberg=0", "-s3.port.lance=0",  # fixed ports, of which a machine has one
            "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20",
        ]  # fmt: skip
        self.credential = {"access_key_id": KEY, "secret_access_key": SECRET, "endpoint": self.endpoint}
        self._write_identity()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()  # it takes ten seconds to end by itself, and nothing of it is kept
        self._folder.cleanup()

    def start(self) -> None:
        """Start it, with what it had before; nothing if it runs."""
        if self._process is None:
            folder = Path(self._folder.name)
            with (folder / "log").open("wb") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=folder)
        self._until_ready()

    def change_secret(self, secret: str) -> None:
        """Have another secret key from now on, and refuse the one before it."""
        self.kill()
        self.credential["secret_access_key"] = secret
        self._write_identity()
        self.start()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def store(self, bucket: str, **changes: Any) -> Any:
        """A client for a bucket, which is there after the first object was written."""
        from obstore.store import S3Store

        options = {"access_key_id": KEY, "secret_access_key": self.credential["secret_access_key"], **changes}
        return S3Store(
            bucket, endpoint=self.endpoint, region="us-east-1", client_options={"allow_http": True}, **options
        )

    def _write_identity(self) -> None:
        keys = {"accessKey": KEY, "secretKey": self.credential["secret_access_key"]}
        identity = {"name": KEY, "credentials": [keys], "actions": ["Admin"]}
        (Path(self._folder.name) / "s3.json").write_text(json.dumps({"identities": [identity]}))

    def _until_ready(self) -> None:
        import obstore

        deadline = time.monotonic() + 120
        while True:
            try:
                obstore.put(self.store("spool", retry_config=None), "ready", b"yes")
                return
            except Exception:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((Path(self._folder.name) / "log").read_text()[-3000:]) from None
                time.sleep(0.2)
