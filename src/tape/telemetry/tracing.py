"""W3C trace context, as it arrives with a call and rests on an entry."""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


class Trace(NamedTuple):
    """Who caused an entry: hex ids, empty where unknown."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""


NO_TRACE = Trace()


def parse_traceparent(header: str) -> Trace:
    """The caller's span from a `traceparent` header; a malformed one counts as none, as W3C says."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or set(match[1]) == {"0"} or set(match[2]) == {"0"}:
        return NO_TRACE
    return Trace(match[1], match[2])
