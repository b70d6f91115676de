"""Calls to Amazon SQS: credentials, address, and errors of the client."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tape.brokers.settings import SourceSettings, sqs_host
from tape.brokers.tls import tls_of
from tape.errors import MissingExtra, SourceMisconfigured, SourceMissing, SourceUnavailable

CONNECT_TIMEOUT_S = 5
# Longer than a long poll, which takes up to 20 s.
READ_TIMEOUT_S = 30
# A long poll, a settlement and a renewal at the same time.
THREADS = 4
AMAZON = ("amazonaws.com", "amazonaws.com.cn")


class SqsConnection:
    """A queue of SQS. Calls run on threads of their own, because the client is synchronous."""

    def __init__(self, settings: SourceSettings) -> None:
        try:
            self._session = importlib.import_module("botocore.session")
            self._config = importlib.import_module("botocore.config")
            self._errors = importlib.import_module("botocore.exceptions")
        except ImportError as error:
            raise MissingExtra("subscriptions to SQS", "sqs") from error
        self.queue = settings.required("queue")
        self.region = settings.required("region", " (like eu-central-1)")
        self._account = settings.text("account")
        given = settings.text("endpoint").rstrip("/")
        self._endpoint = given or f"https://{sqs_host(self.region).removesuffix(':443')}"
        if not self._endpoint.startswith(("http://", "https://")):
            raise settings.wrong("'endpoint' must begin with http:// or https://")
        self.where = f"SQS at {self._endpoint.rpartition('@')[2].partition('://')[2] or self._endpoint}"
        self._login = {
            "aws_access_key_id": settings.text("user"),
            "aws_secret_access_key": settings.text("password"),
            "aws_session_token": settings.text("token"),
        }
        if bool(settings.text("user")) != bool(settings.text("password")):
            raise settings.wrong("must have both 'user' (access key id) and 'password' (secret access key), or neither")
        host = self._endpoint.partition("://")[2].partition("/")[0].partition(":")[0]
        if not settings.text("user") and not host.endswith(tuple(f".{each}" for each in AMAZON)):
            raise settings.wrong(
                "has an 'endpoint' that is not Amazon's, and the machine's own identity is sent to Amazon alone; name"
                " an 'auth' credential with 'access_key_id' and 'secret_access_key'"
            )
        self._tls = tls_of(settings)
        if self._tls is not None:
            raise settings.wrong("has 'tls', which is for other sources; AWS_CA_BUNDLE names certificates to trust")
        self._threads = ThreadPoolExecutor(THREADS, "tape-sqs")
        self._client: Any = None
        self._url = ""

    async def open(self) -> None:
        """Connect, and look up the queue. Raises SourceMissing if it does not exist."""
        self._url = ""
        self._client = await self._on_thread(self._connect)
        owner = {"QueueOwnerAWSAccountId": self._account} if self._account else {}
        with self.translate_errors():
            found = await self._on_thread(partial(self._client.get_queue_url, QueueName=self.queue, **owner))
        self._url = str(found["QueueUrl"])

    @property
    def is_open(self) -> bool:
        """Whether the queue was found since the last failure."""
        return bool(self._url)

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation on the queue. Raises SourceUnavailable or SourceMissing."""
        if not self._url:
            raise SourceUnavailable(f"{self.where} is not connected.")
        with self.translate_errors():
            function = partial(getattr(self._client, operation), QueueUrl=self._url, **arguments)
            return dict(await self._on_thread(function))

    async def close(self) -> None:
        """End the connection; calls that are under way end on their own."""
        client, self._client, self._url = self._client, None, ""
        if client is not None:
            await self._on_thread(client.close)

    def _connect(self) -> Any:
        session = self._session.get_session()
        config = self._config.Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            # The caller retries, and reports each failure.
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=THREADS,
            user_agent_extra="tape-subscription",
        )
        login = {name: value for name, value in self._login.items() if value}
        try:
            return session.create_client(
                "sqs", region_name=self.region, endpoint_url=self._endpoint, config=config, **login
            )
        except (self._errors.BotoCoreError, ValueError) as error:
            raise SourceMisconfigured(f"subscription[sqs] has settings that the client rejects: {error}.") from error

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors of the client into errors of sources."""
        try:
            yield
        except self._errors.ClientError as error:
            about = error.response.get("Error", {})
            if str(about.get("Code", "")).endswith(("QueueDoesNotExist", "NonExistentQueue")):
                self._url = ""
                raise SourceMissing(
                    f"subscription[sqs]: queue {self.queue!r} not found in {self.region}. Create it, or correct"
                    " 'queue', 'region' or 'account'."
                ) from error
            raise SourceUnavailable(
                f"{self.where}: queue {self.queue!r}: {about.get('Code', '')} {about.get('Message', '')}".rstrip(". ")
                + "."
            ) from error
        except (self._errors.BotoCoreError, OSError) as error:
            raise SourceUnavailable(f"{self.where} cannot be reached: {error}".rstrip(". ") + ".") from error

    async def _on_thread(self, function: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)
