"""Public name of the retry policy."""

from tape.base.retry import RetryPolicy

__all__ = ["RetryPolicy"]
