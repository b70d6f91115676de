"""Entries as POST requests to an HTTP endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tape.errors import InvalidInput, SinkHeldBack
from tape.model.message import BodyFormat, check_body_format, content_type_of, encode_body, event_id_of, run_key_of
from tape.sinks.http import HttpTarget
from tape.sinks.signature import Signer


class WebhookSink:
    """POSTs each entry as JSON with `X-Tape-Event-Id: <run_id>/<seq>`; 2xx acknowledges it.

    4xx is permanent; 408, 425, 429, 5xx and network errors are retried up to `max_retries` times with exponential
    backoff and jitter, and `Retry-After` is honoured. With a `secret` (`whsec_<base64>`, or several) bodies are signed
    by Standard Webhooks. Addresses outside the public internet are rejected unless `allow_private`.
    `concurrency` is how many runs are sent at once; the entries of a run are always sent one after the other.
    `body` is `standard`, `expanded` or `cloudevents`.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        max_retries: int = 3,
        initial_backoff_s: float = 0.5,
        timeout_s: float = 10.0,
        *,
        secret: str | Sequence[str] = "",
        allow_private: bool = False,
        concurrency: int = 1,
        body: BodyFormat = "standard",
    ) -> None:
        if concurrency < 1:
            raise InvalidInput(f"concurrency {concurrency!r} must be at least 1.")
        self._body = check_body_format(body)
        self._signer = Signer(secret) if secret else None
        self._target = HttpTarget(
            url,
            headers={"Content-Type": content_type_of(self._body), "User-Agent": "tape-webhook", **(headers or {})},
            max_retries=max_retries,
            initial_backoff_s=initial_backoff_s,
            timeout_s=timeout_s,
            allow_private=allow_private,
            connections=concurrency,
        )
        self._pool = ThreadPoolExecutor(concurrency, "tape-webhook") if concurrency > 1 else None

    @property
    def url(self) -> str:
        """The address of the receiver."""
        return self._target.url

    @property
    def retries(self) -> int:
        """How many requests were retries."""
        return self._target.retries

    def publish(self, entry: Any) -> None:
        """Return when the receiver has answered 2xx."""
        body, event_id = encode_body(entry, self._body), event_id_of(entry)
        headers = {"X-Tape-Event-Id": event_id}
        if self._signer is not None:
            headers |= self._signer.headers(event_id, body)
        self._target.post(body, headers)

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """POST entries, several runs at once and each run in order."""
        outcomes: list[Exception | None] = [None] * len(entries)
        runs: dict[object, list[int]] = {}
        for index, entry in enumerate(entries):
            runs.setdefault(run_key_of(entry) if self._pool is not None else "", []).append(index)

        def publish_run(indexes: list[int]) -> None:
            for number, index in enumerate(indexes):
                try:
                    self.publish(entries[index])
                except Exception as error:
                    outcomes[index] = error
                    for later in indexes[number + 1 :]:
                        outcomes[later] = SinkHeldBack(entries[later], entries[index])
                    return

        if self._pool is None or len(runs) == 1:
            for indexes in runs.values():
                publish_run(indexes)
        else:
            list(self._pool.map(publish_run, runs.values()))
        return outcomes

    def close(self) -> None:
        """Close connections; a request that waits for a retry fails at once."""
        self._target.close()
        if self._pool is not None:
            self._pool.shutdown()
