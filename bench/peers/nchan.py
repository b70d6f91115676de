"""nginx with nchan, from Debian's packages: unpacked into a temporary folder, installed nowhere."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.peers.servers import NotInstalled, free_port, running

PACKAGES = ("nginx", "nginx-common", "libnginx-mod-nchan")
DOWNLOAD_S = 120
STATE = Path("/var/lib/nginx")

SETTINGS = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log crit;
load_module {module};
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi; keepalive_requests 10000000;
  nchan_shared_memory_size 512M;
  server {{
    listen 127.0.0.1:{port};
    location = /pub {{ nchan_publisher; nchan_channel_id bench; nchan_message_buffer_length 200000; }}
    location = /sub {{ nchan_subscriber eventsource; nchan_channel_id bench; nchan_subscriber_first_message newest; }}
  }}
}}
"""


@contextlib.contextmanager
def nchan(folder: Path) -> Iterator[int]:
    """The port of an nginx with `/pub` and `/sub`."""
    binary, module = _unpack(folder)
    port = free_port()
    settings = folder / "nginx.conf"
    settings.write_text(SETTINGS.format(folder=folder, module=module, port=port))
    is_ours = not STATE.exists()
    try:
        STATE.mkdir(exist_ok=True)  # compiled in, and wanted at start whatever the settings say
    except OSError as error:
        raise NotInstalled(f"not started: nginx needs the folder {STATE}") from error
    command = ["nginx", "-p", str(folder), "-c", str(settings), "-e", str(folder / "error.log")]
    try:
        with running(command, str(binary), port):
            yield port
    finally:
        if is_ours:
            shutil.rmtree(STATE, ignore_errors=True)


def _unpack(folder: Path) -> tuple[Path, Path]:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotInstalled("not installed: needs Debian's nginx and libnginx-mod-nchan")
    try:
        subprocess.run(
            ["apt-get", "download", *PACKAGES], cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_S
        )
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True, capture_output=True)
    except (subprocess.SubprocessError, OSError) as error:
        raise NotInstalled(f"not installed: apt-get download {' '.join(PACKAGES)} failed") from error
    return folder / "usr/sbin/nginx", folder / "usr/lib/nginx/modules/ngx_nchan_module.so"
