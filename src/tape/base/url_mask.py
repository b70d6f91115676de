"""Credentials in URLs, masked wherever a URL is shown: in output, logs and errors."""

from __future__ import annotations

import logging
import re

MASK = "***"

_PASSWORD = re.compile(r"(://[^\s/@:'\"]*:)[^\s'\"/?#]*@")
# Digits up to a `/` are a port. The length is limited so that the search is linear.
_PASSWORD_WITH_SLASH = re.compile(r"(://[^\s/@:'\"]*:)(?!\d+(?:[/,?#]|$))[^\s@'\"?#]{0,200}@")
# A token alone before the `@`, as in NATS; in the URL of a database that is the name of a user.
_TOKEN = re.compile(r"(?<!postgres)(?<!postgresql)(?<!alloydb)(://)[^\s/@:'\",?#]+@")
_PARAMETER = re.compile(
    r"([?&](?:[a-z0-9_.-]*(?:password|passwd|pwd|secret|token|signature|credential)|api_?key|key|sig)=)[^\s&#'\"]+",
    re.IGNORECASE,
)


def mask_urls(text: str) -> str:
    """The text with `***` in place of the passwords, tokens and secret parameters of the URLs in it."""
    if "://" not in text:
        return text
    text = _PASSWORD.sub(rf"\g<1>{MASK}@", text)
    text = _PASSWORD_WITH_SLASH.sub(rf"\g<1>{MASK}@", text)
    text = _TOKEN.sub(rf"\g<1>{MASK}@", text)
    return _PARAMETER.sub(rf"\g<1>{MASK}", text)


class MaskingFormatter(logging.Formatter):
    """Formats log records without credentials in URLs, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        return mask_urls(super().format(record))
