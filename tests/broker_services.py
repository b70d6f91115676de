"""Brokers for tests: a NATS server, and librdkafka's mock of a Kafka cluster, each a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services import free_port, wait_for

# The cluster lives as long as the client that asked for it. Groups begin at once: a broker's usual three seconds of
# waiting for more members would be three seconds of every test.
_MOCK = """
import ctypes, pathlib, sys
import confluent_kafka
from confluent_kafka.admin import AdminClient
package = pathlib.Path(confluent_kafka.__file__).parent
found = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
if found:
    library = ctypes.CDLL(str(found[0]))
    new, mock = library.rd_kafka_new, library.rd_kafka_mock_cluster_new
    bootstraps, delay = library.rd_kafka_mock_cluster_bootstraps, library.rd_kafka_mock_group_initial_rebalance_delay_ms
    new.restype = mock.restype = library.rd_kafka_conf_new.restype = ctypes.c_void_p
    new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    mock.argtypes, delay.argtypes = [ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p, ctypes.c_int32]
    bootstraps.restype, bootstraps.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    cluster = mock(new(0, library.rd_kafka_conf_new(), ctypes.create_string_buffer(512), 512), 1)
    delay(cluster, 0)
    print(bootstraps(cluster).decode(), flush=True)
else:
    cluster = AdminClient({"test.mock.num.brokers": 1})
    brokers = cluster.list_topics(timeout=120).brokers
    print(",".join(f"{b.host}:{b.port}" for b in brokers.values()), flush=True)
sys.stdin.read()
"""


class NatsServer:
    """A NATS server with JetStream on a free port; it can be killed and started again where it was."""

    def __enter__(self) -> NatsServer:
        self._folder = tempfile.TemporaryDirectory(prefix="tape-nats-")
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Start it, on the port that it had before if it had one; nothing if it runs."""
        if self._process is not None:
            return
        log = Path(self._folder.name) / "log"
        log.unlink(missing_ok=True)
        port = self.address.rpartition(":")[2] or str(free_port())
        program = Path(sys.executable).parent / "nats-server"
        command = [str(program), "-js", "-a", "127.0.0.1", "-p", port, "-sd", self._folder.name, "-l", str(log)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: log.exists() and "Server is ready" in log.read_text(), "the NATS server")
        self.address = re.findall(r"Listening for client connections on (\S+)", log.read_text())[0]

    def kill(self) -> None:
        """kill -9; acknowledgements of the last moments may not be on disk, as NATS writes them in the background."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut it down; what was acknowledged is on disk."""
        self._end(signal.SIGTERM)

    def _end(self, sent: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sent)
            self._process.wait()
            self._process = None


class KafkaCluster:
    """librdkafka's mock cluster: real protocol, nothing on disk."""

    def __enter__(self) -> KafkaCluster:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MOCK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the mock cluster did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
