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
    """Ports that nobody uses now, all different."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


class S3Server:
    """`store(bucket)` is a client of it; the bucket is made."""

    def __enter__(self) -> S3Server:
        program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        if program is None:
            pytest.skip("no SeaweedFS for this machine")
        self._folder = tempfile.TemporaryDirectory(prefix="tape-s3-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        identity = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        master, volume, filer, s3, *grpc = free_ports(8)
        self.endpoint = f"http://127.0.0.1:{s3}"
        command = [
            program, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
            f"-master.port.grpc={grpc[0]}", f"-volume.port.grpc={grpc[1]}", f"-filer.port.grpc={grpc[2]}",
            f"-s3.port.grpc={grpc[3]}", "-filer", "-s3", f"-s3.config={folder / 's3.json'}",
            "-s3.port.iceberg=0", "-s3.port.lance=0",  # fixed ports, of which a machine has one
            "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        self._until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it takes ten seconds to end by itself, and nothing of it is kept
        self._process.wait()
        self._folder.cleanup()

    def store(self, bucket: str, **changes: Any) -> Any:
        """A client for a bucket, which is there after the first object was written."""
        from obstore.store import S3Store

        options = {"access_key_id": KEY, "secret_access_key": SECRET, **changes}
        return S3Store(
            bucket, endpoint=self.endpoint, region="us-east-1", client_options={"allow_http": True}, **options
        )

    def _until_ready(self) -> None:
        import obstore

        deadline = time.monotonic() + 120
        while True:
            try:
                obstore.put(self.store("spool", retry_config=None), "ready", b"yes")
                return
            except Exception:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((Path(self._folder.name) / "log").read_text()[-3000:]) from None
                time.sleep(0.2)
