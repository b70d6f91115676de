"""Digests of requests and arguments: the same for the same values, however they were written.

A digest is taken over canonical JSON before anything is redacted: keys sorted, no spaces, numbers in one form. `1`,
`1.0` and `1e0` are the same number; `-0.0` is `0`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from tape.durable.callback_arguments import call_offering, finish
from tape.errors import InvalidInput
from tape.model.payload import to_json

# The version of the canonical form. Digests of different versions are not compared.
VERSION = "1"

# Fields to leave out, as `name` or `outer.inner`; a function of the value; or False for no digest.
DigestOption = Iterable[str] | Callable[..., Any] | bool | None


def canonical_json(text: str) -> str:
    """The canonical form of a JSON text."""
    parsed = json.loads(text, parse_float=_number, parse_constant=_reject)
    return json.dumps(parsed, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of_json(text: str) -> str:
    """The digest of a JSON text: the version of the canonical form and 128 bits of SHA-256."""
    return f"{VERSION}:{hashlib.sha256(canonical_json(text).encode()).hexdigest()[:32]}"


def digest_of(value: Any, option: DigestOption = None) -> str:
    """The digest of a value, as `digest=` of an effect or a decision asks for; "" for none."""
    if option is False:
        return ""
    if callable(option):
        value = finish(call_offering(option, {**(value if isinstance(value, dict) else {}), "args": value}, value))
        return "" if value is None else digest_of_json(to_json(value))
    text = to_json(value)
    if option is None or option is True:
        return digest_of_json(text)
    parsed = json.loads(text)
    for path in option:
        _leave_out(parsed, path.split("."))
    return digest_of_json(json.dumps(parsed))


def check_option(option: Any, where: str) -> DigestOption:
    """`digest=`, checked: the names of fields to leave out, a function, False, or None."""
    if option is None or isinstance(option, bool) or callable(option):
        return option  # type: ignore[no-any-return]  # narrowed to the union
    if isinstance(option, str):
        raise InvalidInput(f"digest {option!r} of {where} is a text; list the fields to leave out: [{option!r}].")
    names = tuple(option)
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"digest of {where} names {name!r}; give the fields to leave out, such as ['sent_at'].")
    return names


def are_different(recorded: str, ours: str) -> bool:
    """Whether two digests show a change; a record without a digest, or of another version, shows none."""
    if not recorded or not ours or recorded.partition(":")[0] != ours.partition(":")[0]:
        return False
    return recorded != ours


def _number(text: str) -> int | float | str:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return f"number {text.lower()}"  # no double has it; our encoder never writes one
    return int(value) if value.is_integer() else value


def _reject(text: str) -> Any:
    raise InvalidInput(f"{text} is no number of JSON.")


def _leave_out(value: Any, path: list[str]) -> None:
    """Remove a field, in each element where a list is on the way to it."""
    if isinstance(value, list):
        for each in value:
            _leave_out(each, path)
    elif isinstance(value, dict):
        if len(path) == 1:
            value.pop(path[0], None)
        else:
            _leave_out(value.get(path[0]), path[1:])
