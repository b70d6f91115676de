"""Topic filters of MQTT, with `+`, `#` and `$share/<group>/`."""

from __future__ import annotations

SHARE = "$share/"
MAX_BYTES = 65_535


def filter_problem(topic: str) -> str:
    """What is wrong with a topic filter; empty if nothing is."""
    if len(topic.encode(errors="replace")) > MAX_BYTES or "\0" in topic:
        return f"must have no NUL character and at most {MAX_BYTES:,} bytes"
    if topic.startswith(SHARE):
        group, _, topic = topic.removeprefix(SHARE).partition("/")
        if not group or not topic or "+" in group or "#" in group:
            return "must be $share/<group>/<filter>, with a group without + and #"
    levels = topic.split("/")
    if "#" in "".join(levels[:-1]) or (len(levels[-1]) > 1 and "#" in levels[-1]):
        return "may have # only as its last level, as in sensors/#"
    if any("+" in level and level != "+" for level in levels):
        return "may have + only as a whole level, as in sensors/+/temperature"
    return ""
