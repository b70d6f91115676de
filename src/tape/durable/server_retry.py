"""Calls that are retried while the server is unavailable, so that a restart of the server does not end runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tape.base.retry import WHILE_UNAVAILABLE, is_retryable, retry, retry_async
from tape.errors import LeaseHeld

log = logging.getLogger(__name__)

DEADLINE_S = 30.0
POLICY = replace(WHILE_UNAVAILABLE, non_retryable=(LeaseHeld,))


def call_with_retry(call: Callable[..., Any], /, **arguments: Any) -> Any:
    """Return the result of an idempotent call, retried for up to 30 s after errors that are retryable."""
    return retry(lambda: call(**arguments), POLICY, can_retry=is_retryable, deadline_s=DEADLINE_S, on_retry=_log)


async def call_with_retry_async(call: Callable[..., Awaitable[Any]], /, **arguments: Any) -> Any:
    """`call_with_retry` for a coroutine function."""
    return await retry_async(
        lambda: call(**arguments), POLICY, can_retry=is_retryable, deadline_s=DEADLINE_S, on_retry=_log
    )


def _log(error: Exception, attempt: int, delay_s: float) -> None:
    log.info("retrying in %.2f s after attempt %d: %s", delay_s, attempt, error)
