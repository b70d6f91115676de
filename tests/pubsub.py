"""Google's Pub/Sub emulator, where its command line tools are installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.services import free_port, wait_for

PROJECT = "tape-tests"
VARIABLE = "PUBSUB_EMULATOR_HOST"


def emulator() -> Path | None:
    """The emulator's program, if this machine has it."""
    gcloud = shutil.which("gcloud")
    if gcloud is None or shutil.which("java") is None:
        return None
    program = Path(gcloud).resolve().parent.parent / "platform/pubsub-emulator/bin/cloud-pubsub-emulator"
    return program if program.exists() else None


class PubSub:
    """A running emulator, which the clients of this process find by its environment variable."""

    def __enter__(self) -> PubSub:
        program = emulator()
        assert program is not None
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = tempfile.TemporaryDirectory(prefix="tape-pubsub-")
        host, port = self.address.split(":")
        self._log = (Path(self._folder.name) / "log").open("w+")
        command = [str(program), f"--host={host}", f"--port={port}"]
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, cwd=self._folder.name, process_group=0
        )
        wait_for(lambda: "Server started" in Path(self._log.name).read_text(), "the Pub/Sub emulator", 180)
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = self.address
        return self

    def __exit__(self, *_: object) -> None:
        # Another emulator of this process may have been there before.
        os.environ.pop(VARIABLE)
        if self._before is not None:
            os.environ[VARIABLE] = self._before
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def topic(self) -> tuple[str, str]:
        """A new topic and a subscription to it, by their names."""
        from google.cloud import pubsub_v1

        name = f"topic-{uuid.uuid4().hex[:8]}"
        with pubsub_v1.SubscriberClient() as subscriber:
            publisher = pubsub_v1.PublisherClient()
            topic = publisher.topic_path(PROJECT, name)
            publisher.create_topic(name=topic)
            subscription = subscriber.subscription_path(PROJECT, f"{name}-sub")
            subscriber.create_subscription(
                request={"name": subscription, "topic": topic, "enable_message_ordering": True}
            )
            publisher.stop()
            publisher.transport.close()
        return name, f"{name}-sub"
