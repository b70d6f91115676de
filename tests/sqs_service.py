"""Amazon SQS for tests: moto's server, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

from tests.services import free_port, is_listening, wait_for

REGION = "eu-central-1"
LOGIN = {"user": "AKIATESTS", "password": "not-checked-by-moto"}


class SqsService:
    """A service with its own queues; everything is in memory and checks no signature."""

    def __enter__(self) -> SqsService:
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.address.rpartition(":")[2]]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: is_listening(self.address), "moto's server")
        self.client = self._client()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()

    def queue(self, *, fifo: bool = False, **attributes: str) -> str:
        """A new queue, by its name."""
        name = f"orders-{uuid.uuid4().hex[:8]}"
        if fifo:
            name, attributes = f"{name}.fifo", {"FifoQueue": "true", **attributes}
        self.client.create_queue(QueueName=name, Attributes=attributes)
        return name

    def url_of(self, queue: str) -> str:
        """The URL of a queue."""
        return str(self.client.get_queue_url(QueueName=queue)["QueueUrl"])

    def send(self, queue: str, body: str, headers: dict[str, str], group: str = "one") -> None:
        """Send a message; in a FIFO queue it belongs to a group."""
        more: dict[str, Any] = {}
        if queue.endswith(".fifo"):
            more = {"MessageGroupId": group, "MessageDeduplicationId": uuid.uuid4().hex}
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()}
        self.client.send_message(QueueUrl=self.url_of(queue), MessageBody=body, MessageAttributes=attributes, **more)

    def _client(self) -> Any:
        import botocore.session

        return botocore.session.get_session().create_client(
            "sqs",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=LOGIN["user"],
            aws_secret_access_key=LOGIN["password"],
        )
