"""POST requests with retries, as WebhookSink and AIPlexSink send them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from tape.base.addresses import OPERATOR, PUBLIC_ONLY
from tape.base.http import HttpClient
from tape.base.retry import RetryPolicy, retry
from tape.base.url_mask import mask_urls
from tape.errors import (
    AddressNotAllowed,
    HttpRequestFailed,
    InvalidHttpRequest,
    InvalidInput,
    RefusedAddress,
    SinkClosed,
    SinkRejected,
    SinkUnavailable,
)

MAX_BACKOFF_S = 30.0
MAX_SHOWN = 200
MAX_RESPONSE_BYTES = 1 << 16


class HttpTarget:
    """A URL that bodies are POSTed to, on connections that are kept. Safe to use from several threads.

    408, 425, 429, 5xx and network errors are retried `max_retries` times, with exponential backoff and jitter, or after
    the time that `Retry-After` asks for; then they are SinkUnavailable. Other statuses than 2xx are SinkRejected.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        max_retries: int,
        initial_backoff_s: float,
        timeout_s: float,
        allow_private: bool,
        connections: int = 1,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"url {mask_urls(url)!r} must look like https://partner.example.com/path.")
        if parts.username or parts.password:
            raise InvalidInput("url has credentials in it; send them as an Authorization header instead.")
        for name, value in headers.items():
            if not f"{name}{value}".isprintable() or not f"{name}{value}".isascii() or " " in name:
                raise InvalidInput(f"The header {name!r} cannot be sent; it must be one printable line of ASCII.")
        if max_retries < 0 or initial_backoff_s <= 0 or timeout_s <= 0:
            raise InvalidInput(
                f"max_retries {max_retries!r} must be 0 or more, initial_backoff_s {initial_backoff_s!r} and"
                f" timeout_s {timeout_s!r} more than 0."
            )
        self.url = url
        self.retries = 0
        self._headers = dict(headers)
        self._retry = RetryPolicy(
            max_attempts=max_retries + 1,
            initial_interval_s=initial_backoff_s,
            max_interval_s=MAX_BACKOFF_S,
            jitter=0.25,
            retry_on=(SinkUnavailable,),
        )
        self._closed = threading.Event()
        self._http = HttpClient(
            OPERATOR if allow_private else PUBLIC_ONLY,
            timeout_s=timeout_s,
            connect_timeout_s=timeout_s,
            connections=connections,
        )

    def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Return when the target has answered 2xx."""
        try:
            retry(
                lambda: self._send(body, headers),
                self._retry,
                can_retry=lambda error: (getattr(error, "retry_after_s", None) or 0.0) <= MAX_BACKOFF_S,
                stop=self._closed,
                on_retry=self._count_retry,
            )
        except SinkUnavailable as error:
            if self._closed.is_set():
                raise SinkClosed(f"The sink to {mask_urls(self.url)} was closed.") from error
            raise  # a longer Retry-After is left to the relay

    def close(self) -> None:
        """Close the connections; a pause between retries ends at once."""
        self._closed.set()
        self._http.close()

    def _count_retry(self, error: Exception, attempt: int, delay_s: float) -> None:
        self.retries += 1

    def _send(self, body: bytes, headers: Mapping[str, str]) -> None:
        if self._closed.is_set():
            raise SinkClosed(f"The sink to {mask_urls(self.url)} was closed.")
        wanted = {**self._headers, **headers}
        try:
            response = self._http.request("POST", self.url, body=body, headers=wanted, cut=MAX_RESPONSE_BYTES)
        except AddressNotAllowed as error:
            raise RefusedAddress(
                f"{error} For this sink alone: allow_private=True (tape relay: --allow-private)."
            ) from error
        except InvalidHttpRequest as error:
            raise SinkRejected(str(error)) from error
        except HttpRequestFailed as error:
            raise SinkUnavailable(str(error)) from error
        if response.is_success:
            return
        said = f"{mask_urls(self.url)} answered {response.status} {response.reason}: {response.text[:MAX_SHOWN]}"
        if response.is_retryable:
            raise SinkUnavailable(said, retry_after_s=response.retry_after_s)
        raise SinkRejected(said)
