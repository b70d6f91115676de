"""An AMQP broker for tests: RabbitMQ, installed or from Debian's packages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.certificates import self_signed
from tests.debian_packages import unpack
from tests.services import free_port, is_listening, wait_for


class RabbitMq:
    """RabbitMQ on a free port, as a node of its own; it can be stopped and started where it was.

    The port mapper of Erlang is a process of its own too, so that nothing of the machine is touched.
    """

    def __enter__(self) -> RabbitMq:
        program, erlang = find_rabbitmq()
        self._folder = tempfile.TemporaryDirectory(prefix="tape-amqp-")
        folder = Path(self._folder.name)
        self.port = free_port()
        self.address, self.tls_address = f"127.0.0.1:{self.port}", f"127.0.0.1:{free_port()}"
        self.certificate = self_signed()
        for name, text in self.certificate.items():
            (folder / name).write_text(text)
        mapper_port = free_port()
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {self.address}\nlisteners.ssl.1 = {self.tls_address}\n"
            f"ssl_options.certfile = {folder}/cert\nssl_options.keyfile = {folder}/key\n"
            "log.console = false\ndisk_free_limit.absolute = 1MB\n"
        )
        self._command = [program]
        self._environment = os.environ | {
            "PATH": f"{erlang}/bin:{os.environ['PATH']}",
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder),
            "RABBITMQ_NODENAME": f"tape-{self.port}@localhost",
        }
        self._process: subprocess.Popen[bytes] | None = None
        mapper = [str(next(Path(erlang).glob("erts-*/bin/epmd"))), "-port", str(mapper_port)]
        self._mapper = subprocess.Popen(
            mapper, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(lambda: is_listening(f"127.0.0.1:{mapper_port}"), "Erlang's port mapper")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)
        self._mapper.kill()
        self._mapper.wait()
        self._folder.cleanup()

    def start(self) -> None:
        """Start it on its port; nothing if it runs."""
        if self._process is not None:
            return
        log = (Path(self._folder.name) / "output").open("ab")
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log, process_group=0)
        log.close()
        wait_for(lambda: is_listening(self.address), "RabbitMQ", 180)

    def stop(self) -> None:
        """Shut it down; persistent messages are on disk."""
        self._end(signal.SIGTERM)

    def _end(self, sent: signal.Signals) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, sent)
            self._process.wait()
            self._process = None


def find_rabbitmq() -> tuple[str, str]:
    """The script that starts the server, and Erlang's folder. Raises NotAvailable."""
    installed = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if installed and shutil.which("erl"):
        return str(installed[-1]), "/usr/lib/erlang"
    folder = unpack("rabbitmq-server")
    erlang = folder / "usr/lib/erlang"
    starter = erlang / "bin/erl"
    text = starter.read_text()
    if f"={erlang}" not in text:  # Debian's script names the folder that it is installed in
        fresh = starter.with_suffix(f".{os.getpid()}")
        fresh.write_text(re.sub(r"=/usr/lib/erlang", f"={erlang}", text))
        fresh.chmod(0o755)
        fresh.replace(starter)
    (script,) = folder.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
    return str(script), str(erlang)
