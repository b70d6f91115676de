"""Entries as POSTs to somebody's HTTP endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tape.errors import InvalidInput, SinkHeldBack
from tape.sinks.http import HttpTarget
from tape.sinks.signature import Signer
from tape.sinks.sink import body_of, event_id_of


class WebhookSink:
    """POSTs each entry as JSON with `X-Tape-Event-Id: <run_id>/<seq>`; 2xx acknowledges it.

    4xx is permanent; 408, 425, 429, 5xx and network errors are retried up to `max_retries` times with a growing,
    varying pause, and `Retry-After` is honoured. With a `secret` (`whsec_<base64>`, or several) bodies are signed as
    Standard Webhooks says. Addresses outside the public internet are refused unless `allow_private`.
    `concurrency` is how many runs may be on their way at once; within a run entries always go one after the other.
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
    ) -> None:
        if concurrency < 1:
            raise InvalidInput(f"concurrency {concurrency!r} must be at least 1.")
        self._signer = Signer(secret) if secret else None
        self._target = HttpTarget(
            url,
            headers={"Content-Type": "application/json", "User-Agent": "tape-webhook", **(headers or {})},
            max_retries=max_retries,
            initial_backoff_s=initial_backoff_s,
            timeout_s=timeout_s,
            allow_private=allow_private,
            connections=concurrency,
        )
        self._pool = ThreadPoolExecutor(concurrency, "tape-webhook") if concurrency > 1 else None

    @property
    def url(self) -> str:
        """Where entries go."""
        return self._target.url

    @property
    def retries(self) -> int:
        """How often a POST had to be made again."""
        return self._target.retries

    def publish(self, entry: Any) -> None:
        """Return when the receiver has answered 2xx."""
        body, event_id = body_of(entry), event_id_of(entry)
        headers = {"X-Tape-Event-Id": event_id}
        if self._signer is not None:
            headers |= self._signer.headers(event_id, body)
        self._target.post(body, headers)

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """POST entries, several runs at once and each run in order."""
        outcomes: list[Exception | None] = [None] * len(entries)
        runs: dict[str, list[int]] = {}
        for position, entry in enumerate(entries):
            runs.setdefault(entry.run_id if self._pool is not None else "", []).append(position)

        def publish_run(positions: list[int]) -> None:
            for at, position in enumerate(positions):
                try:
                    self.publish(entries[position])
                except Exception as error:
                    outcomes[position] = error
                    for behind in positions[at + 1 :]:
                        outcomes[behind] = SinkHeldBack(entries[behind], entries[position])
                    return

        if self._pool is None or len(runs) == 1:
            for positions in runs.values():
                publish_run(positions)
        else:
            list(self._pool.map(publish_run, runs.values()))
        return outcomes

    def close(self) -> None:
        """Close connections; what waits to try again gives up at once."""
        self._target.close()
        if self._pool is not None:
            self._pool.shutdown()
